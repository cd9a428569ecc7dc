"""``codecl report``: tables, figures and a page from finished runs."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from codecl.experiments.commands.options import add_command, say
from codecl.experiments.report.render import text
from codecl.experiments.report.write import PAGE, write_report
from codecl.experiments.usage import USAGE

MEMORY = "memory"
"""The one table that is too wide for a terminal."""


def add(commands: Any) -> None:
    parser = add_command(
        commands, "report", report, "write tables, figures and a page from run directories",
        """
  codecl report runs/c                              all runs below a directory
  codecl report runs/c runs/d --out paper --baseline sgp
  codecl report results --no-figures                without matplotlib""",
    )  # fmt: skip
    parser.add_argument(
        "directories", nargs="+", type=Path, metavar="DIR", help="directories with runs in or below them"
    )
    parser.add_argument("--out", type=Path, default=Path("report"), help="where to write (default %(default)s)")
    parser.add_argument("--baseline", help="the method that forward transfer is measured against (default gpm)")
    parser.add_argument("--no-figures", action="store_true", help="tables and page only")


def report(options: argparse.Namespace) -> int:
    made = write_report(options.directories, options.out, options.baseline, not options.no_figures)
    for table in made.tables:
        if table.name != MEMORY:
            print(text(table))
    for remark in made.remarks:
        print(remark)
    for name, words in made.left_out:
        if (name, words) not in made.damaged:
            print(f"{name}: {words}")
    names = {file.rpartition(".")[0] for file in made.files}
    tables, figures = (sum(name.startswith(kind) for name in names) for kind in ("tables/", "figures/"))
    print(f"\n{options.out / PAGE}: the page")
    print(f"{options.out / 'tables'}: {tables} tables as text, Markdown, LaTeX and CSV")
    if figures:
        print(f"{options.out / 'figures'}: {figures} figures as SVG and PNG")
    if made.damaged:
        say(f"codecl: left out as damaged: {' '.join(words for _, words in made.damaged)}")
        return USAGE
    return 0

"""``codecl report``: tables, figures and a page from finished runs."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from codecl.cli.options import add_command, warn
from codecl.errors import USAGE
from codecl.report.render import text
from codecl.report.tables import RESULTS
from codecl.report.write import PAGE, write_report
from codecl.text import one_line, printable


def add(commands: Any) -> None:
    parser = add_command(
        commands, "report", report, "write tables, figures and a page from run directories",
        """
  codecl report runs/c                              all runs below a directory
  codecl report runs/c runs/d --out paper --baseline sgp
  codecl report results --summary                   no figures of single runs
  codecl report results --no-figures                without matplotlib""",
    )  # fmt: skip
    parser.add_argument(
        "directories", nargs="+", type=Path, metavar="DIR", help="directories with runs in or below them"
    )
    parser.add_argument("--out", type=Path, default=Path("report"), help="where to write (default %(default)s)")
    parser.add_argument("--baseline", help="the method that forward transfer is measured against (default gpm)")
    parser.add_argument("--no-figures", action="store_true", help="tables and page only")
    parser.add_argument("--summary", action="store_true", help="no figures of single runs: a small report")


def report(options: argparse.Namespace) -> int:
    made = write_report(options.directories, options.out, options.baseline, not options.no_figures, not options.summary)
    for table in made.tables:
        if table.name == RESULTS or table.name.startswith("ablation"):
            print(text(table))
    for condition, sentence in made.headlines.items():
        print(printable(f"{condition}:\n  {sentence}"))
    for note in made.notes:
        print(printable(note))
    for name, reason in made.left_out:
        print(one_line(f"{name}: {reason}"))
    names = {file.rpartition(".")[0] for file in made.files}
    tables, figures = (sum(name.startswith(kind) for name in names) for kind in ("tables/", "figures/"))
    print(f"\n{options.out / PAGE}: the page")
    print(f"{options.out / 'tables'}: {tables} tables as text, Markdown, LaTeX and CSV")
    if figures:
        print(f"{options.out / 'figures'}: {figures} figures as SVG and PNG")
    for warning in made.warnings:
        warn(one_line(warning))
    if made.damaged:
        warn(one_line(f"left out as damaged: {' '.join(reason for _, reason in made.damaged)}"))
        return USAGE
    return 0

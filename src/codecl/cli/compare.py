"""``codecl compare``: several methods with several seeds, and a table of them."""

from __future__ import annotations

import argparse
import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from codecl.cli.options import add_command, default_out, make_recipe_for, parse_changes
from codecl.cli.run_many import parse_seeds, run_and_show, run_many_options
from codecl.errors import UsageError
from codecl.report.comparison import compare_methods
from codecl.report.write import PAGE, write_report
from codecl.runs.plugins import find_method
from codecl.runs.progress import print_json
from codecl.runs.recipe import setting_defaults
from codecl.runs.records import RESULT
from codecl.runs.run_many import run_name
from codecl.text import printable, unknown_name


def add(commands: Any) -> None:
    parser = add_command(
        commands, "compare", compare, "run several methods with several seeds, and compare them",
        """
  codecl compare                                    fine-tuning, GPM and CODE-CL on the embedded benchmark
  codecl compare --methods code-cl,finetune --seeds 0,1,2 --jobs 2 --out runs/c
  codecl compare --methods code-cl,mypackage.mymodule:MyMethod""",
    )  # fmt: skip
    parser.add_argument("--methods", default="finetune,gpm,code-cl", help="names with commas (default %(default)s)")
    parser.add_argument(
        "--baseline", help="the method that forward transfer is measured against (default gpm, if it is among them)"
    )
    parser.add_argument("--out", type=Path, help="directory of the run directories (default runs/BENCHMARK)")
    parser.add_argument("--report", action="store_true", help="write a report on all runs below it to OUT/report")
    run_many_options(parser)


def compare(options: argparse.Namespace) -> int:
    methods = list(dict.fromkeys(name.strip() for name in options.methods.split(",") if name.strip()))
    if not methods:
        raise UsageError(f"--methods takes names with commas; got {options.methods!r}.")
    if options.baseline is not None and options.baseline not in methods:
        raise UsageError(unknown_name("baseline among the methods compared", options.baseline, methods))
    every = [
        make_recipe_for(options, {}, changes, method=method, seed=seed)
        for method, changes in changes_by_method(parse_changes(options), methods).items()
        for seed in parse_seeds(options)
    ]
    out = options.out or default_out(every[0])
    code = run_and_show(
        options,
        {run_name(recipe): recipe for recipe in every},
        out,
        lambda results: [compare_methods(list(results.values()), options.baseline or "gpm")] if results else [],
        {},
    )
    if options.report and any((out / name / RESULT).exists() for name in map(run_name, every)):
        print_report(out, options)
    return code


def print_report(out: Path, options: argparse.Namespace) -> None:
    """Write the report on the runs below ``out``, and say in a line for each condition what they show."""
    made = write_report([out], out / "report", figures=importlib.util.find_spec("matplotlib") is not None)
    if options.json:
        print_json({"report": str(out / "report" / PAGE), "headlines": dict(made.headlines)})
    else:
        print(printable("\n".join(["", *made.headlines.values(), f"report: {out / 'report' / PAGE}"])))


def changes_by_method(changes: dict[str, Any], methods: Sequence[str]) -> dict[str, dict[str, Any]]:
    """A setting that only some of the methods have goes to these; what none of them has is left for all to refuse."""
    settings = {method: _with_table(setting_defaults(find_method(method))) for method in methods}
    partial = {name for name in changes if any(name in has for has in settings.values())}
    return {m: {k: v for k, v in changes.items() if k not in partial or k in settings[m]} for m in methods}


def _with_table(settings: dict[str, Any]) -> set[str]:
    """The names of settings, also as ``settings.name``."""
    return {*settings, *(f"settings.{name}" for name in settings)}

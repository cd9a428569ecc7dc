"""``codecl repeat``: run the recipes of finished runs again, and see whether the same numbers come out."""

from __future__ import annotations

import argparse
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from codecl.benchmarks.data.images import MissingData
from codecl.cli.options import add_command, check_device, data_root, running_options, warn
from codecl.cli.run_many import launching_options, run_and_show
from codecl.errors import FAILED, UsageError
from codecl.report.records import Run, find_runs
from codecl.report.repetition import compare_repetitions
from codecl.runs.recipe import Recipe
from codecl.runs.run import make_stream
from codecl.runs.rundir import RunDirectory
from codecl.text import one_line


def add(commands: Any) -> None:
    parser = add_command(
        commands, "repeat", repeat, "run the recipes of finished runs again, and compare the numbers",
        """
  codecl repeat results --out runs/again            every run below results, the shortest first
  codecl repeat results --only 'permuted-digits/*' --jobs 2
  codecl repeat runs/a                              one run""",
    )  # fmt: skip
    parser.add_argument("directory", type=Path, metavar="DIR", help="a directory with finished runs in or below it")
    parser.add_argument(
        "--out", type=Path, default=Path("runs/again"), help="directory of the new runs (default %(default)s)"
    )
    parser.add_argument(
        "--only", action="append", default=[], metavar="PATTERN", help="runs whose name fits, as with *; repeatable"
    )
    parser.add_argument("--trust", action="store_true", help="run the code that a recipe names")
    launching_options(parser)
    running_options(parser)


def repeat(options: argparse.Namespace) -> int:
    runs = _chosen(options)
    recipes = {name: RunDirectory(run.record.path, options.trust).recipe() for name, run in runs.items()}
    for recipe in recipes.values():
        check_device(recipe.device)
    possible = _with_data(recipes, data_root(options))
    recorded = {name: runs[name].result for name in possible}
    code = run_and_show(
        options,
        possible,
        options.out,
        lambda results: [compare_repetitions(recorded, results)] if results else [],
        {"recorded": {name: result.to_fields() for name, result in recorded.items()}},
    )
    return code if len(possible) == len(recipes) else code or FAILED


def _with_data(recipes: dict[str, Recipe], root: Path) -> dict[str, Recipe]:
    """Those of ``recipes`` whose data are there; which are not is said, a line for each benchmark."""
    missing: dict[str, MissingData] = {}
    for recipe in {recipe.benchmark: recipe for recipe in recipes.values()}.values():
        try:
            make_stream(recipe, root)
        except MissingData as error:
            missing[recipe.benchmark] = error
    possible = {name: recipe for name, recipe in recipes.items() if recipe.benchmark not in missing}
    if missing and not possible:
        raise next(iter(missing.values()))
    for benchmark, reason in missing.items():
        runs = sum(recipe.benchmark == benchmark for recipe in recipes.values())
        warn(f"{benchmark}, {runs} of {len(recipes)} runs, is left out: {reason}")
    return possible


def _chosen(options: argparse.Namespace) -> dict[str, Run]:
    """The finished runs to repeat by name, those first that took the shortest time."""
    top: Path = options.directory
    if options.out.resolve().is_relative_to(top.resolve()):
        raise UsageError(f"--out {options.out} lies in {top}, whose runs are to be repeated: choose another.")
    found = find_runs([top], top)
    for name, reason in found.skipped_as("unfinished", "damaged"):
        warn(one_line(f"{name} is left out: {reason}"))
    named = {top.resolve().name if run.name == "." else run.name: run for run in found.runs}
    runs = {
        name: run
        for name, run in sorted(named.items(), key=lambda item: sum(item[1].result.seconds.values()))
        if not options.only or any(fnmatchcase(name, pattern) for pattern in options.only)
    }
    if not runs:
        fits = f" fits {', '.join(options.only)}" if named else " in or below it is finished"
        raise UsageError(f"{top}: no run{fits}.")
    return runs

"""What ``compare`` and ``sweep`` share: several runs at a time, watched together."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from codecl.benchmarks.registry import find_benchmark
from codecl.cli.options import Parser, data_root, recipe_options, say
from codecl.errors import FAILED, UsageError
from codecl.runs.progress import ShowProgress, print_json
from codecl.runs.recipe import Recipe
from codecl.runs.run_many import Failure, run_all

Tree = dict[str, Any]


def several_options(parser: Parser) -> None:
    parser.add_argument("--seeds", default="0", help="numbers with commas (default %(default)s)")
    parser.add_argument("--jobs", type=int, default=1, help="how many runs at a time (default 1)")
    recipe_options(parser)


def seeds_of(options: argparse.Namespace) -> list[int]:
    try:
        return list(dict.fromkeys(int(seed) for seed in options.seeds.split(",")))
    except ValueError:
        raise UsageError(f"--seeds takes whole numbers with commas; got {options.seeds!r}.") from None


def run_and_show(
    options: argparse.Namespace, recipes: Mapping[str, Recipe], out: Path
) -> tuple[dict[str, Tree], list[Failure]]:
    """Results and failures of ``recipes``, each in the directory of its name below ``out``."""
    if options.jobs < 1:
        raise UsageError(f"--jobs must be 1 or more; got {options.jobs}.")
    shows: dict[str, ShowProgress] = {}

    def on_event(name: str, event: Tree) -> None:
        if options.json:
            print_json({"run": name, **event})
        elif not options.quiet:
            recipe = recipes[name]
            tasks = recipe.tasks or find_benchmark(recipe.benchmark).tasks
            shows.setdefault(name, ShowProgress(tasks, recipe.training["epochs"], label=name))(event)

    ended = run_all(recipes, out, options.jobs, on_event, data_root(options))
    for show in shows.values():
        show.close()
    return ended


def exit_code(failures: Sequence[Failure]) -> int:
    """What it is for these ``failures``, once they are told."""
    for failure in failures:
        say(f"codecl: {failure.name} failed: {failure.words}")
    return FAILED if failures else 0

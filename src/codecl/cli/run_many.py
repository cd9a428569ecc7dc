"""Several runs at a time, watched together: what ``compare`` and ``sweep`` share."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path

from codecl.cli.options import Parser, data_root, recipe_options, say
from codecl.errors import FAILED, UsageError
from codecl.runs.events import Event
from codecl.runs.progress import open_display, print_json
from codecl.runs.recipe import Recipe
from codecl.runs.records import Result
from codecl.runs.run_many import Failure, run_all


def run_many_options(parser: Parser) -> None:
    parser.add_argument("--seeds", default="0", help="numbers with commas (default %(default)s)")
    parser.add_argument("--jobs", type=int, default=1, help="how many runs at a time (default 1)")
    recipe_options(parser)


def parse_seeds(options: argparse.Namespace) -> list[int]:
    try:
        return list(dict.fromkeys(int(seed) for seed in options.seeds.split(",")))
    except ValueError:
        raise UsageError(f"--seeds takes whole numbers with commas; got {options.seeds!r}.") from None


def run_and_show(
    options: argparse.Namespace, recipes: Mapping[str, Recipe], out: Path
) -> tuple[dict[str, Result], list[Failure]]:
    """Results and failures of ``recipes``, each in the directory of its name below ``out``."""
    if options.jobs < 1:
        raise UsageError(f"--jobs must be 1 or more; got {options.jobs}.")
    if options.json:
        return run_all(recipes, out, options.jobs, _print_event, data_root(options))
    if options.quiet:
        return run_all(recipes, out, options.jobs, lambda name, event: None, data_root(options))
    display = open_display(recipes)
    try:
        return run_all(recipes, out, options.jobs, display.show, data_root(options))
    finally:
        display.close()


def _print_event(name: str, event: Event) -> None:
    print_json({"run": name, **event.to_fields()})


def exit_code(failures: Sequence[Failure]) -> int:
    """The exit code for these ``failures``, which are said on standard error."""
    for failure in failures:
        say(f"codecl: {failure.name} failed: {failure.reason}")
    return FAILED if failures else 0

"""Several runs at a time, watched together: what ``compare``, ``sweep`` and ``repeat`` share."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from codecl.cli.options import Parser, check_trackers, data_root, display_for, recipe_options, warn
from codecl.errors import FAILED, UsageError
from codecl.runs.launch import LOCAL, command, find_launcher
from codecl.runs.progress import print_json
from codecl.runs.recipe import Recipe
from codecl.runs.records import Result
from codecl.runs.run_many import prepare_all, run_all
from codecl.runs.trackers import parent_run

MOST_NAMES = 12
"""Of run directories that are listed at the end."""


def run_many_options(parser: Parser) -> None:
    parser.add_argument("--seeds", default="0", help="numbers with commas (default %(default)s)")
    launching_options(parser)
    recipe_options(parser)


def launching_options(parser: Parser) -> None:
    """Where many runs are carried out, and how many at a time."""
    parser.add_argument(
        "--jobs", type=int, help="how many runs at a time (default 1; elsewhere as many as there are CPUs for)"
    )
    parser.add_argument(
        "--on", default=LOCAL, metavar="PLACE", help="local (default), slurm, ray, or ray://HOST:PORT of a cluster"
    )
    parser.add_argument(
        "--prepare", action="store_true", help="write the run directories and print a command for each, to run anywhere"
    )


def parse_seeds(options: argparse.Namespace) -> list[int]:
    try:
        return list(dict.fromkeys(int(seed) for seed in options.seeds.split(",")))
    except ValueError:
        raise UsageError(f"--seeds takes whole numbers with commas; got {options.seeds!r}.") from None


def run_and_show(
    options: argparse.Namespace,
    recipes: Mapping[str, Recipe],
    out: Path,
    tables: Callable[[Mapping[str, Result]], Iterable[str]],
    fields: Mapping[str, Any],
) -> int:
    """Run ``recipes``, each in the directory of its name below ``out``, and print what came of them.

    Args:
        options: What the user asked for.
        recipes: What to run, by name.
        out: The directory of the run directories.
        tables: Makes the tables of results by name.
        fields: What ``--json`` prints besides results and failures.

    Returns:
        ``FAILED`` if a run failed; why is said on standard error.
    """
    if options.jobs is not None and options.jobs < 1:
        raise UsageError(f"--jobs must be 1 or more; got {options.jobs}.")
    check_trackers(options)
    root = data_root(options)
    if options.prepare:
        for directory in prepare_all(recipes, out, root).values():
            print(shlex.join(["codecl", *command(directory.path, root, options.accept, options.track)]))
        return 0
    jobs = options.jobs or (1 if options.on == LOCAL else len(recipes))
    tell = (lambda text: None) if options.quiet else warn
    launcher = find_launcher(options.on, root, options.accept, options.track, tell)
    parent = parent_run(options.track, out, next(iter(recipes.values())).benchmark, warn)
    with closing(display_for(options, recipes)) as display:
        results, failures = run_all(recipes, out, jobs, display.show, root, launcher, parent)
    if options.json:
        ended = {"runs": list(results), "results": [result.to_fields() for result in results.values()]}
        print_json({**fields, **ended, "failures": [vars(failure) for failure in failures]})
    else:
        for table in tables(results):
            print(f"\n{table}")
        names = "/{" + ",".join(recipes) + "}" if len(recipes) <= MOST_NAMES else ""
        print(f"\nrecipes, logs and results: {out}{names}")
    for failure in failures:
        warn(f"{failure.name} failed: {failure.reason}")
    return FAILED if failures else 0

"""``codecl sweep --search``: what is printed of a search."""

from __future__ import annotations

import argparse
from pathlib import Path

from codecl.cli.options import check_trackers, data_root, default_out, make_recipe_for, parse_changes, say, warn
from codecl.cli.run_many import parse_seeds
from codecl.errors import FAILED, UsageError
from codecl.runs.launch import LOCAL
from codecl.runs.progress import print_json
from codecl.runs.search import Search, Trial, parse_ranges
from codecl.runs.trackers import parent_run
from codecl.text import table

SHOWN = 10
"""The trials that the table has."""


def search(options: argparse.Namespace) -> int:
    if options.vary or options.grid or options.prepare or options.on != LOCAL or options.jobs not in (None, 1):
        raise UsageError(
            "--search runs one trial at a time: leave out --vary, --grid, --prepare, --on and --jobs. Give the same "
            "command again, here or on another machine, to work on the same journal."
        )
    if options.trials < 1:
        raise UsageError(f"--trials must be 1 or more; got {options.trials}.")
    check_trackers(options)
    base = make_recipe_for(options, {})
    out: Path = options.out or default_out(base) / f"{base.method.replace(':', '.')}-search"
    found = Search(
        out,
        parse_ranges(options.search, base),
        lambda values: make_recipe_for(options, {}, parse_changes(options) | dict(values)),
        parse_seeds(options),
        data_root(options),
        (lambda text: None) if options.quiet else say,
        options.track,
        options.accept,
    )
    with parent_run(options.track, out, base.benchmark, warn):
        found.run(options.trials)
    trials = found.ended()
    best = trials[0] if trials and trials[0].state == "complete" else None
    if options.json:
        print_json({"trials": [vars(trial) for trial in trials], "best": best and best.number})
    else:
        print(_table(trials))
        if best is not None:
            print(f"\nthe best recipe: {found.directory(best.number)}/seed{found.seeds[0]}/recipe.toml")
    return FAILED if best is None else 0


def _table(trials: list[Trial]) -> str:
    names = list(dict.fromkeys(name for trial in trials for name in trial.values))
    rows = [
        [
            str(trial.number),
            *(f"{trial.values[name]:.4g}" if name in trial.values else "–" for name in names),
            "–" if trial.accuracy is None else f"{trial.accuracy:.2f}",
            trial.state,
        ]
        for trial in trials[:SHOWN]
    ]
    more = f"\nand {len(trials) - SHOWN} more" if len(trials) > SHOWN else ""
    return table(["trial", *names, "validation %", "state"], rows) + more

"""``codecl run``: one recipe, from the start or from where it stopped."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from codecl.cli.options import (
    add_command,
    check_device,
    data_root,
    default_out,
    make_recipe_for,
    recipe_options,
    say,
)
from codecl.errors import UsageError
from codecl.runs.events import NoticeEvent
from codecl.runs.plugins import title
from codecl.runs.progress import open_display, print_json
from codecl.runs.recipe import Recipe, read_recipe
from codecl.runs.records import Result
from codecl.runs.run import run
from codecl.runs.run_many import run_name
from codecl.runs.rundir import RunDirectory
from codecl.runs.trackers import TRACKERS, check_tracker
from codecl.text import duration, size

NOT_RECIPE = ("command", "resume", "restart", "dry_run", "track", "data_dir", "quiet", "json")
"""Options that say nothing about the recipe."""


def add(commands: Any) -> None:
    parser = add_command(
        commands, "run", run_one, "learn a benchmark with one method, or go on with a run that was stopped",
        """
  codecl run                                        the embedded benchmark with CODE-CL
  codecl run --method finetune --seed 1 --out runs/a
  codecl run --set aperture=8 --set lr=0.05 --epochs 10
  codecl run recipe.toml --out runs/b               what the file does not say is filled in
  codecl run --resume runs/a                        go on, to the very same numbers
  codecl run --dry-run > recipe.toml                the complete recipe, without running it""",
    )  # fmt: skip
    parser.add_argument("recipe", nargs="?", type=Path, metavar="RECIPE.toml", help="a recipe file")
    parser.add_argument("--method", help="a method name (codecl methods), or package.module:Class")
    parser.add_argument("--seed", type=int, help="of all random streams (default 0)")
    parser.add_argument("--out", type=Path, help="run directory (default runs/BENCHMARK/METHOD-seedN)")
    parser.add_argument("--resume", type=Path, metavar="DIR", help="go on with the run in DIR")
    parser.add_argument("--restart", action="store_true", help="begin again, forgetting what the run directory has")
    parser.add_argument("--dry-run", action="store_true", help="print the complete recipe and stop")
    trackers = ", ".join(TRACKERS)
    parser.add_argument("--track", action="append", default=[], metavar="TRACKER", help=f"also to {trackers}")
    recipe_options(parser)


def run_one(options: argparse.Namespace) -> int:
    for name in options.track:
        check_tracker(name)
    recipe, directory = _resumed(options) if options.resume is not None else _new(options)
    if options.dry_run:
        print(recipe.to_toml(), end="")
        return 0
    if options.restart and directory.recipe_file.exists():
        directory.ensure_fits(recipe)
        directory.restart()
    was_finished = directory.result() is not None
    result = _run_and_show(options, recipe, directory)
    if options.json:
        print_json({"result": result.to_fields()})
    else:
        print("this run was finished already:\n" * was_finished + _summary(result, directory.path))
    return 0


def _resumed(options: argparse.Namespace) -> tuple[Recipe, RunDirectory]:
    given = [name for name, value in vars(options).items() if not (value is None or value is False or value == [])]
    if asked := [name for name in given if name not in NOT_RECIPE]:
        raise UsageError(f"--resume takes the recipe of its directory as it is: leave out {', '.join(asked)}.")
    directory = RunDirectory(options.resume)
    recipe = directory.recipe()
    check_device(recipe.device)
    return recipe, directory


def _new(options: argparse.Namespace) -> tuple[Recipe, RunDirectory]:
    recipe = make_recipe_for(options, read_recipe(options.recipe) if options.recipe else {})
    return recipe, RunDirectory(options.out or default_out(recipe) / run_name(recipe))


def _run_and_show(options: argparse.Namespace, recipe: Recipe, directory: RunDirectory) -> Result:
    root, track = data_root(options), options.track
    if options.json:
        directory.on_notice = lambda text: print_json(NoticeEvent(text).to_fields())
        return run(recipe, directory, [lambda event: print_json(event.to_fields())], root, track)
    if options.quiet:
        directory.on_notice = lambda text: say(f"codecl: {text}")
        return run(recipe, directory, (), root, track)
    display = open_display({"": recipe})
    directory.on_notice = lambda text: display.show("", NoticeEvent(text))
    try:
        return run(recipe, directory, [lambda event: display.show("", event)], root, track)
    finally:
        display.close()


def _summary(result: Result, path: Path) -> str:
    bwt = "–" if result.bwt is None else f"{result.bwt:+.2f}"
    seconds = {name: duration(value) for name, value in result.seconds.items()}
    return (
        f"{title(result.method)} on {result.benchmark}, seed {result.seed}: ACC {result.acc:.2f} %, BWT {bwt} %\n"
        f"training {seconds['train']}, between tasks {seconds['between_tasks']}, evaluation {seconds['evaluate']}; "
        f"memory {size(result.bytes['memory'])}\n"
        f"{path}/result.json, log.jsonl, recipe.toml, final.ckpt"
    )

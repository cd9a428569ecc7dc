"""``codecl run``: one recipe, from the start or from where it stopped."""

from __future__ import annotations

import argparse
from contextlib import closing
from pathlib import Path
from typing import Any

from torch.distributed import ProcessGroup

from codecl.cli.options import (
    add_command,
    check_device,
    check_trackers,
    data_root,
    default_out,
    display_for,
    make_recipe_for,
    recipe_options,
)
from codecl.errors import UsageError
from codecl.runs.events import NoticeEvent
from codecl.runs.processes import is_first, joined
from codecl.runs.progress import print_json
from codecl.runs.recipe import Recipe, read_recipe, refuse_foreign
from codecl.runs.records import Result
from codecl.runs.run import follow, run
from codecl.runs.run_many import run_name
from codecl.runs.rundir import RunDirectory
from codecl.text import duration, size

NOT_RECIPE = ("command", "resume", "restart", "dry_run", "track", "data_dir", "quiet", "json", "trust", "accept")
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
    parser.add_argument("--trust", action="store_true", help="run the code that the recipe in a file names")
    parser.add_argument("--dry-run", action="store_true", help="print the complete recipe and stop")
    recipe_options(parser)


def run_one(options: argparse.Namespace) -> int:
    check_trackers(options)
    recipe, directory = _resumed(options) if options.resume is not None else _new(options)
    if options.dry_run:
        print(recipe.to_toml(), end="")
        return 0
    with joined(recipe.device) as group:
        if group is not None and not is_first(group):
            follow(recipe, data_root(options), group)
        else:
            _run_and_show(recipe, directory, options, group)
    return 0


def _run_and_show(
    recipe: Recipe, directory: RunDirectory, options: argparse.Namespace, group: ProcessGroup | None
) -> None:
    if options.restart and directory.recipe_file.exists():
        directory.ensure_fits(recipe)
        directory.restart()
    was_finished = directory.result() is not None
    with closing(display_for(options, {"": recipe})) as display:
        directory.on_notice = lambda text: display.show("", NoticeEvent(text))
        show = [lambda event: display.show("", event)]
        result = run(recipe, directory, show, data_root(options), options.track, group)
    if options.json:
        print_json({"result": result.to_fields()})
    else:
        print("this run was finished already:\n" * was_finished + _summary(result, directory.path))


def _resumed(options: argparse.Namespace) -> tuple[Recipe, RunDirectory]:
    given = [name for name, value in vars(options).items() if not (value is None or value is False or value == [])]
    if asked := [name for name in given if name not in NOT_RECIPE]:
        raise UsageError(f"--resume takes the recipe of its directory as it is: leave out {', '.join(asked)}.")
    directory = RunDirectory(options.resume, options.trust, options.accept)
    recipe = directory.recipe()
    check_device(recipe.device)
    return recipe, directory


def _new(options: argparse.Namespace) -> tuple[Recipe, RunDirectory]:
    given = read_recipe(options.recipe) if options.recipe else {}
    if not options.trust:
        named_here = {name for name in ("method", "benchmark") if getattr(options, name) is not None}
        refuse_foreign({name: value for name, value in given.items() if name not in named_here}, options.recipe)
    recipe = make_recipe_for(options, given)
    out = options.out or default_out(recipe) / run_name(recipe)
    return recipe, RunDirectory(out, options.trust, options.accept)


def _summary(result: Result, path: Path) -> str:
    bwt = "–" if result.bwt is None else f"{result.bwt:+.2f}"
    seconds = {name: duration(value) for name, value in result.seconds.items()}
    unnamed = ""
    if found := result.inference:
        unnamed = (
            f"without telling the task: ACC {found['inferred']:.2f} %, tasks inferred {found['tasks_right']:.2f} %; "
            f"{found['together']} inputs together: {found['inferred_together']:.2f} %, "
            f"{found['tasks_right_together']:.2f} %\n"
        )
    return (
        f"{result.title} on {result.benchmark}, seed {result.seed}: ACC {result.acc:.2f} %, BWT {bwt} %\n"
        f"{unnamed}training {seconds['train']}, between tasks {seconds['between_tasks']}, "
        f"evaluation {seconds['evaluate']}; "
        f"memory {size(result.bytes['memory'])}\n"
        f"{path}/result.json, log.jsonl, recipe.toml, final.ckpt"
    )

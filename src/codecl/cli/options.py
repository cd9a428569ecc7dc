"""What the commands share: how one is added, the options of a recipe, and what becomes of them."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NoReturn

import torch

from codecl.benchmarks.data.sources import find_root
from codecl.benchmarks.registry import EMBEDDED
from codecl.errors import USAGE, UsageError
from codecl.runs.plugins import find_method
from codecl.runs.progress import Display, JsonDisplay, open_display
from codecl.runs.provenance import ACCEPTABLE
from codecl.runs.recipe import Recipe, make_recipe, parse_change
from codecl.runs.trackers import TRACKERS, check_tracker
from codecl.text import shown


class Parser(argparse.ArgumentParser):
    """Says what is wrong in one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(USAGE, f"{self.prog}: {message}\n")


def add_command(
    commands: Any, name: str, function: Callable[[argparse.Namespace], int], summary: str, examples: str = ""
) -> Parser:
    """A parser for the command ``name``, which ``function`` runs; the exit code is what it returns."""
    parser: Parser = commands.add_parser(
        name, help=summary, description=summary[0].upper() + summary[1:] + ".",
        epilog=f"examples:{examples}" if examples else None, formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.set_defaults(command=function)
    return parser


def recipe_options(parser: Parser) -> None:
    """The options of every command that makes a recipe and runs it."""
    add = parser.add_argument
    add("--benchmark", help=f"a benchmark name (codecl benchmarks; default {EMBEDDED}), or package.module:NAME")
    add(
        "--preset",
        help="paper (default) or official: as the paper prints, or as its authors run; own: CODE-CL with weights "
        "of a task's own; fast, fast-official or fast-own: the same settings in a few annealed epochs, for a laptop",
    )
    add("--tasks", type=int, metavar="N", help="the first N tasks only")
    add("--epochs", type=int, metavar="N", help="at most N epochs a task")
    add("--evaluate", metavar="WHEN", help="test all tasks so far after: all tasks (default), the last, or every:N")
    add("--set", action="append", default=[], metavar="NAME=VALUE", help="any hyperparameter; repeatable")
    add("--infer-tasks", action="store_true", help="after the last task, also measure without telling the task")
    add("--device", choices=["auto", "cpu", "cuda", "mps"], help="where to compute (default auto)")
    add("--threads", type=int, help="CPU threads of a run, part of the recipe (default 1)")
    running_options(parser)


def running_options(parser: Parser) -> None:
    """What is no part of a recipe: where the data are, what may have changed, and what is shown where."""
    add = parser.add_argument
    data_option(parser)
    add("--accept", action="append", default=[], choices=ACCEPTABLE, help="go on though this changed; repeatable")
    add("--track", action="append", default=[], metavar="TRACKER", help=f"also to {', '.join(TRACKERS)}; repeatable")
    add("--quiet", action="store_true", help="no progress, only the result")
    add("--json", action="store_true", help="events and result as lines of JSON")


def data_option(parser: Parser) -> None:
    parser.add_argument(
        "--data-dir", type=Path, metavar="DIR", help="where the data sets are (default $CODECL_DATA, or ./data)"
    )


def make_recipe_for(
    options: argparse.Namespace, given: dict[str, Any], changes: dict[str, Any] | None = None, **fixed: Any
) -> Recipe:
    """The recipe that ``options`` ask for, over what a file has ``given``; ``changes`` in place of ``--set``."""
    names = ("method", "benchmark", "preset", "seed", "threads", "tasks", "device")
    asked = given | {name: value for name in names if (value := getattr(options, name, None)) is not None}
    asked["device"] = check_device(asked.get("device", "auto"))
    if options.epochs is not None and options.epochs < 1:
        raise UsageError(f"--epochs must be 1 or more; got {options.epochs}.")
    changes = parse_changes(options) if changes is None else changes
    if options.infer_tasks:
        protects = find_method(asked.get("method", fixed.get("method", "code-cl"))).protects
        changes = {"infer_tasks": True} | ({"evidence": "auto"} if protects else {}) | changes
    return make_recipe(asked | fixed, changes, options.epochs)


def parse_changes(options: argparse.Namespace) -> dict[str, Any]:
    """What ``--set`` and ``--evaluate`` say, by name."""
    changes: dict[str, Any] = {}
    for name, value in map(parse_change, options.set):
        if name in changes:
            raise UsageError(f"--set {name} is given twice: {shown(changes[name])} and {shown(value)}. Leave one out.")
        changes[name] = value
    for name in ("epochs", "evaluate"):
        if getattr(options, name) is not None and {name, f"training.{name}"} & changes.keys():
            raise UsageError(f"--{name} and --set {name} say the same: leave one out.")
    return changes | ({"evaluate": options.evaluate} if options.evaluate else {})


def data_root(options: argparse.Namespace) -> Path:
    return find_root(str(options.data_dir) if options.data_dir is not None else None)


def check_device(name: Any) -> str:
    available = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if name == "auto":
        return next(device for device in ("cuda", "mps", "cpu") if available[device])
    if not available.get(str(name)):
        raise UsageError(f"the device {name!r} is not available here; use auto or cpu.")
    return str(name)


def display_for(options: argparse.Namespace, recipes: Mapping[str, Recipe]) -> Display:
    """What ``--json`` and ``--quiet`` ask to see of these runs."""
    return JsonDisplay() if options.json else Display() if options.quiet else open_display(recipes)


def check_trackers(options: argparse.Namespace) -> None:
    for name in options.track:
        check_tracker(name)


def default_out(recipe: Recipe) -> Path:
    return Path("runs") / recipe.benchmark.replace(":", ".")


def say(text: str) -> None:
    """One line on standard error."""
    print(" ".join(text.splitlines()), file=sys.stderr)


def warn(text: str) -> None:
    """One line on standard error, under the name of the command."""
    say(f"codecl: {text}")

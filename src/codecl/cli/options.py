"""What the commands share: how one is added, the options of a recipe, and what becomes of them."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import torch

from codecl.benchmarks.data.sources import find_root
from codecl.benchmarks.registry import EMBEDDED
from codecl.errors import USAGE, UsageError
from codecl.runs.recipe import Recipe, make_recipe, parse_change


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
    """The options of every command that runs something."""
    parser.add_argument(
        "--benchmark", help=f"a benchmark name (codecl benchmarks; default {EMBEDDED}), or package.module:NAME"
    )
    parser.add_argument(
        "--preset",
        help="paper (default) or official: as the paper prints, or as its authors run; fast or fast-official: the same "
        "settings in a few annealed epochs, for a laptop",
    )
    parser.add_argument("--quick", action="store_true", help="at most 15 epochs a task")
    parser.add_argument("--tasks", type=int, metavar="N", help="the first N tasks only")
    parser.add_argument("--epochs", type=int, metavar="N", help="at most N epochs a task")
    parser.add_argument(
        "--set", action="append", default=[], metavar="NAME=VALUE", help="any hyperparameter; repeatable"
    )
    data_option(parser)
    parser.add_argument("--device", choices=["auto", "cpu", "cuda", "mps"], help="where to compute (default cpu)")
    parser.add_argument("--threads", type=int, help="CPU threads of a run, part of the recipe (default 1)")
    parser.add_argument("--quiet", action="store_true", help="no progress, only the result")
    parser.add_argument("--json", action="store_true", help="events and result as lines of JSON")


def data_option(parser: Parser) -> None:
    parser.add_argument(
        "--data-dir", type=Path, metavar="DIR", help="where the data sets are (default $CODECL_DATA, or ./data)"
    )


def make_recipe_for(
    options: argparse.Namespace, given: dict[str, Any], changes: dict[str, Any] | None = None, **fixed: Any
) -> Recipe:
    """The recipe that ``options`` ask for, over what a file has ``given``; ``changes`` in place of ``--set``."""
    asked = dict(given)
    for name in ("method", "benchmark", "preset", "seed", "threads", "tasks"):
        if (value := getattr(options, name, None)) is not None:
            asked[name] = value
    if options.quick:
        asked["quick"] = True
    asked["device"] = check_device(options.device or asked.get("device", "cpu"))
    if options.epochs is not None and options.epochs < 1:
        raise UsageError(f"--epochs must be 1 or more; got {options.epochs}.")
    return make_recipe(asked | fixed, parse_changes(options) if changes is None else changes, options.epochs)


def parse_changes(options: argparse.Namespace) -> dict[str, Any]:
    """What ``--set`` says, by name."""
    return dict(parse_change(text) for text in options.set)


def data_root(options: argparse.Namespace) -> Path:
    return find_root(str(options.data_dir) if options.data_dir is not None else None)


def check_device(name: Any) -> str:
    available = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if name == "auto":
        return next(device for device in ("cuda", "mps", "cpu") if available[device])
    if not available.get(name if isinstance(name, str) else ""):
        raise UsageError(f"the device {name!r} is not available here; use auto or cpu.")
    return str(name)


def default_out(recipe: Recipe) -> Path:
    return Path("runs") / recipe.benchmark.replace(":", ".")


def say(text: str) -> None:
    """One line on standard error."""
    print(" ".join(text.splitlines()), file=sys.stderr)

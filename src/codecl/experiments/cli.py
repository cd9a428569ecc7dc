"""The command ``codecl``."""

from __future__ import annotations

import argparse
import errno
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

import torch

import codecl
from codecl.experiments import compare as comparing
from codecl.experiments import data_command, listings
from codecl.experiments.data.sources import find_root
from codecl.experiments.progress import ShowProgress, duration, print_json, size
from codecl.experiments.recipe import Recipe, make_recipe, parse_change, read_recipe, setting_defaults
from codecl.experiments.registry import EMBEDDED, find_benchmark, find_method, title
from codecl.experiments.run import run
from codecl.experiments.rundir import RunDirectory
from codecl.experiments.trackers import TRACKERS, check_tracker
from codecl.experiments.usage import UsageError
from codecl.methods.footprint import Layer
from codecl.training.schedule import Diverged

USAGE, FAILED, STOPPED = 2, 1, 130
FULL = (errno.ENOSPC, errno.EDQUOT)
SHOWN_ONLY = ("command", "resume", "dry_run", "track", "data_dir", "quiet", "json")
"""Options of ``run`` that say nothing about the recipe."""


class Parser(argparse.ArgumentParser):
    """Says what is wrong in one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(USAGE, f"{self.prog}: {message}\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code."""
    parser = build_parser()
    options = parser.parse_args(arguments)
    try:
        code: int = options.command(options)
        sys.stdout.flush()  # here, where a reader that has gone is no error
        return code
    except (UsageError, ModuleNotFoundError) as error:
        return _say(f"codecl: {error}", USAGE)
    except Diverged as error:
        return _say(f"codecl: {error}", FAILED)
    except KeyboardInterrupt:
        return _say("codecl: stopped. What was computed is kept; the same command again goes on.", STOPPED)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except OSError as error:
        full = " Free some space; the same command again goes on." if error.errno in FULL else ""
        return _say(f"codecl: {error}.{full}", FAILED)


def build_parser() -> argparse.ArgumentParser:
    parser = Parser(prog="codecl", description="Continual learning by gradient projection.")
    parser.add_argument("--version", action="version", version=f"codecl {codecl.__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True, parser_class=Parser)

    one = _command(
        commands, "run", _run, "learn a benchmark with one method, or go on with a run that was stopped",
        """
  codecl run                                        the embedded benchmark with CODE-CL
  codecl run --method finetune --seed 1 --out runs/a
  codecl run --set aperture=8 --set lr=0.05 --epochs 10
  codecl run recipe.toml --out runs/b               what the file does not say is filled in
  codecl run --resume runs/a                        go on, to the very same numbers
  codecl run --dry-run > recipe.toml                the complete recipe, without running it""",
    )  # fmt: skip
    one.add_argument("recipe", nargs="?", type=Path, metavar="RECIPE.toml", help="a recipe file")
    one.add_argument("--method", help="a method name (codecl methods), or package.module:Class")
    one.add_argument("--seed", type=int, help="of all random streams (default 0)")
    one.add_argument("--out", type=Path, help="run directory (default runs/BENCHMARK/METHOD-seedN)")
    one.add_argument("--resume", type=Path, metavar="DIR", help="go on with the run in DIR")
    one.add_argument("--dry-run", action="store_true", help="print the complete recipe and stop")
    one.add_argument("--track", action="append", default=[], metavar="TRACKER", help=f"also to {', '.join(TRACKERS)}")
    _shared_options(one)

    many = _command(
        commands, "compare", _compare, "run several methods with several seeds, and compare them",
        """
  codecl compare                                    fine-tuning, GPM and CODE-CL on the embedded benchmark
  codecl compare --methods code-cl,finetune --seeds 0,1,2 --jobs 2 --out runs/c
  codecl compare --methods code-cl,mypackage.mymodule:MyMethod""",
    )  # fmt: skip
    many.add_argument("--methods", default="finetune,gpm,code-cl", help="names with commas (default %(default)s)")
    many.add_argument("--seeds", default="0", help="numbers with commas (default %(default)s)")
    many.add_argument(
        "--baseline", default="gpm", help="the method that forward transfer is measured against (default gpm)"
    )
    many.add_argument("--jobs", type=int, default=1, help="how many runs at a time (default 1)")
    many.add_argument("--out", type=Path, help="directory of the run directories (default runs/BENCHMARK)")
    _shared_options(many)

    data = _command(
        commands, "data", _data, "see which data sets are there, or download those that may be downloaded",
        """
  codecl data check
  codecl data get cifar100 mnist --data-dir DATA""",
    )  # fmt: skip
    data.add_argument("action", choices=["check", "get"], help="check what is there, or get what is not")
    data.add_argument("names", nargs="*", metavar="NAME", help="data sets to get (default all)")
    _data_option(data)

    footprint = _command(
        commands, "memory", _memory, "print what each projection method stores for one fully connected layer"
    )
    for letter, name, default, what in (
        ("N", "inputs", 1024, "of the layer"),
        ("M", "outputs", 2048, "of the layer"),
        ("T", "tasks", 10, "learned"),
        ("B", "directions", 80, "that each task adds"),
        ("K", "free", 80, "directions that CODE-CL frees"),
    ):
        footprint.add_argument(
            f"--{name}", type=int, default=default, metavar=letter, help=f"{what} (default {default})"
        )

    _command(commands, "methods", _methods, "list the methods and their hyperparameters")
    _command(commands, "benchmarks", _benchmarks, "list the benchmarks")
    return parser


def _command(commands: Any, name: str, function: Any, summary: str, examples: str = "") -> Parser:
    parser: Parser = commands.add_parser(
        name, help=summary, description=summary[0].upper() + summary[1:] + ".",
        epilog=f"examples:{examples}" if examples else None, formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.set_defaults(command=function)
    return parser


def _shared_options(parser: Parser) -> None:
    parser.add_argument("--benchmark", help=f"a benchmark name (codecl benchmarks; default {EMBEDDED})")
    parser.add_argument("--preset", help="paper (default) or official: as the paper prints, or as its authors run")
    parser.add_argument("--quick", action="store_true", help="at most 15 epochs a task")
    parser.add_argument("--tasks", type=int, metavar="N", help="the first N tasks only")
    parser.add_argument("--epochs", type=int, metavar="N", help="at most N epochs a task")
    parser.add_argument(
        "--set", action="append", default=[], metavar="NAME=VALUE", help="any hyperparameter; repeatable"
    )
    _data_option(parser)
    parser.add_argument("--device", choices=["auto", "cpu", "cuda", "mps"], help="where to compute (default cpu)")
    parser.add_argument("--threads", type=int, help="CPU threads of a run, part of the recipe (default 1)")
    parser.add_argument("--quiet", action="store_true", help="no progress, only the result")
    parser.add_argument("--json", action="store_true", help="events and result as lines of JSON")


def _data_option(parser: Parser) -> None:
    parser.add_argument(
        "--data-dir", type=Path, metavar="DIR", help="where the data sets are (default $CODECL_DATA, or ./data)"
    )


def _recipe(
    options: argparse.Namespace, given: dict[str, Any], changes: dict[str, Any] | None = None, **fixed: Any
) -> Recipe:
    asked = dict(given)
    for name in ("method", "benchmark", "preset", "seed", "threads", "tasks"):
        if (value := getattr(options, name, None)) is not None:
            asked[name] = value
    if options.quick:
        asked["quick"] = True
    asked["device"] = _device(options.device or asked.get("device", "cpu"))
    if options.epochs is not None and options.epochs < 1:
        raise UsageError(f"--epochs must be 1 or more; got {options.epochs}.")
    return make_recipe(asked | fixed, _changes(options) if changes is None else changes, options.epochs)


def _changes(options: argparse.Namespace) -> dict[str, Any]:
    return dict(parse_change(text) for text in options.set)


def _data_root(options: argparse.Namespace) -> Path:
    return find_root(str(options.data_dir) if options.data_dir is not None else None)


def _device(name: Any) -> str:
    available = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if name == "auto":
        return next(device for device in ("cuda", "mps", "cpu") if available[device])
    if not available.get(name if isinstance(name, str) else ""):
        raise UsageError(f"the device {name!r} is not available here; use auto or cpu.")
    return str(name)


def _run(options: argparse.Namespace) -> int:
    for name in options.track:
        check_tracker(name)
    if options.resume is not None:
        given = [name for name, value in vars(options).items() if not (value is None or value is False or value == [])]
        if asked := [name for name in given if name not in SHOWN_ONLY]:
            raise UsageError(f"--resume takes the recipe of its directory as it is: leave out {', '.join(asked)}.")
        directory = RunDirectory(options.resume)
        recipe = directory.recipe()
        _device(recipe.device)
    else:
        recipe = _recipe(options, read_recipe(options.recipe) if options.recipe else {})
        directory = RunDirectory(options.out or _default_out(recipe) / comparing.run_name(recipe))
    if options.dry_run:
        print(recipe.to_toml(), end="")
        return 0
    was_finished = directory.result() is not None
    result = _run_and_show(options, recipe, directory)
    if options.json:
        print_json({"result": result})
    else:
        print("this run was finished already:\n" * was_finished + _summary(result, directory.path))
    return 0


def _run_and_show(options: argparse.Namespace, recipe: Recipe, directory: RunDirectory) -> dict[str, Any]:
    tasks = recipe.tasks or find_benchmark(recipe.benchmark).tasks
    show = ShowProgress(tasks, recipe.training["epochs"])
    observers: list[Any] = [print_json] if options.json else [] if options.quiet else [show]

    def notice(text: str) -> None:
        if observers:
            observers[0]({"event": "notice", "text": text})
        else:
            _say(f"codecl: {text}", 0)

    directory.on_notice = notice
    try:
        return run(recipe, directory, tuple(observers), _data_root(options), options.track)
    finally:
        show.close()


def _compare(options: argparse.Namespace) -> int:
    methods = list(dict.fromkeys(name.strip() for name in options.methods.split(",") if name.strip()))
    if not methods:
        raise UsageError(f"--methods takes names with commas; got {options.methods!r}.")
    if options.jobs < 1:
        raise UsageError(f"--jobs must be 1 or more; got {options.jobs}.")
    try:
        seeds = list(dict.fromkeys(int(seed) for seed in options.seeds.split(",")))
    except ValueError:
        raise UsageError(f"--seeds takes whole numbers with commas; got {options.seeds!r}.") from None
    recipes = [
        _recipe(options, {}, changes, method=method, seed=seed)
        for method, changes in _changes_by_method(_changes(options), methods).items()
        for seed in seeds
    ]
    out = options.out or _default_out(recipes[0])
    shows: dict[str, ShowProgress] = {}

    def on_event(name: str, event: dict[str, Any]) -> None:
        if options.json:
            print_json({"run": name, **event})
        elif not options.quiet:
            first = recipes[0]
            tasks = first.tasks or find_benchmark(first.benchmark).tasks
            shows.setdefault(name, ShowProgress(tasks, first.training["epochs"], label=name))(event)

    results, failures = comparing.run_all(recipes, out, options.jobs, on_event, _data_root(options))
    for show in shows.values():
        show.close()
    if options.json:
        print_json({"results": results, "failures": [vars(failure) for failure in failures]})
    else:
        if results:
            print(f"\n{comparing.comparison(results, options.baseline)}")
        print(f"\nrecipes, logs and results: {out}/{{{','.join(comparing.run_name(r) for r in recipes)}}}")
    for failure in failures:
        print(f"codecl: {failure.name} failed: {failure.words}", file=sys.stderr)
    return FAILED if failures else 0


def _data(options: argparse.Namespace) -> int:
    root = _data_root(options)
    if options.action == "check":
        return data_command.check(root)
    return data_command.get(root, options.names, data_command.ProgressBar(sys.stderr))


def _changes_by_method(changes: dict[str, Any], methods: Sequence[str]) -> dict[str, dict[str, Any]]:
    """A setting that only some of the methods have goes to these; what none of them has is left for all to refuse."""
    settings = {method: setting_defaults(find_method(method)) for method in methods}
    partial = {name for name in changes if any(name in has for has in settings.values())}
    return {m: {k: v for k, v in changes.items() if k not in partial or k in settings[m]} for m in methods}


def _methods(_: argparse.Namespace) -> int:
    print(listings.methods())
    return 0


def _benchmarks(_: argparse.Namespace) -> int:
    print(listings.benchmarks())
    return 0


def _memory(options: argparse.Namespace) -> int:
    print(listings.memory(Layer(options.inputs, options.outputs, options.tasks, options.directions, options.free)))
    return 0


def _default_out(recipe: Recipe) -> Path:
    return Path("runs") / recipe.benchmark


def _summary(result: dict[str, Any], path: Path) -> str:
    bwt = "–" if result["bwt"] is None else f"{result['bwt']:+.2f}"
    seconds = {name: duration(value) for name, value in result["seconds"].items()}
    return (
        f"{title(result['method'])} on {result['benchmark']}, seed {result['seed']}: "
        f"ACC {result['acc']:.2f} %, BWT {bwt} %\n"
        f"training {seconds['train']}, between tasks {seconds['between_tasks']}, evaluation {seconds['evaluate']}; "
        f"memory {size(result['bytes']['memory'])}\n"
        f"{path}/result.json, log.jsonl, recipe.toml, final.ckpt"
    )


def _say(text: str, code: int) -> int:
    print(" ".join(text.splitlines()), file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())

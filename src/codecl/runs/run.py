"""Running a recipe in a run directory, from the start or from where it stopped."""

from __future__ import annotations

import platform
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import torch

import codecl
from codecl.benchmarks.registry import find_benchmark, find_method
from codecl.errors import UsageError
from codecl.randomness import seeded
from codecl.runs.recipe import Recipe, takes_seed
from codecl.runs.rundir import RunDirectory
from codecl.runs.trackers import open_tracker
from codecl.training import metrics
from codecl.training.engine import Trainer

Tree = dict[str, Any]


def run(
    recipe: Recipe,
    directory: RunDirectory,
    observers: tuple[Callable[[Tree], None], ...] = (),
    root: Path = Path("data"),
    track: Sequence[str] = (),
) -> Tree:
    """The result of ``recipe``: at once if the directory has it, else by going on or beginning.

    What cannot be is refused before anything is written; ``track`` names the trackers that watch.
    """
    directory.check(recipe)
    if (result := directory.result()) is not None:
        return result
    torch.set_num_threads(recipe.threads)
    trainer = make_trainer(recipe, root, directory)
    with directory.locked(), ExitStack() as trackers:
        directory.open_for(recipe)
        if (result := directory.result()) is not None:  # another process has just finished it
            return result
        watching = [trackers.enter_context(closing(open_tracker(name, directory.path, recipe))) for name in track]
        trainer.observers = (directory.log, *observers, *watching)
        progress = trainer.run()
        result = _result(recipe, trainer)
        final = {
            "model": trainer.model.state_dict(),
            "method": trainer.method.state_dict(),
            "accuracy": progress.accuracy,
        }
        directory.finish(result, final)
        return result


def make_trainer(recipe: Recipe, root: Path, directory: RunDirectory | None = None) -> Trainer:
    """The stream, network and method that a recipe names; ``UsageError`` where one of them cannot be."""
    benchmark = find_benchmark(recipe.benchmark)
    stream = benchmark.stream(root, recipe.seed, **recipe.data)
    try:
        stream = stream.first(recipe.tasks)
    except ValueError as error:
        raise UsageError(str(error)) from None
    with seeded(recipe.seed, "init"):
        model = benchmark.network(stream, **recipe.data).to(recipe.device)
    found = find_method(recipe.method)
    settings = dict(recipe.settings) | ({"seed": recipe.seed} if takes_seed(found) else {})
    try:
        method = found(model, **settings)
    except (ValueError, TypeError) as error:
        raise UsageError(f"{recipe.method}: {error}") from error
    return Trainer(method, stream, recipe.plan(), directory)


def _result(recipe: Recipe, trainer: Trainer) -> Tree:
    A = trainer.progress.accuracy
    return {
        "method": recipe.method,
        "benchmark": recipe.benchmark,
        "preset": recipe.preset,
        "quick": recipe.quick,
        "seed": recipe.seed,
        "data": trainer.stream.data,
        "switches": dict(recipe.data),
        "tasks": len(trainer.stream),
        "accuracy": A,
        "acc": metrics.acc(A),
        "bwt": metrics.bwt(A),
        "epochs": trainer.progress.epochs,
        "seconds": {name: round(seconds, 3) for name, seconds in trainer.progress.seconds.items()},
        "bytes": trainer.method.bytes(),
        "threads": recipe.threads,
        "device": recipe.device,
        "training": dict(recipe.training),
        "settings": {k: list(v) if isinstance(v, tuple) else v for k, v in recipe.settings.items()},
        "versions": {"codecl": codecl.__version__, "torch": torch.__version__, "python": platform.python_version()},
    }

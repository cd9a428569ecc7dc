"""Running a recipe in a run directory, from the start or from where it stopped."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

import codecl
from codecl.errors import UsageError
from codecl.methods import Method
from codecl.randomness import seeded
from codecl.runs.events import Event, from_engine
from codecl.runs.plugins import find_benchmark, find_method
from codecl.runs.recipe import Recipe, takes_seed
from codecl.runs.records import Result
from codecl.runs.rundir import RunDirectory
from codecl.runs.trackers import open_tracker
from codecl.training.engine import Trainer
from codecl.training.stream import Stream

Observer = Callable[[Event], None]


def run(
    recipe: Recipe,
    directory: RunDirectory,
    observers: Sequence[Observer] = (),
    root: Path = Path("data"),
    track: Sequence[str] = (),
) -> Result:
    """The result of ``recipe``: at once if the directory has it, else by going on or beginning.

    What cannot be is refused before anything is written.

    Args:
        recipe: What to run.
        directory: Where its log, checkpoints and result are kept.
        observers: Called with every event.
        root: The directory of the data sets.
        track: The names of the trackers that watch.
    """
    directory.ensure_fits(recipe)
    if (result := directory.result()) is not None:
        return result
    torch.set_num_threads(recipe.threads)
    trainer = make_trainer(recipe, root, directory)
    with directory.locked(), ExitStack() as trackers:
        directory.open_for(recipe)
        if (result := directory.result()) is not None:  # another process has just finished it
            return result
        opened = [trackers.enter_context(closing(open_tracker(name, directory.path, recipe))) for name in track]
        watching: list[Observer] = [directory.log, *observers, *opened]

        def observe(fields: dict[str, Any]) -> None:
            event = from_engine(fields)
            for observer in watching:
                observer(event)

        trainer.observers = (observe,)
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
    stream = make_stream(recipe, root)
    return Trainer(make_method(recipe, stream), stream, recipe.plan(), directory)


def make_stream(recipe: Recipe, root: Path) -> Stream:
    stream = find_benchmark(recipe.benchmark).stream(root, recipe.seed, **recipe.data)
    try:
        return stream.first(recipe.tasks)
    except ValueError as error:
        raise UsageError(str(error)) from None


def make_method(recipe: Recipe, stream: Stream) -> Method:
    """The method, with the network that it teaches."""
    with seeded(recipe.seed, "init"):
        model = find_benchmark(recipe.benchmark).network(stream, **recipe.data).to(recipe.device)
    method = find_method(recipe.method)
    settings = dict(recipe.settings) | ({"seed": recipe.seed} if takes_seed(method) else {})
    try:
        return method(model, **settings)
    except (ValueError, TypeError) as error:
        raise UsageError(f"{recipe.method}: {error}") from error


def refuse_impossible(recipes: Iterable[Recipe], root: Path) -> None:
    """``UsageError`` if one of ``recipes`` cannot run; the data of each benchmark are read once, for one seed."""
    by_stream: dict[str, dict[str, Recipe]] = {}
    for recipe in recipes:
        recipe = replace(recipe, device="cpu", seed=0)
        stream_alone = replace(recipe, method="", training={}, settings={}, preset="", quick=False, threads=1)
        by_stream.setdefault(stream_alone.to_toml(), {})[recipe.to_toml()] = recipe
    for alike in by_stream.values():
        stream = make_stream(next(iter(alike.values())), root)
        for recipe in alike.values():
            make_method(recipe, stream)


def _result(recipe: Recipe, trainer: Trainer) -> Result:
    return Result(
        method=recipe.method,
        benchmark=recipe.benchmark,
        preset=recipe.preset,
        quick=recipe.quick,
        seed=recipe.seed,
        data=trainer.stream.data,
        switches=dict(recipe.data),
        tasks=len(trainer.stream),
        accuracy=trainer.progress.accuracy,
        epochs=trainer.progress.epochs,
        seconds={name: round(seconds, 3) for name, seconds in trainer.progress.seconds.items()},
        bytes=trainer.method.bytes(),
        threads=recipe.threads,
        device=recipe.device,
        training=dict(recipe.training),
        settings={k: list(v) if isinstance(v, tuple) else v for k, v in recipe.settings.items()},
        versions={"codecl": codecl.__version__, "torch": torch.__version__, "python": platform.python_version()},
    )

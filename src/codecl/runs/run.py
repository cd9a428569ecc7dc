"""Running a recipe in a run directory, from the start or from where it stopped."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.distributed import ProcessGroup

import codecl
from codecl.allocator import keep_freed_memory
from codecl.errors import UsageError, refusing
from codecl.method.inference import check_heads
from codecl.methods import Method
from codecl.randomness import seeded
from codecl.runs.events import Event, from_engine
from codecl.runs.plugins import find_benchmark, find_method, is_plugin, own_name
from codecl.runs.processes import SharedStore, from_first
from codecl.runs.provenance import made_with
from codecl.runs.recipe import Recipe, takes_seed
from codecl.runs.records import Result
from codecl.runs.rundir import RunDirectory
from codecl.runs.trackers import Tracker
from codecl.runs.untrusted import to_toml
from codecl.text import in_a_line
from codecl.training.engine import Trainer
from codecl.training.progress import UnfitState
from codecl.training.stream import Stream
from codecl.training.task_inference import measure_inference

Observer = Callable[[Event], None]


def run(
    recipe: Recipe,
    directory: RunDirectory,
    observers: Sequence[Observer] = (),
    root: Path = Path("data"),
    track: Sequence[str] = (),
    group: ProcessGroup | None = None,
    watching: Callable[[Trainer], Observer] | None = None,
) -> Result:
    """The result of ``recipe``: at once if the directory has it, else by going on or beginning.

    What cannot be is refused before anything is written.

    Args:
        recipe: What to run.
        directory: Where its log, checkpoints and result are kept.
        observers: Called with every event.
        root: The directory of the data sets.
        track: The names of the trackers that watch.
        group: The processes that learn together; this is the first of them, and the others ``follow``.
        watching: Makes an observer that may look at the trainer.
    """
    directory.ensure_fits(recipe)
    if (result := directory.result()) is not None:
        directory.tidy()
        from_first(group, lambda: False)
        return result
    from_first(group, lambda: True)
    store = SharedStore(directory, group)
    trainer = _prepared(recipe, root, store)
    directory.made_with = made_with(trainer.stream)
    with directory.locked(), ExitStack() as trackers:
        directory.open_for(recipe)
        if (result := directory.result()) is not None:  # another process has just finished it
            return result
        opened = [Tracker(name, directory.path, recipe, directory.on_notice) for name in track]
        for tracker in opened:
            trackers.callback(tracker.close)
        every: list[Observer] = [directory.log, *observers, *opened, *([watching(trainer)] if watching else [])]

        def observe(fields: dict[str, Any]) -> None:
            event = from_engine(fields)
            for observer in every:
                observer(event)

        while True:
            trainer.observers = (observe,)
            try:
                accuracy = trainer.run().accuracy
                break
            except UnfitState as error:
                directory.refuse_given(str(error), error.epoch)
                trainer = make_trainer(recipe, root, store)
        result = _result(recipe, trainer)
        state = {"model": trainer.model.state_dict(), "method": trainer.method.state_dict(), "accuracy": accuracy}
        tasks = [{"name": task.name, "classes": task.classes} for task in trainer.stream.tasks]
        example = torch.zeros_like(trainer.stream.tasks[0].test.take(torch.tensor([0]))[0])
        directory.finish(result, state | {"tasks": tasks, "example": example})
        return result


def follow(recipe: Recipe, root: Path, group: ProcessGroup) -> None:
    """Take part in what the first process of ``group`` runs; nothing is written."""
    if not from_first(group, lambda: True):  # it has the result already
        return
    store = SharedStore(None, group)
    trainer = _prepared(recipe, root, store)
    while True:
        try:
            trainer.run()
            return
        except UnfitState:
            trainer = make_trainer(recipe, root, store)


def _prepared(recipe: Recipe, root: Path, store: SharedStore) -> Trainer:
    torch.set_num_threads(recipe.threads)
    keep_freed_memory()
    return make_trainer(recipe, root, store)


def make_trainer(recipe: Recipe, root: Path, store: SharedStore | None = None) -> Trainer:
    """The stream, network and method that a recipe names; ``UsageError`` where one of them cannot be."""
    stream = make_stream(recipe, root)
    method = make_method(recipe, stream, store.group if store is not None else None)
    with refusing(""):
        return Trainer(method, stream, recipe.plan(), store)


def make_stream(recipe: Recipe, root: Path) -> Stream:
    """The tasks of the benchmark, as many as the recipe asks for."""
    benchmark = find_benchmark(recipe.benchmark)
    with refusing(""):
        with _calling(recipe.benchmark, "stream"):
            stream = benchmark.stream(root, recipe.seed, **recipe.data)
        if not isinstance(stream, Stream):
            raise UsageError(
                f"{recipe.benchmark}: its function stream must return a codecl.training.stream.Stream; got "
                f"{type(stream).__name__}. Return Stream(name, tasks)."
            )
        return stream.first(recipe.tasks)


def make_method(recipe: Recipe, stream: Stream, group: ProcessGroup | None = None) -> Method:
    """The method, with the network that it teaches, in one process or in those of ``group``."""
    benchmark = find_benchmark(recipe.benchmark)
    with seeded(recipe.seed, "init"):
        with _calling(recipe.benchmark, "network"):
            model = benchmark.network(stream, **recipe.data)
        if not isinstance(model, nn.Module):
            raise UsageError(
                f"{recipe.benchmark}: its function network must return a torch.nn.Module; got {type(model).__name__}. "
                "Return the network itself, MultiHead(backbone, features, classes), say."
            )
        model = model.to(recipe.device)
    method = find_method(recipe.method)
    settings = dict(recipe.settings) | ({"seed": recipe.seed} if takes_seed(method) else {})
    settings |= {} if group is None else {"group": group}
    with refusing(f"{recipe.method}: ", TypeError):
        made = method(model, **settings)
        if recipe.training["infer_tasks"] and made.evidence is None:
            check_heads(made)
        return made


@contextmanager
def _calling(benchmark: str, function: str) -> Iterator[None]:
    """What a function of the user's own benchmark raises becomes a line that names it."""
    try:
        yield
    except Exception as error:  # whatever it raises
        if isinstance(error, UsageError) or not is_plugin(benchmark):
            raise
        raise UsageError(f"{benchmark}: its function {function} failed: {in_a_line(error)}.") from error


def refuse_impossible(recipes: Iterable[Recipe], root: Path) -> None:
    """``UsageError`` if one of ``recipes`` cannot run; the data of each benchmark are read once, for one seed."""
    alike = {recipe.to_toml(): recipe for recipe in (replace(recipe, device="cpu", seed=0) for recipe in recipes)}
    streams: dict[str, Stream] = {}
    for recipe in alike.values():
        key = to_toml([recipe.benchmark, recipe.tasks, recipe.data])
        if key not in streams:
            streams[key] = make_stream(recipe, root)
        make_method(recipe, streams[key])


def validate(trainer: Trainer, tasks: int) -> list[float]:
    """The accuracy on the validation part of each of the first ``tasks``, as the method is now, in percent."""
    found = []
    for t in range(tasks):
        with trainer.method.task(t):
            found.append(trainer.evaluate(trainer.stream.tasks[t].validation)[1])
    return found


def _result(recipe: Recipe, trainer: Trainer) -> Result:
    same = ("method", "benchmark", "preset", "seed", "threads", "device", "training")
    progress = trainer.progress
    return Result(
        **{name: getattr(recipe, name) for name in same},
        data=trainer.stream.data,
        switches=recipe.data,
        tasks=len(trainer.stream),
        accuracy=progress.accuracy,
        epochs=progress.epochs,
        seconds={name: round(seconds, 3) for name, seconds in progress.seconds.items()},
        bytes=trainer.method.bytes(),
        settings={k: list(v) if isinstance(v, tuple) else v for k, v in recipe.settings.items()},
        method_name=own_name(type(trainer.method)) if is_plugin(recipe.method) else None,
        validation=validate(trainer, len(trainer.stream)),
        moved=progress.moved,
        inference=measure_inference(trainer) if recipe.training["infer_tasks"] else None,
        versions={"codecl": codecl.__version__, "torch": torch.__version__, "python": platform.python_version()},
    )

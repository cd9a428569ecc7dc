"""Sending what happens in a run to TensorBoard, MLflow or Weights & Biases: extras behind one small interface."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

from codecl.errors import UsageError
from codecl.runs.events import EpochCount, EpochEvent, Event, ResumeEvent, TaskEvent
from codecl.runs.recipe import Recipe
from codecl.text import unknown_name


class Tracker(Protocol):
    """An observer of a run that is closed at its end."""

    def __call__(self, event: Event) -> None: ...
    def close(self) -> None: ...


def scalars(event: Event) -> Iterator[tuple[str, float]]:
    """The numbers of an event, under the names they are tracked by."""
    if isinstance(event, EpochEvent):
        for name in ("loss", "validation_loss", "validation_accuracy", "lr"):
            yield f"task {event.task}/{name}", float(getattr(event, name))
    elif isinstance(event, TaskEvent):
        for task, value in enumerate(event.measured):
            yield f"test accuracy/task {task}", float(value)
        yield "test accuracy/mean", sum(event.measured) / len(event.measured)
        yield "memory/bytes", float(event.bytes["memory"])


class _Steps(EpochCount):
    """The step of what is tracked: the epochs over all tasks."""

    def __init__(self) -> None:
        super().__init__()
        self.step = 0

    def see(self, event: Event) -> None:
        super().see(event)
        if isinstance(event, EpochEvent | ResumeEvent):
            self.step = self.up_to(event.task)


class TensorBoard:
    def __init__(self, directory: Path, recipe: Mapping[str, Any]) -> None:
        _import("tensorboard", "tensorboard")
        from torch.utils.tensorboard import SummaryWriter

        self._writer, self._steps = SummaryWriter(str(directory / "tensorboard")), _Steps()
        self._writer.add_text("recipe", str(recipe["text"]))

    def __call__(self, event: Event) -> None:
        self._steps.see(event)
        for name, value in scalars(event):
            self._writer.add_scalar(name, value, self._steps.step)

    def close(self) -> None:
        self._writer.close()


class MLflow:
    def __init__(self, directory: Path, recipe: Mapping[str, Any]) -> None:
        self._mlflow, self._steps = _import("mlflow", "mlflow"), _Steps()
        self._mlflow.set_experiment(recipe["benchmark"])
        self._mlflow.start_run(run_name=directory.name)
        self._mlflow.log_params({key: value for key, value in recipe.items() if key != "text"})

    def __call__(self, event: Event) -> None:
        self._steps.see(event)
        if values := dict(scalars(event)):
            self._mlflow.log_metrics(values, step=self._steps.step)

    def close(self) -> None:
        self._mlflow.end_run()


class WeightsAndBiases:
    def __init__(self, directory: Path, recipe: Mapping[str, Any]) -> None:
        self._wandb, self._steps = _import("wandb", "wandb"), _Steps()
        self._run = self._wandb.init(project="codecl", name=directory.name, dir=str(directory), config=dict(recipe))

    def __call__(self, event: Event) -> None:
        self._steps.see(event)
        if values := dict(scalars(event)):
            self._run.log(values, step=self._steps.step)

    def close(self) -> None:
        self._run.finish()


TRACKERS: dict[str, type[Tracker]] = {"tensorboard": TensorBoard, "mlflow": MLflow, "wandb": WeightsAndBiases}


def check_tracker(name: str) -> None:
    """Refuse a tracker that does not exist, or whose package is not installed."""
    if name not in TRACKERS:
        raise UsageError(unknown_name("tracker", name, TRACKERS))
    _import(name, name)


def open_tracker(name: str, directory: Path, recipe: Recipe) -> Tracker:
    check_tracker(name)
    known = {"benchmark": recipe.benchmark, "method": recipe.method, "seed": recipe.seed, "text": recipe.to_toml()}
    return TRACKERS[name](directory, known)  # type: ignore[call-arg]


def _import(package: str, extra: str) -> Any:
    try:
        return importlib.import_module(package)
    except ImportError:
        raise UsageError(f"--track {extra} needs the package {package}: pip install 'codecl[{extra}]'.") from None

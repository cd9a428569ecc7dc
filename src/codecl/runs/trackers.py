"""Sending what happens in a run to TensorBoard, MLflow or Weights & Biases: extras behind one small interface."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

from codecl.errors import UsageError
from codecl.runs.recipe import Recipe
from codecl.text import unknown_name

Event = Mapping[str, Any]


class Tracker(Protocol):
    """An observer of a run that is closed at its end."""

    def __call__(self, event: Event) -> None: ...
    def close(self) -> None: ...


def scalars(event: Event) -> Iterator[tuple[str, float]]:
    """The numbers of an event, under the names they are tracked by."""
    if event["event"] == "epoch":
        for name in ("loss", "validation_loss", "validation_accuracy", "lr"):
            yield f"task {event['task']}/{name}", float(event[name])
    elif event["event"] == "task":
        known = [value for value in event["accuracy"] if value is not None]
        for seen, value in enumerate(known):
            yield f"test accuracy/task {seen}", float(value)
        yield "test accuracy/mean", sum(known) / len(known)
        yield "memory/bytes", float(event["bytes"]["memory"])


class _Stepping:
    """Counts epochs over all tasks: the step of what is tracked. An epoch that is run again has the step it had."""

    def __init__(self) -> None:
        self.step = 0
        self._finished: dict[int, int] = {}

    def see(self, event: Event) -> int:
        if event["event"] == "epoch":
            self._finished[event["task"]] = event["epoch"]
        elif event["event"] == "resume":
            self._finished = {**dict(enumerate(event["epochs"])), event["task"]: event["epoch"]}
        if event["event"] in ("epoch", "resume"):
            self.step = sum(n for task, n in self._finished.items() if task <= event["task"])
        return self.step


class TensorBoard:
    def __init__(self, directory: Path, recipe: Mapping[str, Any]) -> None:
        _need("tensorboard", "tensorboard")
        from torch.utils.tensorboard import SummaryWriter

        self._writer, self._steps = SummaryWriter(str(directory / "tensorboard")), _Stepping()
        self._writer.add_text("recipe", str(recipe["text"]))

    def __call__(self, event: Event) -> None:
        step = self._steps.see(event)
        for name, value in scalars(event):
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        self._writer.close()


class MLflow:
    def __init__(self, directory: Path, recipe: Mapping[str, Any]) -> None:
        self._mlflow, self._steps = _need("mlflow", "mlflow"), _Stepping()
        self._mlflow.set_experiment(recipe["benchmark"])
        self._mlflow.start_run(run_name=directory.name)
        self._mlflow.log_params({key: value for key, value in recipe.items() if key != "text"})

    def __call__(self, event: Event) -> None:
        step = self._steps.see(event)
        if values := dict(scalars(event)):
            self._mlflow.log_metrics(values, step=step)

    def close(self) -> None:
        self._mlflow.end_run()


class WeightsAndBiases:
    def __init__(self, directory: Path, recipe: Mapping[str, Any]) -> None:
        self._wandb, self._steps = _need("wandb", "wandb"), _Stepping()
        self._run = self._wandb.init(project="codecl", name=directory.name, dir=str(directory), config=dict(recipe))

    def __call__(self, event: Event) -> None:
        step = self._steps.see(event)
        if values := dict(scalars(event)):
            self._run.log(values, step=step)

    def close(self) -> None:
        self._run.finish()


TRACKERS: dict[str, type[Tracker]] = {"tensorboard": TensorBoard, "mlflow": MLflow, "wandb": WeightsAndBiases}


def check_tracker(name: str) -> None:
    """Refuse a tracker that does not exist, or whose package is not installed."""
    if name not in TRACKERS:
        raise UsageError(unknown_name("tracker", name, TRACKERS))
    _need(name, name)


def open_tracker(name: str, directory: Path, recipe: Recipe) -> Tracker:
    check_tracker(name)
    known = {"benchmark": recipe.benchmark, "method": recipe.method, "seed": recipe.seed, "text": recipe.to_toml()}
    return TRACKERS[name](directory, known)  # type: ignore[call-arg]


def _need(package: str, extra: str) -> Any:
    try:
        return importlib.import_module(package)
    except ImportError:
        raise UsageError(f"--track {extra} needs the package {package}: pip install 'codecl[{extra}]'.") from None

"""Sending what happens in a run to TensorBoard, MLflow or Weights & Biases, which are extras.

A run that goes on does so in the same run of its tracker, whose id stands in ``trackers.json``. A tracker that fails
says so once and is left out: training goes on.
"""

from __future__ import annotations

import importlib
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from codecl.errors import UsageError
from codecl.files import write_atomically
from codecl.runs.events import EpochCount, EpochEvent, Event, TaskEvent
from codecl.runs.recipe import Recipe, flatten
from codecl.runs.records import read_run
from codecl.runs.typed import check
from codecl.runs.untrusted import MEGABYTE, parse_json, read_text
from codecl.text import installing, shown, unknown_name

IDS = "trackers.json"
PARENT = "CODECL_PARENT_RUN"
"""The environment variable by which ``compare`` and ``sweep`` tell their runs what they belong to."""
MLFLOW_MANNERS = {
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",  # how long a server that is down may hold up a run
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",  # our output is the result's, with --json for programs
}
"""What holds unless the user's environment says otherwise."""
Parameters = dict[str, str]


class Backend(Protocol):
    """A run of a tracker; ``id`` is what finds it again."""

    id: str

    def log(self, values: dict[str, float], step: int) -> None: ...
    def close(self, finished: bool) -> None: ...


class Tracker:
    """An observer of a run that is closed at its end. Its step is the epochs over all tasks.

    Args:
        name: Of the tracker.
        directory: The run directory.
        recipe: What is run; every value of it becomes a parameter.
        warn: Called once with a sentence if the tracker fails.
    """

    def __init__(self, name: str, directory: Path, recipe: Recipe, warn: Callable[[str], None]) -> None:
        check_tracker(name)
        self.name, self.warn = name, warn
        self._steps, self._learned, self._finished = EpochCount(), dict[int, float](), False
        for event in read_run(directory).events:  # of before it was stopped
            self._see(event)
        self._backend: Backend | None = None
        with self._failing():
            self._backend = open_backend(name, directory, _parameters(recipe))

    def __call__(self, event: Event) -> None:
        self._see(event)
        values = dict(self.scalars(event))
        if values and self._backend is not None:
            with self._failing():
                self._backend.log(values, self._steps.total)

    def scalars(self, event: Event) -> Iterator[tuple[str, float]]:
        """The numbers of an event, under the names they are tracked by; tasks are counted from 1."""
        if isinstance(event, EpochEvent):
            yield "task", float(event.task + 1)
            for name in ("loss", "validation_loss", "validation_accuracy", "lr"):
                yield name, float(getattr(event, name))
        elif isinstance(event, TaskEvent):
            for task, value in enumerate(event.accuracy):
                if value is not None:
                    yield f"test accuracy/task {task + 1}", float(value)
            yield "ACC", event.mean
            before = event.accuracy[: event.task]
            gains = [now - self._learned[t] for t, now in enumerate(before) if now is not None and t in self._learned]
            if gains and event.together is None:
                yield "BWT", sum(gains) / len(gains)
            yield "memory bytes", float(event.bytes["memory"])

    def close(self) -> None:
        if self._backend is not None:
            with self._failing():
                self._backend.close(self._finished)

    def _see(self, event: Event) -> None:
        self._steps.see(event)
        if isinstance(event, TaskEvent):
            self._learned[event.task] = event.accuracy[event.task] or 0.0
            self._finished = event.task + 1 == len(event.accuracy)

    @contextmanager
    def _failing(self) -> Iterator[None]:
        """Whatever a tracker raises is one warning, and the end of tracking."""
        try:
            yield
        except Exception as error:
            self._backend = None
            self.warn(left_out(self.name, error))


@contextmanager
def parent_run(names: Sequence[str], directory: Path, experiment: str, warn: Callable[[str], None]) -> Iterator[None]:
    """What the runs below ``directory`` belong to, for those that are started within it.

    MLflow has a run of its own for it, whose failure is one warning; Weights & Biases has a group.
    """
    told = {"name": directory.name, "directory": str(directory.resolve())}
    parent: Backend | None = None
    finished = False
    try:
        if "mlflow" in names:
            try:
                parent = open_backend("mlflow", directory, {"benchmark": experiment})
                told["mlflow"] = parent.id
            except Exception as error:
                warn(left_out("mlflow", error))
        with belonging_to(json.dumps(told)):
            yield
        finished = True
    finally:
        if parent is not None:
            try:
                parent.close(finished)
            except Exception as error:
                warn(left_out("mlflow", error))


def left_out(name: str, error: Exception) -> str:
    """One line on a tracker that fails."""
    reason = " ".join(f"{type(error).__name__}: {error}".split())
    return f"--track {name} does not work and is left out: {reason:.200}"


@contextmanager
def belonging_to(parent: str) -> Iterator[None]:
    """The environment of runs that belong to ``parent``, which afterwards is as it was."""
    before = os.environ.get(PARENT)
    os.environ[PARENT] = parent
    try:
        yield
    finally:
        os.environ.pop(PARENT) if before is None else os.environ.__setitem__(PARENT, before)


class TensorBoard:
    """Event files in the run directory."""

    def __init__(self, directory: Path, parameters: Parameters, known: str | None, parent: Mapping[str, str]) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self.id = "tensorboard"
        self._writer = SummaryWriter(str(directory / self.id))
        if known is None:
            rows = "\n".join(f"| {name} | {value} |" for name, value in parameters.items())
            self._writer.add_text("recipe", f"| hyperparameter | value |\n|---|---|\n{rows}")

    def log(self, values: dict[str, float], step: int) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def close(self, finished: bool) -> None:
        self._writer.close()


class MLflow:
    """A run of an MLflow server or store, in the experiment of the benchmark."""

    def __init__(self, directory: Path, parameters: Parameters, known: str | None, parent: Mapping[str, str]) -> None:
        for name, value in MLFLOW_MANNERS.items():
            os.environ.setdefault(name, value)
        self._entities = _import("mlflow").entities
        self._client = _import("mlflow").MlflowClient()
        if known is not None:
            self.id = known
            self._client.update_run(known, status="RUNNING")
            return
        experiment = self._client.get_experiment_by_name(parameters["benchmark"])
        found = experiment.experiment_id if experiment else self._client.create_experiment(parameters["benchmark"])
        tags = {"mlflow.parentRunId": parent["mlflow"]} if "mlflow" in parent else {}
        self.id = self._client.create_run(found, run_name=run_title(directory, parent), tags=tags).info.run_id
        self._client.log_batch(self.id, params=[self._entities.Param(*pair) for pair in parameters.items()])

    def log(self, values: dict[str, float], step: int) -> None:
        now = int(1000 * time.time())
        metrics = [self._entities.Metric(name, value, now, step) for name, value in values.items()]
        self._client.log_batch(self.id, metrics=metrics)

    def close(self, finished: bool) -> None:
        self._client.set_terminated(self.id, "FINISHED" if finished else "KILLED")


class WeightsAndBiases:
    """A run of Weights & Biases, in the group of its comparison."""

    def __init__(self, directory: Path, parameters: Parameters, known: str | None, parent: Mapping[str, str]) -> None:
        self._run = _import("wandb").init(
            project="codecl", name=run_title(directory, parent), group=parent.get("name"), dir=str(directory),
            config=parameters, id=known, resume="allow",
        )  # fmt: skip
        self.id = str(self._run.id)

    def log(self, values: dict[str, float], step: int) -> None:
        self._run.log(values, step=step)

    def close(self, finished: bool) -> None:
        self._run.finish(0 if finished else 1)


TRACKERS: dict[str, Callable[[Path, Parameters, str | None, Mapping[str, str]], Backend]] = {
    "tensorboard": TensorBoard, "mlflow": MLflow, "wandb": WeightsAndBiases
}  # fmt: skip


def check_tracker(name: str) -> None:
    """Refuse a tracker that does not exist, or whose package is not installed."""
    if name not in TRACKERS:
        raise UsageError(unknown_name("tracker", name, TRACKERS))
    _import(name)


def open_backend(name: str, directory: Path, parameters: Parameters) -> Backend:
    """The run of the tracker ``name`` for a directory: the one it had, or a new one."""
    file, known = directory / IDS, dict[str, str]()
    if file.exists():
        known = parse_json(read_text(file, MEGABYTE))
        check(IDS, known, dict[str, str])
    backend = TRACKERS[name](directory, parameters, known.get(name), json.loads(os.environ.get(PARENT) or "{}"))
    directory.mkdir(parents=True, exist_ok=True)
    write_atomically(file, json.dumps(known | {name: backend.id}) + "\n")
    return backend


def run_title(directory: Path, parent: Mapping[str, str]) -> str:
    """What a run is called: its place below that of its comparison or sweep, ``aperture=4/seed0``."""
    directory = directory.resolve()
    above = Path(parent["directory"]) if "directory" in parent else directory.parent
    return (directory.relative_to(above) if directory.is_relative_to(above) else Path(directory.name)).as_posix()


def _parameters(recipe: Recipe) -> Parameters:
    """Every value of the recipe by name, as the command takes it."""
    return {name: shown(value) for name, value in flatten(vars(recipe)).items()}


def _import(name: str) -> Any:
    """The package of a tracker, which is an extra of the same name."""
    try:
        return importlib.import_module(name)
    except ImportError:
        raise UsageError(f"--track {name} needs the package {name}: {installing(name)}.") from None

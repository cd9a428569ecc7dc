"""What a run directory says of its run: how far it came, and what it remembers, task by task and layer by layer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from codecl.errors import UsageError
from codecl.runs.events import EpochEvent, Event, TaskEvent
from codecl.runs.plugins import find_benchmark, find_method, title
from codecl.runs.recipe import Recipe, make_recipe
from codecl.runs.records import LOG, RESULT, read_run
from codecl.runs.rundir import RunDirectory
from codecl.text import size, table

FIRST_COLUMNS = ("rank", "capacity", "overlap", "shared", "freed", "trusted", "added", "expansion")
"""What comes first, where a layer has it; what else a method describes comes after."""
NO_COLUMNS = ("shape", "spectrum", "bytes")


@dataclass(frozen=True)
class LearnedTask:
    """A task that was learned, in so many epochs; the rest is that of its ``TaskEvent``."""

    task: int
    name: str
    accuracy: list[float | None]
    bytes: dict[str, int]
    layers: dict[str, dict[str, Any]]
    epochs: int


@dataclass(frozen=True)
class Inspection:
    """What ``codecl inspect`` shows.

    ``of_tasks`` are the tasks of the recipe and ``all_tasks`` those of the benchmark; ``changed`` is what differs from
    the recipe file; ``at`` is the epoch at which the log ends, if it ends within a task.
    """

    run: str
    method: str
    benchmark: str
    preset: str
    quick: bool
    seed: int
    of_tasks: int
    all_tasks: int
    joint: bool
    epochs: int
    changed: list[str]
    finished: bool
    at: dict[str, int] | None
    acc: float | None
    bwt: float | None
    tasks: list[LearnedTask]
    notice: str = ""

    def to_fields(self) -> dict[str, Any]:
        return asdict(self)

    def to_text(self, only: int | None = None) -> str:
        """For a person; ``only`` is the one task whose layers are wanted, counted from 0."""
        blocks = [_head(self)]
        if self.tasks:
            blocks.append(_joint_accuracies(self.tasks[-1]) if self.joint else _accuracies(self.tasks))
        for task in self.tasks:
            if task.layers and only in (None, task.task):
                which = "all tasks" if self.joint else f"task {task.task + 1} ({task.name})"
                blocks.append(f"after {which}, memory {size(task.bytes['memory'])}\n{_layers(task.layers)}")
        return "\n\n".join([*blocks, *([self.notice] if self.notice else [])])


def inspect(path: Path) -> Inspection:
    """The record of the run in ``path``, which is only read."""
    recipe, record = RunDirectory(path).recipe(), read_run(path)
    if RESULT in record.damage:
        advice = f"Restore it, or remove it and run again: codecl run --resume {path}"
        raise UsageError(f"{path / RESULT} {record.damage[RESULT]} {advice}")
    if LOG in record.damage:
        raise UsageError(f"{path / LOG} {record.damage[LOG]}")
    result, benchmark = record.result, find_benchmark(recipe.benchmark)
    without_log = result is not None and not record.has_log
    tasks, at = _progress(record.events)
    return Inspection(
        run=str(path),
        method=recipe.method,
        benchmark=recipe.benchmark,
        preset=recipe.preset,
        quick=recipe.quick,
        seed=recipe.seed,
        of_tasks=recipe.tasks or benchmark.tasks,
        all_tasks=benchmark.tasks,
        joint=find_method(recipe.method).joint,
        epochs=recipe.training["epochs"],
        changed=_changes(recipe),
        finished=result is not None,
        at=at,
        acc=result.acc if result is not None else None,
        bwt=result.bwt if result is not None else None,
        tasks=tasks,
        notice=f"it has no {LOG}, which would say what happened task by task." if without_log else "",
    )


def _changes(recipe: Recipe) -> list[str]:
    """The hyperparameters that the recipe file has otherwise."""
    asked = {name: getattr(recipe, name) for name in ("method", "benchmark", "preset", "seed", "threads", "device")}
    return [line for line in recipe.differences(make_recipe(asked, {})) if "." in line.split(":")[0]]


def _progress(events: Iterable[Event]) -> tuple[list[LearnedTask], dict[str, int] | None]:
    """The tasks that were learned, and the epoch at which the log ends, if it ends within a task."""
    tasks, last = [], None
    for event in events:
        if isinstance(event, EpochEvent):
            last = event
        elif isinstance(event, TaskEvent):
            epochs = last.epoch if last is not None else 0
            tasks.append(LearnedTask(event.task, event.name, event.accuracy, event.bytes, event.layers, epochs))
            last = None
    at = {"task": last.task, "epoch": last.epoch, "of": last.max_epochs} if last is not None else None
    return tasks, at


def _head(run: Inspection) -> str:
    if run.finished:
        state = f"finished, ACC {run.acc:.2f} %" + (f", BWT {run.bwt:+.2f} %" if run.bwt is not None else "")
    elif run.at is not None:
        where = "" if run.joint else f"in task {run.at['task'] + 1} "
        state = f"unfinished, {where}after epoch {run.at['epoch']} of at most {run.at['of']}"
    else:
        state = f"unfinished, {len(run.tasks)} tasks learned"
    some = "" if run.of_tasks == run.all_tasks else f" of {run.all_tasks}"
    lines = [
        f"{title(run.method)} on {run.benchmark}, preset {run.preset}, seed {run.seed}: {state}",
        f"{run.of_tasks}{some} tasks{' at once' * run.joint}, at most {run.epochs} epochs"
        f"{' each' * (not run.joint)}{', --quick' * run.quick}",
    ]
    if run.changed:
        lines.append(f"other than the recipe for it: {'; '.join(run.changed)}")
    return "\n".join(lines)


def _accuracies(tasks: list[LearnedTask]) -> str:
    """What every task had just after it was learned and what it has now, and what was stored by then."""
    by_number, rows = {task.task: task for task in tasks}, []
    for t, now in enumerate(tasks[-1].accuracy):
        if now is None:
            continue
        name, epochs, learned, memory = ["–"] * 4
        if (task := by_number.get(t)) is not None:
            name, epochs, learned = task.name, f"{task.epochs}", f"{task.accuracy[t]:.2f}"
            memory = size(task.bytes["memory"])
        rows.append([f"{t + 1}", name, epochs, learned, f"{now:.2f}", memory])
    return table(["task", "name", "epochs", "learned %", "now %", "memory"], rows)


def _joint_accuracies(task: LearnedTask) -> str:
    """What every task has, where none was learned before another."""
    rows = [[f"{t + 1}", f"{now:.2f}"] for t, now in enumerate(task.accuracy) if now is not None]
    learned = f"learned at once in {task.epochs} epochs, memory {size(task.bytes['memory'])}"
    return f"{learned}\n{table(['task', 'accuracy %'], rows)}"


def _layers(layers: Mapping[str, Mapping[str, Any]]) -> str:
    """A row for every weight; a column for whatever any of them has."""
    described = dict.fromkeys(name for layer in layers.values() for name in layer)
    columns = [name for name in FIRST_COLUMNS if name in described]
    columns += [name for name in described if name not in FIRST_COLUMNS + NO_COLUMNS]
    rows = []
    for name, layer in layers.items():
        groups, _, inputs = layer["shape"]
        trusted = [t + 1 for t in layer.get("trusted", ())]  # tasks are counted from 1 in what is printed
        cells = [_cell(trusted if column == "trusted" else layer.get(column)) for column in columns]
        rows.append([name, f"{groups}×{inputs}" if groups > 1 else f"{inputs}", *cells, size(layer["bytes"])])
    return table(["weight", "inputs", *columns, "bytes"], rows)


def _cell(value: Any) -> str:
    if isinstance(value, list):
        return ",".join(map(_cell, value)) or "–"
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() else f"{value:.3g}" if abs(value) < 1 else f"{value:.1f}"
    return "–" if value is None else str(value)

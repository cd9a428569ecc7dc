"""What a run directory says of its run: how far it came, and what it remembers, task by task and layer by layer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from codecl.errors import UsageError
from codecl.runs.events import EpochEvent, TaskEvent
from codecl.runs.plugins import find_benchmark, find_method, is_plugin, title
from codecl.runs.recipe import Recipe, make_recipe
from codecl.runs.records import LOG, RESULT, RunRecord, read_run
from codecl.runs.rundir import RunDirectory
from codecl.text import size, table

FIRST_COLUMNS = ("rank", "capacity", "overlap", "shared", "freed", "trusted", "added", "expansion")
"""What comes first, where a layer has it; what else a method describes comes after."""
NO_COLUMNS = ("shape", "spectrum", "bytes")


@dataclass(frozen=True)
class Inspection:
    """What ``codecl inspect`` shows of a run: its recipe, and what it recorded."""

    recipe: Recipe
    record: RunRecord

    @property
    def joint(self) -> bool:
        if is_plugin(self.recipe.method):  # which is not imported only to be looked at
            return any(getattr(event, "together", None) is not None for event in self.record.events)
        return find_method(self.recipe.method).joint

    @property
    def all_tasks(self) -> int | None:
        """The tasks of the benchmark; of a foreign one, those that the run recorded, None if it has not yet."""
        if not is_plugin(self.recipe.benchmark):
            return find_benchmark(self.recipe.benchmark).tasks
        return len(self.tasks[0].accuracy) if self.tasks else self.recipe.tasks

    @property
    def tasks(self) -> list[TaskEvent]:
        """The ends of the tasks that were learned."""
        return self.record.tasks

    @cached_property
    def epochs(self) -> dict[int, int]:
        """How many epochs each task took so far."""
        return {epoch.task: epoch.epoch for epoch in self.record.epochs}

    @property
    def last_epoch(self) -> EpochEvent | None:
        """The epoch at which the log ends, if it ends within a task."""
        ends = [event for event in self.record.events if isinstance(event, EpochEvent | TaskEvent)]
        return ends[-1] if ends and isinstance(ends[-1], EpochEvent) else None

    @property
    def changed(self) -> list[str]:
        """The hyperparameters that the recipe file has otherwise."""
        if is_plugin(self.recipe.method) or is_plugin(self.recipe.benchmark):
            return []
        names = ("method", "benchmark", "preset", "seed", "threads", "device")
        usual = make_recipe({name: getattr(self.recipe, name) for name in names}, {})
        return [line for line in self.recipe.differences(usual) if "." in line.split(":")[0]]

    @property
    def notice(self) -> str:
        without_log = self.record.result is not None and not self.record.has_log
        return f"it has no {LOG}, which would say what happened task by task." if without_log else ""

    def to_fields(self) -> dict[str, Any]:
        """Everything, for JSON."""
        recipe, result, at = self.recipe, self.record.result, self.last_epoch
        return {
            "run": str(self.record.path),
            **{name: getattr(recipe, name) for name in ("method", "benchmark", "preset", "seed")},
            "of_tasks": recipe.tasks or self.all_tasks,
            "all_tasks": self.all_tasks,
            "joint": self.joint,
            "epochs": recipe.training.get("epochs"),
            "changed": self.changed,
            "finished": result is not None,
            "at": at and {"task": at.task, "epoch": at.epoch, "of": at.max_epochs},
            "acc": result.acc if result is not None else None,
            "bwt": result.bwt if result is not None else None,
            "tasks": [vars(task) | {"epochs": self.epochs.get(task.task, 0)} for task in self.tasks],
            **({"notice": self.notice} if self.notice else {}),
        }

    def to_text(self, only: int | None = None) -> str:
        """For a person; ``only`` is the one task whose layers are wanted, counted from 0."""
        blocks = [self._head()]
        if self.tasks:
            blocks.append(self._joint_accuracies() if self.joint else self._accuracies())
        for task in self.tasks:
            if task.layers and only in (None, task.task):
                which = "all tasks" if self.joint else f"task {task.task + 1} ({task.name})"
                blocks.append(f"after {which}, memory {size(task.bytes['memory'])}\n{layer_table(task.layers)}")
        return "\n\n".join([*blocks, *([self.notice] if self.notice else [])])

    def _head(self) -> str:
        recipe, result, at = self.recipe, self.record.result, self.last_epoch
        if result is not None:
            state = f"finished, ACC {result.acc:.2f} %" + (
                f", BWT {result.bwt:+.2f} %" if result.bwt is not None else ""
            )
        elif at is not None:
            where = "" if self.joint else f"in task {at.task + 1} "
            state = f"unfinished, {where}after epoch {at.epoch} of at most {at.max_epochs}"
        else:
            state = f"unfinished, {len(self.tasks)} tasks learned"
        every = self.all_tasks
        tasks = f"{recipe.tasks} of {every}" if recipe.tasks not in (None, every) else f"{every or '?'}"
        method = result.title if result is not None else title(recipe.method)
        lines = [
            f"{method} on {recipe.benchmark}, preset {recipe.preset}, seed {recipe.seed}: {state}",
            f"{tasks} tasks{' at once' * self.joint}, at most {recipe.training.get('epochs', '?')} epochs"
            f"{' each' * (not self.joint)}",
        ]
        return "\n".join(
            [*lines, *([f"other than the recipe for it: {'; '.join(self.changed)}"] if self.changed else [])]
        )

    def _accuracies(self) -> str:
        """What every task had just after it was learned and what it has now, and what was stored by then."""
        learned = {task.task: task for task in self.tasks}
        rows = []
        for t, now in enumerate(self.tasks[-1].accuracy):
            if now is not None:
                name, epochs, then, memory = ["–"] * 4
                if task := learned.get(t):
                    name, epochs, then = task.name, f"{self.epochs.get(t, 0)}", f"{task.accuracy[t]:.2f}"
                    memory = size(task.bytes["memory"])
                rows.append([f"{t + 1}", name, epochs, then, f"{now:.2f}", memory])
        return table(["task", "name", "epochs", "learned %", "now %", "memory"], rows)

    def _joint_accuracies(self) -> str:
        """What every task has, where none was learned before another."""
        task = self.tasks[-1]
        rows = [[f"{t + 1}", f"{now:.2f}"] for t, now in enumerate(task.accuracy) if now is not None]
        learned = f"learned at once in {self.epochs.get(task.task, 0)} epochs, memory {size(task.bytes['memory'])}"
        return f"{learned}\n{table(['task', 'accuracy %'], rows)}"


def inspect(path: Path) -> Inspection:
    """The record of the run in ``path``, which is only read."""
    recipe, record = RunDirectory(path).recipe(imports=False), read_run(path)
    if RESULT in record.damage:
        advice = f"Restore it, or remove it and run again: codecl run --resume {path}"
        raise UsageError(f"{path / RESULT} {record.damage[RESULT]} {advice}")
    if LOG in record.damage:
        raise UsageError(f"{path / LOG} {record.damage[LOG]}")
    return Inspection(recipe, record)


def layer_table(layers: Mapping[str, Mapping[str, Any]]) -> str:
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

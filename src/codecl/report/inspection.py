"""What a run directory says of its run: how far it came, and what it remembers, task by task and layer by layer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from codecl.errors import UsageError
from codecl.report.records import (
    LOG,
    DamagedRecord,
    check_amount,
    is_number,
    read_log,
    read_record,
)
from codecl.runs.plugins import find_benchmark, find_method, title
from codecl.runs.recipe import Recipe, make_recipe
from codecl.runs.run import make_trainer
from codecl.runs.rundir import RunDirectory
from codecl.text import size, table
from codecl.training.checkpoint import BrokenCheckpoint, load

Tree = dict[str, Any]
COLUMNS = ("rank", "capacity", "overlap", "shared", "freed", "trusted", "added", "expansion")
"""What comes first, where there is any of it; what else a method describes comes after."""
ELSEWHERE = ("shape", "spectrum", "bytes")


def inspect(path: Path, root: Path) -> Tree:
    """The record of the run in ``path``. It is only read; data below ``root`` are needed for old runs alone."""
    recipe, result = RunDirectory(path).recipe(), _result(path)
    try:
        tasks, at = _progress(read_log(path))
    except ValueError as error:
        raise UsageError(f"{path / LOG} is damaged: {error}") from None
    usual = {name: getattr(recipe, name) for name in ("method", "benchmark", "preset", "seed", "threads", "device")}
    found: Tree = {
        "run": str(path),
        **{name: getattr(recipe, name) for name in ("method", "benchmark", "preset", "quick", "seed")},
        "of_tasks": recipe.tasks or find_benchmark(recipe.benchmark).tasks,
        "all_tasks": find_benchmark(recipe.benchmark).tasks,
        "joint": find_method(recipe.method).joint,
        "epochs": recipe.training["epochs"],
        "changed": [line for line in recipe.differences(make_recipe(usual, {})) if "." in line.split(":")[0]],
        "finished": result is not None,
        "at": at,
        "acc": result["acc"] if result else None,
        "bwt": result["bwt"] if result else None,
        "tasks": tasks,
    }
    if result is not None and not (path / LOG).exists():
        found["notice"] = f"it has no {LOG}, which would say what happened task by task."
    is_old = bool(tasks) and tasks[-1]["layers"] is None
    return found | (_from_checkpoint(recipe, path, root) if is_old else {})


def _result(path: Path) -> Tree | None:
    try:
        return read_record(path)[1]
    except DamagedRecord as error:
        raise UsageError(f"{error} Restore it, or remove it and run again: codecl run --resume {path}") from None


def _progress(events: list[Tree]) -> tuple[list[Tree], Tree | None]:
    """The tasks that were learned, and the epoch at which the log ends, if it ends within a task."""
    tasks, epochs, at = [], 0, None
    for number, event in enumerate(events, start=1):
        try:
            if event["event"] == "epoch":
                at = {name: _count(event, name) for name in ("task", "epoch", "of")}
                epochs = at["epoch"]
            elif event["event"] == "task":
                tasks.append(_task(event) | {"epochs": epochs, "layers": event.get("layers")})
                epochs, at = 0, None
        except ValueError as error:
            raise ValueError(f"line {number}: {error}") from None
    return tasks, at


def _task(event: Tree) -> Tree:
    """What the end of a task says of it; ``ValueError`` if it does not."""
    t, name, row, stored = _count(event, "task"), event.get("name"), event.get("accuracy"), event.get("bytes")
    if not isinstance(name, str):
        raise ValueError(f"name must be text; got {name!r:.80}.")
    if not (isinstance(row, list) and t < len(row) and all(value is None or is_number(value) for value in row)):
        raise ValueError(f"accuracy must be numbers, those of {t + 1} tasks or more; got {row!r:.80}.")
    if row[t] is None:
        raise ValueError(f"accuracy must have a number for the task itself; got {row!r:.80}.")
    if not isinstance(stored, dict):
        raise ValueError(f"bytes must be a table; got {stored!r:.80}.")
    check_amount("bytes.memory", stored.get("memory"))
    return {"task": t, "name": name, "accuracy": row, "bytes": stored}


def _count(event: Tree, name: str) -> int:
    value = event.get(name)
    if type(value) is not int or value < 0:
        raise ValueError(f"{name} must be a whole number, 0 or more; got {value!r:.80}.")
    return value


def _from_checkpoint(recipe: Recipe, path: Path, root: Path) -> Tree:
    """For a log that does not tell of layers: what the newest checkpoint holds, or why it cannot be seen."""
    old = "its log was written before codecl kept what layers remember"
    files = [file for file in (path / "final.ckpt", *sorted(path.glob("task-*.ckpt"), reverse=True)) if file.exists()]
    if not files:
        return {"notice": f"{old}, and it has no checkpoint."}
    try:
        tree = load(files[0])
        trainer = make_trainer(replace(recipe, device="cpu"), root)
        trainer.model.load_state_dict(tree["model"])
        trainer.method.load_state_dict(tree["method"])
    except UsageError as error:
        return {"notice": f"{old}; to see what {files[0].name} holds, the network must be made: {error}"}
    except (BrokenCheckpoint, KeyError, ValueError, RuntimeError) as error:
        raise UsageError(f"{files[0]} cannot be read: {error}") from None
    layers = {"file": files[0].name, "layers": trainer.method.contents()}
    return {"notice": f"{old}: this is what {files[0].name} holds.", "checkpoint": layers}


def words(found: Tree, only: int | None = None) -> str:
    """``found`` for a person; ``only`` is the position of the one task whose layers are wanted."""
    parts = [_head(found)]
    if found["tasks"]:
        parts.append(_at_once(found["tasks"][-1]) if found["joint"] else _accuracies(found["tasks"]))
    for task in found["tasks"]:
        if task["layers"] and only in (None, task["task"]):
            which = "all tasks" if found["joint"] else f"task {task['task'] + 1} ({task['name']})"
            parts.append(f"after {which}, memory {size(task['bytes']['memory'])}\n{_layers(task['layers'])}")
    if "notice" in found:
        parts.append(found["notice"])
    if "checkpoint" in found and found["checkpoint"]["layers"]:
        parts.append(_layers(found["checkpoint"]["layers"]))
    return "\n\n".join(parts)


def _head(found: Tree) -> str:
    bwt = "" if found["bwt"] is None else f", BWT {found['bwt']:+.2f} %"
    if found["finished"]:
        state = f"finished, ACC {found['acc']:.2f} %{bwt}"
    elif at := found["at"]:
        where = "" if found["joint"] else f"in task {at['task'] + 1} "
        state = f"unfinished, {where}after epoch {at['epoch']} of at most {at['of']}"
    else:
        state = f"unfinished, {len(found['tasks'])} tasks learned"
    some = "" if found["of_tasks"] == found["all_tasks"] else f" of {found['all_tasks']}"
    lines = [
        f"{title(found['method'])} on {found['benchmark']}, preset {found['preset']}, seed {found['seed']}: {state}",
        f"{found['of_tasks']}{some} tasks{' at once' * found['joint']}, at most {found['epochs']} epochs"
        f"{'' if found['joint'] else ' each'}{', --quick' * found['quick']}",
    ]
    if found["changed"]:
        lines.append(f"other than the recipe for it: {'; '.join(found['changed'])}")
    return "\n".join(lines)


def _accuracies(tasks: list[Tree]) -> str:
    """What every task had just after it was learned and what it has now, and what was stored by then."""
    by_number, last = {task["task"]: task for task in tasks}, tasks[-1]["accuracy"]
    rows = []
    for t, now in enumerate(last):
        if now is not None:
            task = by_number.get(t)
            own = ["–"] * 3 if task is None else [task["name"], str(task["epochs"]), f"{task['accuracy'][t]:.2f}"]
            memory = "–" if task is None else size(task["bytes"]["memory"])
            rows.append([str(t + 1), *own, f"{now:.2f}", memory])
    return table(["task", "name", "epochs", "learned %", "now %", "memory"], rows)


def _at_once(task: Tree) -> str:
    """What every task has, where none was learned before another."""
    rows = [[str(t + 1), f"{now:.2f}"] for t, now in enumerate(task["accuracy"]) if now is not None]
    learned = f"learned at once in {task['epochs']} epochs, memory {size(task['bytes']['memory'])}"
    return f"{learned}\n{table(['task', 'accuracy %'], rows)}"


def _layers(layers: Mapping[str, Tree]) -> str:
    """A row for every weight; a column for whatever any of them has."""
    told = dict.fromkeys(name for of in layers.values() for name in of)
    columns = [*(name for name in COLUMNS if name in told), *(n for n in told if n not in COLUMNS + ELSEWHERE)]
    rows = []
    for name, of in layers.items():
        g, _, d = of["shape"]
        shown = of | {"trusted": [t + 1 for t in of.get("trusted", ())]}  # tasks are counted from 1 in what is printed
        cells = [_cell(shown.get(column)) for column in columns]
        rows.append([name, f"{g}×{d}" if g > 1 else str(d), *cells, size(of["bytes"])])
    return table(["weight", "inputs", *columns, "bytes"], rows)


def _cell(value: Any) -> str:
    if isinstance(value, list):
        return ",".join(map(_cell, value)) or "–"
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() else f"{value:.3g}" if abs(value) < 1 else f"{value:.1f}"
    return "–" if value is None else str(value)

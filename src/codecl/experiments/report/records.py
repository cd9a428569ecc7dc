"""The runs below some directories: what the finished ones recorded, and which ones are not finished or damaged."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from codecl.experiments.recipe import read_recipe
from codecl.experiments.rundir import RunDirectory
from codecl.experiments.usage import UsageError
from codecl.training import metrics

Tree = dict[str, Any]
FIELDS = {
    str: ("method", "benchmark", "preset", "data", "device"),
    bool: ("quick",),
    int: ("seed", "tasks", "threads"),
    list: ("accuracy", "epochs"),
    dict: ("switches", "seconds", "bytes", "training", "settings", "versions"),
}
"""What a result must have for its numbers to mean something."""
SHARED = ("method", "benchmark", "preset", "quick", "seed")
TABLES = {"training": "training", "settings": "settings", "data": "switches"}
"""What a recipe and its result both say, and under which names."""


@dataclass(frozen=True, eq=False)
class Run:
    """A finished run. ``name`` is its directory, seen from the report."""

    name: str
    result: Tree
    recipe: str = ""
    path: Path | None = None

    @property
    def seed(self) -> int:
        return int(self.result["seed"])

    @property
    def acc(self) -> float:
        return float(self.result["acc"])

    @property
    def bwt(self) -> float | None:
        """None where no task came later."""
        return self.result["bwt"]  # type: ignore[no-any-return]

    @property
    def accuracy(self) -> list[list[float | None]]:
        return self.result["accuracy"]  # type: ignore[no-any-return]

    @property
    def joint(self) -> bool:
        """Whether all tasks were learned at once: an upper bound and not continual learning."""
        return metrics.together(self.accuracy)

    @property
    def seconds(self) -> float:
        return float(sum(self.result["seconds"].values()))

    @cached_property
    def events(self) -> list[Tree]:
        """What the log says, as far as it can be read; figures do without the rest."""
        try:
            logged = RunDirectory(self.path).events() if self.path is not None else []
        except (ValueError, OSError):
            return []
        return [event for event in logged if isinstance(event, dict)]


@dataclass(frozen=True)
class Found:
    """``unfinished`` and ``damaged`` are pairs of a directory and what there is to say."""

    runs: tuple[Run, ...]
    unfinished: tuple[tuple[str, str], ...]
    damaged: tuple[tuple[str, str], ...]


def find(directories: Sequence[Path], out: Path) -> Found:
    """All runs in or below ``directories``, by name as seen from ``out``. A damaged one does not hide the others."""
    runs: list[Run] = []
    unfinished: list[tuple[str, str]] = []
    damaged: list[tuple[str, str]] = []
    for name, path in sorted((seen_from(out, path), path) for path in set(_directories(directories))):
        try:
            run = _read(name, path)
        except UsageError as error:
            damaged.append((name, str(error)))
            continue
        if run is None:
            unfinished.append((name, _how_far(path)))
        else:
            runs.append(run)
    return Found(tuple(runs), tuple(unfinished), tuple(damaged))


def seen_from(out: Path, path: Path) -> str:
    """The way from ``out`` to ``path``, as text that can be written."""
    return Path(os.path.relpath(path, out.resolve())).as_posix().encode(errors="replace").decode()


def _directories(given: Iterable[Path]) -> Iterator[Path]:
    for top in given:
        if not top.is_dir():
            raise UsageError(f"there is no directory {top}.")
        for folder, _, files in os.walk(top.resolve()):
            if "recipe.toml" in files:
                yield Path(folder)


def _read(name: str, path: Path) -> Run | None:
    """The run in ``path``, None if it is not finished; ``UsageError`` if it is not to be trusted."""
    directory = RunDirectory(path)
    recipe = read_recipe(directory.recipe_file)
    try:
        if (result := directory.result()) is None:
            return None
    except OSError as error:
        raise UsageError(f"{name}/result.json cannot be read: {error.strerror}.") from None
    except UsageError as error:
        raise UsageError(str(error).replace(str(path), name).replace(" Remove it and run again.", "")) from None
    try:
        check(result)
        _check_recipe(recipe, result)
    except (ValueError, TypeError, AttributeError, OverflowError) as error:
        raise UsageError(f"{name}/result.json is damaged: {error}") from None
    return Run(name, result, directory.recipe_file.read_text(encoding="utf-8"), path)


def check(result: Tree) -> None:
    """``ValueError`` if a field is missing or of another kind, or a number does not follow from the matrix."""
    for kind, names in FIELDS.items():
        for name in names:
            if type(result.get(name)) is not kind:
                raise ValueError(f"{name} must be {kind.__name__}; got {result.get(name)!r}.")
    A = result["accuracy"]
    if len(metrics.final(A)) != result["tasks"]:
        raise ValueError(f"the accuracy matrix has {len(A[0])} tasks; tasks = {result['tasks']}.")
    for name, value in {"acc": metrics.acc(A), "bwt": metrics.bwt(A)}.items():
        said = result.get(name)
        if said != value and (said is None or value is None or not math.isclose(said, value, abs_tol=1e-6)):
            raise ValueError(f"{name} is {said!r}, but the accuracy matrix gives {value!r}.")
    counted = {"bytes": ("memory", "per_task"), "seconds": ("train", "between_tasks", "evaluate")}
    amounts = {f"{t}.{key}": result[t].get(key) for t, keys in counted.items() for key in {*keys, *result[t]}}
    amounts |= {f"training.{key}": result["training"].get(key) for key in ("epochs", "lr")}
    amounts |= {f"epochs[{i}]": count for i, count in enumerate(result["epochs"])}
    for name, amount in amounts.items():
        if isinstance(amount, bool) or not isinstance(amount, int | float) or not 0 <= amount < math.inf:
            raise ValueError(f"{name} must be a number, 0 or more; got {amount!r}.")


def _check_recipe(recipe: Tree, result: Tree) -> None:
    """The result must be of the recipe that lies beside it, as far as both say something."""
    pairs = [(key, recipe[key], result[key]) for key in SHARED if key in recipe]
    pairs += [("tasks", recipe["tasks"], result["tasks"])] if recipe.get("tasks") is not None else []
    for table, its in TABLES.items():
        there = recipe.get(table, {})
        pairs += [(f"{table}.{key}", there[key], value) for key, value in result[its].items() if key in there]
    for name, asked, had in pairs:
        if asked != had:
            raise ValueError(f"it is not of its recipe.toml, where {name} is {asked!r}; here {had!r}.")


def _how_far(path: Path) -> str:
    try:
        ended = sum(event.get("event") == "task" for event in RunDirectory(path).events())
    except (ValueError, AttributeError, OSError):
        return "not finished; its log is damaged"
    return f"not finished: {ended} task{'s' * (ended != 1)} learned" if ended else "not finished: no task learned yet"

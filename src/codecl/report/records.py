"""The runs below some directories: what the finished ones recorded, and which ones are not finished or damaged."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any, Literal, TypeGuard

from codecl.errors import UsageError
from codecl.runs.recipe import read_recipe
from codecl.runs.rundir import RunDirectory
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
LOG, RESULT, RECIPE = "log.jsonl", "result.json", "recipe.toml"


class DamagedRecord(UsageError):
    """A ``file`` of the run in ``path`` that cannot be believed, and why."""

    def __init__(self, path: Path, file: str, words: str) -> None:
        super().__init__(f"{path / file} {words}")
        self.file, self.words = file, words


@dataclass(frozen=True, eq=False)
class Run:
    """A finished run. ``name`` is its directory seen from the report, ``given`` what its user calls it."""

    name: str
    result: Tree
    recipe: str = ""
    path: Path | None = None
    given: str = ""

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

    @cached_property
    def log_fault(self) -> str:
        """Why the log does not say what it should: "missing", or what is damaged in it; empty if all is well."""
        if self.path is None or not (self.path / LOG).exists():
            return "missing"
        try:
            read_log(self.path)
        except ValueError as error:
            return str(error)
        return ""


@dataclass(frozen=True)
class Apart:
    """A directory that gives a report nothing. ``words`` are about its ``file``, or about all of it."""

    kind: Literal["unfinished", "empty", "damaged"]
    name: str
    given: str
    words: str
    file: str = ""

    @property
    def seen(self) -> tuple[str, str]:
        """The directory and what there is to say, as seen from the report."""
        return self._told(self.name)

    @property
    def asked(self) -> tuple[str, str]:
        """The same for the one who gave the directory."""
        return self._told(self.given)

    def _told(self, name: str) -> tuple[str, str]:
        return name, f"{PurePosixPath(name) / self.file} {self.words}" if self.file else self.words


@dataclass(frozen=True)
class Found:
    """``unfinished`` and ``damaged`` are pairs of a directory, seen from the report, and what there is to say."""

    runs: tuple[Run, ...]
    apart: tuple[Apart, ...] = ()

    @property
    def unfinished(self) -> tuple[tuple[str, str], ...]:
        return tuple(one.seen for one in self.apart if one.kind == "unfinished")

    @property
    def damaged(self) -> tuple[tuple[str, str], ...]:
        return tuple(one.seen for one in self.apart if one.kind == "damaged")


def find(directories: Sequence[Path], out: Path) -> Found:
    """All runs in or below ``directories``, by name as seen from ``out``. A damaged one does not hide the others."""
    runs: list[Run] = []
    apart: list[Apart] = []
    places: dict[Path, tuple[bool, str, Path, str]] = {}
    for top in directories:
        inside = list(_directories(top))
        if not inside:
            apart.append(Apart("empty", seen_from(out, top.resolve()), _text(top), "no run in it or below it"))
        for below in inside:  # a run that is found twice is one run; what leads to it without a link is its name
            path = top.resolve() / below
            real = path.resolve()
            place = (path != real, seen_from(out, path), path, _text(top / below))
            places[real] = min(place, places.get(real, place))
    for _, name, path, given in sorted(places.values(), key=lambda place: place[1]):
        try:
            _, result = read_record(path)
        except DamagedRecord as error:
            apart.append(Apart("damaged", name, given, error.words, error.file))
            continue
        if result is None:
            apart.append(Apart("unfinished", name, given, _how_far(path)))
        else:
            runs.append(Run(name, result, (path / RECIPE).read_text(encoding="utf-8"), path, given))
    return Found(tuple(runs), tuple(apart))


def seen_from(out: Path, path: Path) -> str:
    """The way from ``out`` to ``path``, as text that can be written."""
    return _text(Path(os.path.relpath(path, out.resolve())))


def _text(path: Path) -> str:
    return path.as_posix().encode(errors="replace").decode()


def _directories(top: Path) -> Iterator[Path]:
    """The run directories in ``top``, seen from it, each once: what can be reached without links, then by them."""
    if not top.is_dir():
        raise UsageError(f"{top} is no directory." if top.exists() else f"there is no directory {top}.")
    seen: set[str] = set()
    waiting = [os.fspath(top)]
    while waiting:
        for folder, inner, files in os.walk(waiting.pop(0)):
            inner.sort()
            if (real := os.path.realpath(folder)) in seen:  # where links lead in a circle, it ends here
                inner.clear()
                continue
            seen.add(real)
            waiting += [link for name in inner if os.path.islink(link := os.path.join(folder, name))]
            if RECIPE in files:
                yield Path(os.path.relpath(folder, top))


def read_record(path: Path) -> tuple[Tree, Tree | None]:
    """The recipe and the result of the run in ``path``, None if it is not finished.

    ``DamagedRecord`` if they are not to be trusted.
    """
    directory = RunDirectory(path)
    if not directory.recipe_file.exists():
        raise DamagedRecord(path, RECIPE, "is a link to nothing.")
    try:
        recipe = read_recipe(directory.recipe_file)
    except UsageError as error:
        raise DamagedRecord(path, RECIPE, str(error).removeprefix(f"{path / RECIPE} ")) from None
    try:
        if (result := directory.result()) is None:
            return recipe, None
        check(result)
        _check_recipe(recipe, result)
    except OSError as error:
        raise DamagedRecord(path, RESULT, f"cannot be read: {error.strerror}.") from None
    except UsageError as error:
        words = str(error).removeprefix(f"{path / RESULT} ").removesuffix(" Remove it and run again.")
        raise DamagedRecord(path, RESULT, words) from None
    except (ValueError, TypeError, AttributeError, OverflowError) as error:
        raise DamagedRecord(path, RESULT, f"is damaged: {error}") from None
    return recipe, result


def check(result: Tree) -> None:
    """``ValueError`` if a field is missing or of another kind, or a number does not follow from the matrix."""
    for kind, names in FIELDS.items():
        for name in names:
            if type(result.get(name)) is not kind:
                raise ValueError(f"{name} must be {kind.__name__}; got {result.get(name)!r}.")
    A = result["accuracy"]
    if not all(isinstance(row, list) for row in A):
        raise ValueError(f"accuracy must be a list of rows; got {A!r}.")
    if len(metrics.final(A)) != result["tasks"]:
        raise ValueError(f"the accuracy matrix has {len(A[0])} tasks; tasks = {result['tasks']}.")
    for name, value in {"acc": metrics.acc(A), "bwt": metrics.bwt(A)}.items():
        said = result.get(name)
        if said != value and not (is_number(said) and is_number(value) and math.isclose(said, value, abs_tol=1e-6)):
            raise ValueError(f"{name} is {said!r}, but the accuracy matrix gives {value!r}.")
    counted = {"bytes": ("memory", "per_task"), "seconds": ("train", "between_tasks", "evaluate")}
    amounts = {f"{t}.{key}": result[t].get(key) for t, keys in counted.items() for key in {*keys, *result[t]}}
    amounts |= {f"training.{key}": result["training"].get(key) for key in ("epochs", "lr")}
    amounts |= {f"epochs[{i}]": count for i, count in enumerate(result["epochs"])}
    for name, amount in amounts.items():
        check_amount(name, amount)


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


def read_log(path: Path) -> list[Tree]:
    """The events of the run in ``path``; ``ValueError`` if they, or the layers in them, are not what a run writes."""
    try:
        events = RunDirectory(path).events()
    except OSError as error:
        raise ValueError(f"it cannot be read: {error.strerror}.") from None
    except ValueError as error:
        raise ValueError(f"a line of it is not JSON: {error}.") from None
    for number, event in enumerate(events, start=1):
        try:
            if not isinstance(event, dict) or not isinstance(event.get("event"), str):
                raise ValueError(f"it must be an event; got {event!r:.80}.")
            check_layers(event.get("layers"))
        except ValueError as error:
            raise ValueError(f"line {number}: {error}") from None
    return events


def check_layers(layers: Any) -> None:
    """``ValueError`` if this is not what an event says of layers; an older one says nothing."""
    if layers is None:
        return
    if not isinstance(layers, dict):
        raise ValueError(f"layers must be a table by name; got {layers!r:.80}.")
    for name, layer in layers.items():
        if not isinstance(layer, dict):
            raise ValueError(f"the layer {name!r} must be a table; got {layer!r:.80}.")
        shape, trusted = layer.get("shape"), layer.get("trusted", [])
        if not (isinstance(shape, list) and len(shape) == 3 and all(type(n) is int and n > 0 for n in shape)):
            raise ValueError(f"the shape of the layer {name!r} must be 3 sizes; got {shape!r:.80}.")
        if not (isinstance(trusted, list) and all(type(t) is int for t in trusted)):
            raise ValueError(f"trusted of the layer {name!r} must be tasks; got {trusted!r:.80}.")
        check_amount(f"bytes of the layer {name!r}", layer.get("bytes"))


def check_amount(name: str, amount: Any) -> None:
    if not is_number(amount) or not 0 <= amount < math.inf:
        raise ValueError(f"{name} must be a number, 0 or more; got {amount!r:.80}.")


def is_number(value: Any) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _how_far(path: Path) -> str:
    try:
        ended = sum(event["event"] == "task" for event in read_log(path))
    except ValueError:
        return "not finished; its log is damaged"
    return f"not finished: {ended} task{'s' * (ended != 1)} learned" if ended else "not finished: no task learned yet"

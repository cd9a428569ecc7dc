"""Which runs are seeds of one experiment, which experiments may be compared, and what was varied between them.

An experiment is everything in a recipe but the seed (and where it was computed). Experiments under one *condition*,
the same tasks of the same benchmark in the same reading for as many epochs, stand in one table; others never share a
row or a rank. An *ablation* is a set of experiments that differ in exactly one value, whatever it is.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypeVar

from codecl.benchmarks.registry import BENCHMARKS
from codecl.methods import METHODS
from codecl.report.records import Run
from codecl.runs.plugins import title
from codecl.runs.recipe import PRESETS, Recipe, make_recipe
from codecl.text import shown

Tree = dict[str, Any]
T = TypeVar("T")
PARTS = {"settings": "settings", "training": "training", "data": "switches"}
"""The tables of a recipe, whose values may be varied, and what a result calls them."""


@dataclass(frozen=True)
class Condition:
    """What must be the same for two numbers to stand side by side.

    ``epochs`` is None for the whole schedule of a recipe file: some methods have longer ones than others.
    """

    benchmark: str
    preset: str
    tasks: int
    epochs: int | None
    quick: bool
    data: str
    switches: tuple[tuple[str, str], ...]

    @classmethod
    def of(cls, result: Tree) -> Condition:
        switches = tuple(sorted((name, str(choice)) for name, choice in result["switches"].items()))
        fields = {key: result[key] for key in ("benchmark", "preset", "tasks", "quick", "data")}
        epochs, recipe = result["training"]["epochs"], published_recipe(result, whole=True)
        whole = recipe is not None and recipe.training["epochs"] == epochs
        return cls(**fields, epochs=None if whole else epochs, switches=switches)

    @property
    def all_tasks(self) -> int | None:
        return BENCHMARKS[self.benchmark].tasks if self.benchmark in BENCHMARKS else None

    @property
    def budget(self) -> str:
        learned = f"{self.tasks}/{self.all_tasks}" if self.all_tasks else f"{self.tasks}"
        each = "whole schedule" if self.epochs is None else f"at most {self.epochs} epochs each"
        return f"{learned} tasks, {each}{' (quick)' * self.quick}"

    def words(self, without: str = "") -> dict[str, str]:
        """All of it, by name."""
        switches = ", ".join(f"{name} = {choice}" for name, choice in self.switches if name != without)
        return {
            "benchmark": self.benchmark, "preset": self.preset, "tasks": f"{self.tasks}",
            "epochs": "" if without == "epochs" else "whole" if self.epochs is None else f"{self.epochs}",
            "quick": "yes" if self.quick else "no", "data": self.data, "switches": switches,
        }  # fmt: skip

    def title(self, without: str = "") -> str:
        """In one line; ``without`` the value that is varied."""
        budget = self.budget if without != "epochs" else self.budget.split(", ")[0]
        usual = BENCHMARKS[self.benchmark].switches if self.benchmark in BENCHMARKS else {}
        unusual = [
            f"{name} = {choice}"
            for name, choice in self.switches
            if name != without and choice != usual.get(name, (None,))[0]
        ]
        parts = [self.benchmark, f"preset {self.preset}", budget, *unusual]
        return ", ".join([*parts, *([f"{self.data} data"] if self.data == "subset" else [])])

    @property
    def order(self) -> tuple[Any, ...]:
        """Benchmarks as they are listed, the paper's reading and the larger budgets first."""
        place = place_of(self.benchmark, BENCHMARKS)
        budget = (-self.tasks, self.epochs is not None, -(self.epochs or 0), self.quick)
        return place, self.benchmark, self.preset != "paper", self.preset, budget, self.data, self.switches


@dataclass(frozen=True, eq=False)
class Experiment:
    """Runs that differ in the seed alone, one for each; ``repeats`` are further runs of a seed, not counted."""

    runs: tuple[Run, ...]
    repeats: tuple[Run, ...] = ()
    named: tuple[str, ...] = field(default=())
    """Values to name beside the method, because another experiment differs in them."""

    @property
    def first(self) -> Run:
        return self.runs[0]

    @property
    def method(self) -> str:
        return str(self.first.result["method"])

    @cached_property
    def condition(self) -> Condition:
        return Condition.of(self.first.result)

    @property
    def values(self) -> dict[str, Any]:
        """Every value that may be varied, as ``settings.aperture``."""
        return values_of(self.first.result)

    @cached_property
    def departures(self) -> dict[str, Any]:
        return departures(self.first.result)

    def label(self, without: str = "", also: Sequence[str] = ()) -> str:
        """The method, and in what it departs from its recipe file; if that is silent, from its neighbours.

        ``also`` names further values. What an older run did not record, and a neighbour did, is said too.
        """
        told = usual_values(self.first.result)
        named = {*self.departures, *also, *(key for key in self.named if key not in told)}
        keys = [key for key in self.values if key in named and key != without]
        missing = [key for key in self.named if key not in self.values and key != without]
        return ", ".join(
            [
                title(self.method),
                *(f"{name_of(key)} = {shown(self.values[key])}" for key in keys),
                *(f"{name_of(key)} not recorded" for key in missing),
            ]
        )

    @property
    def order(self) -> tuple[Any, ...]:
        """As in the paper: the others first, CODE-CL after them, methods of somebody's own in the end."""
        place = place_of(self.method, [*reversed(METHODS)])
        return place, self.method, len(self.departures), [sortable(value) for value in self.values.values()]


@dataclass(frozen=True, eq=False)
class Ablation:
    """Experiments that differ in ``key`` alone, by its value."""

    key: str
    points: tuple[tuple[Any, Experiment], ...]
    named: tuple[str, ...] = ()
    """Values to name beside the method, because another ablation over ``key`` has others: the lines of a grid."""

    @property
    def name(self) -> str:
        return name_of(self.key)

    @property
    def numeric(self) -> bool:
        return all(is_number(value) for value, _ in self.points)

    def in_order(self) -> Ablation:
        """Numbers by size, anything else by how it is written."""
        return replace(self, points=tuple(sorted(self.points, key=lambda point: sortable(point[0]))))

    @property
    def label(self) -> str:
        """What stays the same in the method."""
        return self.points[0][1].label(without=self.key, also=self.named)

    @property
    def condition(self) -> str:
        return self.points[0][1].condition.title(without=self.name)


def experiments_of(runs: Iterable[Run]) -> list[Experiment]:
    """The experiments among ``runs``, condition by condition."""
    found = []
    for group in _grouped(runs, lambda run: _identity(run.result)):
        by_seed = _grouped(group, lambda run: run.seed)
        counted = sorted((same[0] for same in by_seed), key=lambda run: run.seed)
        found.append(Experiment(tuple(counted), tuple(run for same in by_seed for run in same[1:])))
    named = []
    for alike in _grouped(found, lambda e: (e.condition, e.method)):
        differing = tuple(_differing([e.values for e in alike]))
        named += [Experiment(e.runs, e.repeats, differing) for e in alike]
    return sorted(named, key=lambda e: (e.condition.order, e.order))


def conditions_of(experiments: Iterable[Experiment]) -> list[list[Experiment]]:
    """The experiments of each condition, in their order."""
    return _grouped(experiments, lambda e: e.condition)


def ablations_of(experiments: Sequence[Experiment]) -> list[Ablation]:
    """Every set of two or more experiments that differ in one value alone; of a grid, each of its lines."""
    found: list[Ablation] = []
    for key in _union(e.values for e in experiments):
        lines: list[Ablation] = []
        rest = {id(e): _identity(e.first.result, without=key) for e in experiments if key in e.values}
        for group in _grouped([e for e in experiments if id(e) in rest], lambda e, rest=rest: rest[id(e)]):  # type: ignore[misc]
            if len(group) > 1:
                lines.append(Ablation(key, tuple((e.values[key], e) for e in group)).in_order())
        for alike in _grouped(lines, lambda a: (a.condition, a.points[0][1].method)):
            differing = _differing([a.points[0][1].values for a in alike])
            found += [replace(a, named=tuple(k for k in differing if k != key)) for a in alike]
    return found


def _identity(result: Tree, without: str = "") -> str:
    """What must agree for two runs to be seeds of one experiment; or, ``without`` a value, points of one ablation."""
    top = [result[key] for key in ("method", "benchmark", "preset", "quick", "data", "tasks")]
    return _text([*top, {key: value for key, value in values_of(result).items() if key != without}])


def values_of(result: Tree) -> dict[str, Any]:
    return {f"{part}.{key}": value for part, its in PARTS.items() for key, value in result[its].items()}


def published_recipe(result: Tree, whole: bool = False) -> Recipe | None:
    """What the recipe files say for such a run; nothing for a method or benchmark of somebody's own.

    For as many epochs as it had, or for the ``whole`` schedule.
    """
    if result["method"] not in METHODS or result["benchmark"] not in BENCHMARKS or result["preset"] not in PRESETS:
        return None
    asked = {key: result[key] for key in ("method", "benchmark", "preset")}
    if whole:
        return make_recipe(asked, {})
    recipe, epochs = make_recipe(asked | {"quick": result["quick"]}, {}), result["training"]["epochs"]
    return recipe if recipe.training["epochs"] == epochs else make_recipe(asked, {}, epochs)


def usual_values(result: Tree) -> dict[str, Any]:
    """The settings and the values of training that its recipe file has for such a run."""
    recipe = published_recipe(result)
    return values_of({"settings": recipe.settings, "training": recipe.training, "switches": {}}) if recipe else {}


def departures(result: Tree) -> dict[str, Any]:
    """The values in which a run departs from its recipe file."""
    usual, values = usual_values(result), values_of(result)
    return {key: values[key] for key in usual if key in values and _text(values[key]) != _text(usual[key])}


def is_whole(result: Tree) -> bool:
    """The protocol of the recipe file: all tasks, and no schedule cut short."""
    condition, recipe = Condition.of(result), published_recipe(result, whole=True)
    enough = recipe is None or result["training"]["epochs"] >= recipe.training["epochs"]
    return not condition.quick and condition.tasks == condition.all_tasks and enough


def place_of(name: str, names: Iterable[str]) -> int:
    """Where ``name`` stands among ``names``; after them all if it does not."""
    listed = list(names)
    return listed.index(name) if name in listed else len(listed)


def _grouped(items: Iterable[T], key: Callable[[T], Hashable]) -> list[list[T]]:
    groups: dict[Hashable, list[T]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return list(groups.values())


def _differing(tables: Sequence[dict[str, Any]]) -> list[str]:
    """The keys whose values are not the same in all ``tables``."""
    return [key for key in _union(tables) if len({_text(values.get(key)) for values in tables}) > 1]


def name_of(key: str) -> str:
    """``aperture`` of ``settings.aperture``."""
    return key.partition(".")[2]


def same(one: Any, other: Any) -> bool:
    """Whether two values of a recipe mean the same."""
    return _text(one) == _text(other)


def _union(tables: Iterable[Iterable[str]]) -> list[str]:
    return list(dict.fromkeys(key for table in tables for key in table))


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def sortable(value: Any) -> tuple[bool, float, str]:
    """Numbers by size, then anything else by how it is written."""
    return (False, value, "") if is_number(value) else (True, 0.0, shown(value))


def _text(value: Any) -> str:
    """The same for values that mean the same: 4 and 4.0, a tuple and a list."""
    return json.dumps(json.loads(json.dumps(value), parse_float=_number), sort_keys=True)


def _number(text: str) -> int | float:
    return int(value) if (value := float(text)).is_integer() else value

"""Which runs are seeds of one experiment, which experiments may be compared, and what was varied between them.

An experiment is everything in a recipe but the seed (and where it was computed). Experiments under one *condition*,
the same tasks of the same benchmark with the same preset for as many epochs, stand in one table; others never share a
row or a rank. An *ablation* is a set of experiments that differ in exactly one value, whatever it is.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import Any, TypeVar

from codecl.benchmarks.registry import BENCHMARKS
from codecl.methods import METHODS, Method
from codecl.report.records import Run
from codecl.runs.recipe import FAST_PRESETS, PRESETS, Recipe, make_recipe
from codecl.runs.records import Result
from codecl.runs.typed import is_number
from codecl.text import one_line, plain, shown

T = TypeVar("T")
IDENTITY = ("method", "benchmark", "preset", "data", "tasks")
"""What the seeds of an experiment share, beside all values that may be varied."""
MEASURING = {"training.infer_tasks", "settings.evidence"}
"""Values that say what is measured and change nothing about the training."""


@dataclass(frozen=True)
class Condition:
    """What must be the same for two numbers to stand side by side.

    ``epochs`` is None for the whole schedule of a recipe file: some methods have longer ones than others. The fast
    presets have one schedule, whatever the reading: all of them are ``fast`` here.
    """

    benchmark: str
    preset: str
    tasks: int
    epochs: int | None
    data: str
    switches: tuple[tuple[str, str], ...]

    @property
    def all_tasks(self) -> int | None:
        """How many tasks the benchmark has; None for one of the user's own."""
        return BENCHMARKS[self.benchmark].tasks if self.benchmark in BENCHMARKS else None

    @property
    def tasks_learned(self) -> str:
        return f"{self.tasks}/{self.all_tasks} tasks" if self.all_tasks else f"{self.tasks} tasks"

    def title(self, without: str = "") -> str:
        """In one line; ``without`` the value that is varied."""
        most = f"at most {self.epochs} epoch{'s' * (self.epochs != 1)} each"
        epochs = "whole schedule" if self.epochs is None else most
        choices = BENCHMARKS[self.benchmark].switches if self.benchmark in BENCHMARKS else {}
        usual = {(name, first) for name, (first, *_) in choices.items()}
        parts = [self.benchmark, f"preset {self.preset}", self.tasks_learned]
        parts += [epochs] * (without != "epochs")
        parts += [f"{s[0]} = {s[1]}" for s in self.switches if s not in usual and s[0] != without]
        return one_line(", ".join([*parts, *["subset data"] * (self.data == "subset")]))

    def fields(self, without: str = "") -> dict[str, str]:
        """Everything by name, as text; ``without`` the value that is varied."""
        epochs = "whole" if self.epochs is None else f"{self.epochs}"
        return {
            "benchmark": self.benchmark, "preset": self.preset, "tasks": f"{self.tasks}",
            "epochs": epochs if without != "epochs" else "", "data": self.data,
            "switches": ", ".join(f"{name} = {choice}" for name, choice in self.switches if name != without),
        }  # fmt: skip

    @property
    def order(self) -> tuple[Any, ...]:
        """Benchmarks as they are listed, the larger budgets first, and of those the paper's preset."""
        budget = (-self.tasks, self.epochs is not None, -(self.epochs or 0))
        place = position(self.benchmark, BENCHMARKS)
        return place, self.benchmark, budget, self.preset != "paper", self.preset, self.data, self.switches


@dataclass(frozen=True, eq=False)
class Experiment:
    """Runs that differ in the seed alone, one for each seed; ``repeats`` are further runs of a seed, not counted.

    ``named`` are the values that stand beside the method in a label.
    """

    runs: tuple[Run, ...]
    repeats: tuple[Run, ...] = ()
    named: tuple[str, ...] = ()

    @property
    def first(self) -> Result:
        """The result of the first seed; all others have the same recipe."""
        return self.runs[0].result

    @property
    def method(self) -> str:
        return self.first.method

    @property
    def title(self) -> str:
        """The method, and its reading where the condition leaves that open and it is not the paper's."""
        reading = FAST_PRESETS.get(self.first.preset, "paper")
        return self.first.title if reading == "paper" else f"{self.first.title} ({reading})"

    @property
    def is_published(self) -> bool:
        """Whether its reading is the paper's or that of its code: beside others no number of the paper stands."""
        return PRESETS.get(self.first.preset) in Method.presets

    @property
    def joint(self) -> bool:
        """Whether all tasks are learned at once: an upper bound and not continual learning."""
        return self.first.joint

    @cached_property
    def condition(self) -> Condition:
        r, epochs = self.first, self.first.training["epochs"]
        recipe = published_recipe(r.method, r.benchmark, r.preset)
        whole = recipe is not None and recipe.training["epochs"] == epochs
        switches = tuple(sorted(r.switches.items()))
        preset = "fast" if r.preset in FAST_PRESETS else r.preset
        return Condition(r.benchmark, preset, r.tasks, None if whole else epochs, r.data, switches)

    @cached_property
    def values(self) -> dict[str, Any]:
        """Every value that may be varied, by a name such as ``settings.aperture``.

        One that is newer than the record is what the recipe file has: a default that changed nothing as it came.
        """
        given = _values(settings=self.first.settings, training=self.first.training, data=self.first.switches)
        return given | {key: value for key, value in self.usual.items() if key not in given}

    @cached_property
    def usual(self) -> dict[str, Any]:
        """What the recipe file has for such a run of as many epochs; empty for a user's own method or benchmark."""
        r, epochs = self.first, self.first.training["epochs"]
        recipe = published_recipe(r.method, r.benchmark, r.preset)
        if recipe is not None and recipe.training["epochs"] != epochs:
            recipe = published_recipe(r.method, r.benchmark, r.preset, epochs=epochs)
        return _values(settings=recipe.settings, training=recipe.training) if recipe else {}

    @cached_property
    def departures(self) -> dict[str, Any]:
        """The values in which it departs from the recipe file."""
        usual = self.usual
        return {key: value for key, value in self.values.items() if key in usual and not same(value, usual[key])}

    def label(self, without: str = "", also: Sequence[str] = ()) -> str:
        """The method and the values to name; ``also`` names further ones, ``without`` leaves one out."""
        keys = [key for key in self.values if key in (*self.named, *also) and key != without]
        values = [f"{short_key(key)} = {shown(self.values[key])}" for key in keys]
        return one_line(", ".join([self.title, *values]))

    def seeds(self) -> str:
        return f"seed{'s' * (len(self.runs) > 1)} {', '.join(str(run.seed) for run in self.runs)}"

    def shares_a_seed(self, other: Experiment) -> bool:
        """Whether a seed was run in both; no experiment is another one."""
        return self is not other and not {run.seed for run in self.runs}.isdisjoint(run.seed for run in other.runs)

    def of_seed(self, seed: int) -> Run:
        """The run of ``seed`` that is counted."""
        return next(run for run in self.runs if run.seed == seed)

    @property
    def order(self) -> tuple[Any, ...]:
        """As in the paper: the others first, CODE-CL after them, a user's own methods last."""
        place = position(self.method, reversed(METHODS))
        return place, self.method, len(self.departures), [sort_key(value) for value in self.values.values()]


@dataclass(frozen=True, eq=False)
class Ablation:
    """Experiments that differ in ``key`` alone, by its value; ``label`` says what stays the same."""

    key: str
    label: str
    points: tuple[tuple[Any, Experiment], ...]

    @property
    def name(self) -> str:
        return short_key(self.key)

    @property
    def first(self) -> Experiment:
        return self.points[0][1]

    @property
    def numeric(self) -> bool:
        return all(is_number(value) for value, _ in self.points)

    @property
    def condition(self) -> str:
        return self.first.condition.title(without=self.name)


def find_experiments(runs: Iterable[Run]) -> list[Experiment]:
    """The experiments among ``runs``, condition by condition."""
    found = []
    for group in _grouped([Experiment((run,)) for run in runs], _identity):
        by_seed = _grouped([e.runs[0] for e in group], lambda run: run.seed)
        counted = sorted((same_seed[0] for same_seed in by_seed), key=lambda run: run.seed)
        repeats = [run for same_seed in by_seed for run in same_seed[1:]]
        found.append(Experiment(tuple(counted), tuple(repeats)))
    named = []
    for group in _grouped(found, lambda e: (e.condition, e.method)):
        differing = _differing(group)
        named += [replace(e, named=tuple(e.departures if e.usual else differing)) for e in group]
    return sorted(named, key=lambda e: (e.condition.order, e.order))


def by_condition(experiments: Iterable[Experiment]) -> list[list[Experiment]]:
    """The experiments of each condition, in their order."""
    return _grouped(experiments, lambda e: e.condition)


def find_ablations(experiments: Sequence[Experiment]) -> list[Ablation]:
    """Every set of two or more experiments that differ in one value alone; of a grid, each of its lines.

    One that has no seed in common with another differs in more than that value, and is left out.
    """
    keys = dict.fromkeys(key for e in experiments for key in e.values if key not in MEASURING)
    return [ablation for key in keys for ablation in _ablations_over(key, experiments)]


def _ablations_over(key: str, experiments: Sequence[Experiment]) -> Iterator[Ablation]:
    groups = _grouped([e for e in experiments if key in e.values], lambda e: _identity(e, without=key))
    groups = [[e for e in group if any(e.shares_a_seed(other) for other in group)] for group in groups]
    lines = [sorted(group, key=lambda e: sort_key(e.values[key])) for group in groups if group]
    for alike in _grouped(lines, lambda line: (line[0].condition.title(short_key(key)), line[0].method)):
        differing = _differing([line[0] for line in alike])
        for line in alike:
            label = line[0].label(without=key, also=differing)
            yield Ablation(key, label, tuple((e.values[key], e) for e in line))


def unvaried(experiments: Sequence[Experiment], ablations: Sequence[Ablation]) -> list[Experiment]:
    """The experiments without those that depart from their recipe file in what an ablation varies, or in measuring.

    Where nothing would be left of a method under a condition, all of it stays.
    """
    varied = {e for a in ablations for _, e in a.points if a.key in e.departures}
    varied |= {e for e in experiments if MEASURING & set(e.departures)}
    bases = {(e.condition, e.method) for e in experiments if e not in varied}
    return [e for e in experiments if e not in varied or (e.condition, e.method) not in bases]


@cache
def published_recipe(method: str, benchmark: str, preset: str, epochs: int | None = None) -> Recipe | None:
    """What the recipe files say; None for a method or a benchmark of the user's own."""
    if method not in METHODS or benchmark not in BENCHMARKS or preset not in PRESETS:
        return None
    return make_recipe({"method": method, "benchmark": benchmark, "preset": preset}, {}, epochs)


def _identity(e: Experiment, without: str = "") -> str:
    """What two runs share that are seeds of one experiment; or, ``without`` a value, points of one ablation."""
    values = {key: value for key, value in e.values.items() if key != without}
    return _canonical([*(getattr(e.first, name) for name in IDENTITY), values])


def _differing(experiments: Sequence[Experiment]) -> list[str]:
    """The values that are not the same in all ``experiments``."""
    keys = dict.fromkeys(key for e in experiments for key in e.values)
    return [key for key in keys if len({_canonical(e.values.get(key)) for e in experiments}) > 1]


def _grouped(items: Iterable[T], key: Callable[[T], Hashable]) -> list[list[T]]:
    groups: dict[Hashable, list[T]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return list(groups.values())


def _values(**tables: Any) -> dict[str, Any]:
    return {f"{table}.{name}": value for table, values in tables.items() for name, value in values.items()}


def short_key(key: str) -> str:
    """``aperture`` of ``settings.aperture``."""
    return key.partition(".")[2]


def position(name: str, names: Iterable[str]) -> int:
    """The place of ``name`` among ``names``; after them all if it is not there."""
    listed = list(names)
    return listed.index(name) if name in listed else len(listed)


def sort_key(value: Any) -> tuple[bool, float, str]:
    """Numbers by size, then anything else by how it is written."""
    return (False, value, "") if is_number(value) else (True, 0.0, shown(value))


def same(one: Any, other: Any) -> bool:
    """Whether two values of a recipe mean the same: 4 and 4.0, a tuple and a list."""
    return _canonical(one) == _canonical(other)


def _canonical(value: Any) -> str:
    return json.dumps(plain(value), sort_keys=True)

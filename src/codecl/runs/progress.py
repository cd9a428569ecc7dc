"""What is shown while runs go on: lines for people and for programs here, bars on a terminal in ``live``."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TextIO

from codecl.runs.events import EpochCount, EpochEvent, Event, NoticeEvent, ResumeEvent, TaskEvent
from codecl.runs.plugins import find_benchmark
from codecl.runs.recipe import Recipe
from codecl.text import duration

RECENT = 10
"""The epochs whose time tells how long the next ones take."""


class Display:
    """Shows the events of runs by name; a single run has an empty one. This one shows notices of a single run only."""

    def show(self, name: str, event: Event) -> None:
        if not name and isinstance(event, NoticeEvent):
            print(f"codecl: {event.text}", file=sys.stderr)

    def close(self) -> None:
        """Nothing is open."""


class JsonDisplay(Display):
    """A line of JSON for every event."""

    def show(self, name: str, event: Event) -> None:
        print_json(({"run": name} if name else {}) | event.to_fields())


def open_display(recipes: Mapping[str, Recipe], out: TextIO | None = None) -> Display:
    """The display for people: bars on a terminal, if ``rich`` is installed, and else plain lines."""
    out = out or sys.stdout
    paces = {name: Pace.of(recipe) for name, recipe in recipes.items()}
    if out.isatty() and importlib.util.find_spec("rich") is not None:
        from codecl.runs.live import LiveDisplay

        return LiveDisplay(paces, out)
    return PlainDisplay(paces, out)


@dataclass
class Pace:
    """How far a run of ``tasks`` tasks, of at most ``epochs`` epochs each, has come, and how long the rest may take."""

    tasks: int
    epochs: int
    seconds: list[float] = field(default_factory=list)
    count: EpochCount = field(default_factory=EpochCount)

    @classmethod
    def of(cls, recipe: Recipe) -> Pace:
        return cls(recipe.tasks or find_benchmark(recipe.benchmark).tasks, recipe.training["epochs"])

    def see(self, event: Event) -> None:
        self.count.see(event)
        if isinstance(event, EpochEvent):
            self.seconds.append(event.seconds)

    def epochs_left(self, event: EpochEvent) -> float:
        """At most so many, if later tasks need as many as the finished ones did."""
        finished = [epochs for task, epochs in self.count.by_task.items() if task < event.task]
        usual = sum(finished) / len(finished) if finished else self.epochs
        return max(event.max_epochs - event.epoch, 0) + usual * (self.tasks - event.task - 1)

    def time_left(self, event: EpochEvent) -> float:
        """Seconds, if every epoch takes as long as the recent ones."""
        recent = self.seconds[-RECENT:]
        return self.epochs_left(event) * sum(recent) / len(recent)

    def fraction_done(self, event: EpochEvent) -> float:
        return self.count.total / (self.count.total + self.epochs_left(event))

    def describe(self, event: Event) -> str:
        """The event in a line."""
        if isinstance(event, EpochEvent):
            return (
                f"{self.task_name(event)}  epoch {event.epoch}/{event.max_epochs}  "
                f"loss {event.loss:.4f}  validation {event.validation_accuracy:.1f} %  lr {event.lr:.2g}  "
                f"at most {duration(self.time_left(event))} left"
            )
        if isinstance(event, TaskEvent):
            cells = " ".join(f"{value:5.1f}" for value in event.measured)
            return f"after {self.task_name(event)}: {cells}   mean {event.mean:.1f}"
        if isinstance(event, ResumeEvent):
            task = f"task {event.task + 1}" if event.together is None else "all tasks"
            return f"going on with {task} after epoch {event.epoch}"
        return event.text if isinstance(event, NoticeEvent) else ""

    def task_name(self, event: EpochEvent | TaskEvent) -> str:
        return f"task {event.task + 1}/{self.tasks}" if event.together is None else f"all {self.tasks} tasks"


@dataclass(frozen=True)
class PlainDisplay(Display):
    """A line for every event, which begins with the name of the run."""

    paces: Mapping[str, Pace]
    out: TextIO

    def show(self, name: str, event: Event) -> None:
        self.paces[name].see(event)
        label = f"{name} " if name else ""
        print(f"{label}{self.paces[name].describe(event)}", file=self.out, flush=True)


def print_json(value: Mapping[str, Any]) -> None:
    """A line of JSON on standard output."""
    print(json.dumps(value), flush=True)

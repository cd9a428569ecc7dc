"""Runs on a terminal, drawn by ``rich``: a bar for each, what it is learning, the time left, the accuracy so far."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TextIO

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TaskProgressColumn, TextColumn

from codecl.runs.events import EpochEvent, Event, TaskEvent
from codecl.runs.progress import Display, Pace
from codecl.text import duration

FIELDS = ("at", "left", "accuracy")


class LiveDisplay(Display):
    """A table with a row for every run that has begun. What stays to be read is printed above it.

    That is every notice and, of a single run, the row of the accuracy matrix after each task.
    """

    def __init__(self, paces: Mapping[str, Pace], out: TextIO) -> None:
        self.paces = paces
        self._rows: dict[str, TaskID] = {}
        names = [TextColumn("{task.description}", markup=False)] if len(paces) > 1 else []
        at, left, accuracy = (TextColumn(f"{{task.fields[{key}]}}", markup=False) for key in FIELDS)
        columns = [*names, at, BarColumn(), TaskProgressColumn(), left, accuracy]
        self._progress = Progress(*columns, console=Console(file=out))
        self._progress.start()

    def show(self, name: str, event: Event) -> None:
        pace = self.paces[name]
        pace.see(event)
        if name not in self._rows:
            self._rows[name] = self._progress.add_task(name, total=1.0, at="", left="", accuracy="")
        row = self._rows[name]
        if isinstance(event, EpochEvent):
            at = f"{pace.task_name(event)}, epoch {event.epoch}/{event.max_epochs}"
            left = f"at most {duration(pace.time_left(event))} left"
            self._progress.update(row, completed=pace.fraction_done(event), at=at, left=left)
        elif isinstance(event, TaskEvent):
            self._progress.update(row, accuracy=f"ACC {event.mean:.1f} %")
            if event.task + 1 == pace.tasks:
                self._progress.update(row, completed=1.0, left="done")
        if not isinstance(event, EpochEvent) and (len(self.paces) == 1 or not isinstance(event, TaskEvent)):
            line = f"{name} {pace.describe(event)}" if name else pace.describe(event)
            self._progress.console.print(line, markup=False, highlight=False, soft_wrap=True)

    def close(self) -> None:
        self._progress.stop()

"""What a person sees while a run goes on: a line that is rewritten on a terminal, plain lines anywhere else."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import Any, TextIO

Event = Mapping[str, Any]


class ShowProgress:
    """Task, epoch, loss, validation accuracy, learning rate, time left; the accuracy matrix, row by row."""

    def __init__(self, tasks: int, epochs: int, out: TextIO | None = None, label: str = "") -> None:
        self.tasks, self.epochs, self.label = tasks, epochs, f"{label} " if label else ""
        self.out = out or sys.stdout
        self.rewrites = self.out.isatty()
        self._seconds: list[float] = []
        self._epochs_of_task: dict[int, int] = {}

    def __call__(self, event: Event) -> None:
        kind = event["event"]
        if kind == "epoch":
            self._seconds.append(event["seconds"])
            self._epochs_of_task[event["task"]] = event["epoch"]
            self._line(self.epoch_text(event))
        elif kind == "task":
            self._end_line()
            known = [value for value in event["accuracy"] if value is not None]
            cells = " ".join(f"{value:5.1f}" for value in known)
            mean = sum(known) / len(known)
            print(f"{self.label}after {self._tasks(event)}: {cells}   mean {mean:.1f}", file=self.out, flush=True)
        elif kind in ("resume", "notice"):
            self._end_line()
            print(f"{self.label}{self._words(event)}", file=self.out, flush=True)

    def epoch_text(self, event: Event) -> str:
        return (
            f"{self.label}{self._tasks(event)}  epoch {event['epoch']}/{event['of']}  "
            f"loss {event['loss']:.4f}  validation {event['validation_accuracy']:.1f} %  lr {event['lr']:.2g}  "
            f"at most {duration(self.time_left(event))} left"
        )

    def time_left(self, event: Event) -> float:
        """If every epoch took as long as the recent ones, and later tasks as many as the finished ones needed."""
        recent = self._seconds[-10:]
        finished = [n for task, n in self._epochs_of_task.items() if task < event["task"]]
        usual = sum(finished) / len(finished) if finished else self.epochs
        epochs = max(event["of"] - event["epoch"], 0) + usual * (self.tasks - event["task"] - 1)
        return float(epochs * sum(recent) / len(recent))

    def close(self) -> None:
        self._end_line()

    def _tasks(self, event: Event) -> str:
        return f"all {self.tasks} tasks" if "together" in event else f"task {event['task'] + 1}/{self.tasks}"

    def _words(self, event: Event) -> str:
        if event["event"] == "notice":
            return str(event["text"])
        what = "all tasks" if "together" in event else f"task {event['task'] + 1}"
        return f"going on with {what} after epoch {event['epoch']}"

    def _line(self, text: str) -> None:
        if self.rewrites:
            print(f"\r\x1b[K{text}", end="", file=self.out, flush=True)
            self._open = True
        else:
            print(text, file=self.out, flush=True)

    _open = False

    def _end_line(self) -> None:
        if self._open:
            print("\r\x1b[K", end="", file=self.out, flush=True)
            self._open = False


def print_json(event: Event) -> None:
    """Every event as a line of JSON on standard output."""
    print(json.dumps(event), flush=True)


def duration(seconds: float) -> str:
    """``75`` as ``1m15s``."""
    whole = round(seconds)
    hours, minutes = divmod(whole // 60, 60)
    if hours:
        return f"{hours}h{minutes:02d}m"
    return f"{minutes}m{whole % 60:02d}s" if minutes else f"{whole}s"


def size(count: int) -> str:
    """Bytes as a person reads them."""
    value = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if value < 999.5:  # from there on three digits round to 1000, which is 1 of the next unit
            return f"{value:.3g} {unit}"
        value /= 1000
    return f"{value:.3g} TB" if value < 999.5 else f"{value:.0f} TB"


def table(head: list[str], rows: list[list[str]]) -> str:
    """Aligned columns, the first to the left and the others to the right."""
    widths = [max(len(line[i]) for line in (head, *rows)) for i in range(len(head))]

    def align(line: list[str]) -> str:
        cells = [
            line[0].ljust(widths[0]),
            *(cell.rjust(width) for cell, width in zip(line[1:], widths[1:], strict=True)),
        ]
        return "  ".join(cells).rstrip()

    return "\n".join([align(head), "  ".join("-" * width for width in widths), *map(align, rows)])

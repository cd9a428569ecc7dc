"""``codecl watch``: runs as they go. It reads what the run directories hold and touches nothing."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from codecl.benchmarks.registry import BENCHMARKS
from codecl.cli.options import add_command
from codecl.errors import UsageError
from codecl.report.names import readable
from codecl.report.records import run_directories
from codecl.runs.events import EpochEvent, TaskEvent
from codecl.runs.progress import Pace
from codecl.runs.records import LOG, RunRecord, read_run
from codecl.text import duration, printable, table

HEAD = ("run", "state", "at", "validation %", "accuracy so far %", "time left", "last event")
CLEAR = "\x1b[H\x1b[J"
CURVE = "▁▂▃▄▅▆▇█"


def add(commands: Any) -> None:
    parser = add_command(
        commands, "watch", watch, "follow runs as they go: how far they are, how good, and the time left",
        """
  codecl watch runs/c                               until all are finished, or Ctrl-C
  codecl watch runs/c --once                        the table as it is now""",
    )  # fmt: skip
    parser.add_argument("directories", nargs="+", type=Path, metavar="DIR", help="directories with runs below them")
    parser.add_argument("--every", type=float, default=2.0, metavar="SECONDS", help="how often to look (default 2)")
    parser.add_argument("--once", action="store_true", help="print the table once")


def watch(options: argparse.Namespace) -> int:
    if not 0.1 <= options.every <= 3600:
        raise UsageError(f"--every takes seconds from 0.1 to 3600; got {options.every:g}.")
    before, on_terminal = "", sys.stdout.isatty() and not options.once
    while True:
        records = read_runs(options.directories)
        shown = printable(watch_table(records, time.time()))
        if on_terminal or shown.partition("last event")[0] != before:
            print(f"{CLEAR if on_terminal else ''}{shown}", flush=True)
        before = shown.partition("last event")[0]
        if options.once or (records and all(record.result is not None for record in records.values())):
            return 0
        time.sleep(options.every)


def read_runs(directories: Sequence[Path]) -> dict[str, RunRecord]:
    """Every run in or below ``directories``, by name."""
    return {readable(top / path): read_run(top / path) for top in directories for path in run_directories(top)}


def watch_table(records: dict[str, RunRecord], now: float) -> str:
    """A row for each run, and below it how many are finished."""
    rows = [[name, *watch_row(record, now)] for name, record in records.items()]
    finished = sum(record.result is not None for record in records.values())
    return f"{table(HEAD, rows) if rows else 'no run yet'}\n{finished} of {len(rows)} finished"


def watch_row(record: RunRecord, now: float) -> list[str]:
    """What ``HEAD`` has of a run after its name. The curve is the mean accuracy after each task, from 0 to 100 %."""
    learned = record.tasks
    means = [event.mean for event in learned]
    curve = "".join(CURVE[min(len(CURVE) - 1, int(mean / 100 * len(CURVE)))] for mean in means)
    so_far = f"{curve} {means[-1]:.1f}" if means else "–"
    if record.damage:
        return ["damaged", "–", "–", so_far, "–", _age(record, now)]
    if record.result is not None:
        return ["finished", _count(record), "–", f"{curve} {record.result.acc:.1f}".strip(), "–", _age(record, now)]
    last = record.events[-1] if record.events else None
    if not isinstance(last, EpochEvent):
        return ["begun" if record.events else "waiting", _count(record), "–", so_far, "–", _age(record, now)]
    pace = Pace(_tasks(record) or len(learned) + 1, last.max_epochs)
    for event in record.events:
        pace.see(event)
    at = f"{pace.task_name(last)}, epoch {last.epoch}/{last.max_epochs}"
    left = f"at most {duration(pace.time_left(last))}"
    return ["learning", at, f"{last.validation_accuracy:.1f}", so_far, left, _age(record, now)]


def _tasks(record: RunRecord) -> int | None:
    """How many tasks a run has, as far as its files say; a benchmark of the user's own is not imported for it."""
    asked, benchmark = record.recipe.get("tasks"), record.recipe.get("benchmark")
    if isinstance(asked, int):
        return asked
    if isinstance(benchmark, str) and benchmark in BENCHMARKS:
        return BENCHMARKS[benchmark].tasks
    return len(record.tasks[0].accuracy) if record.tasks else None


def _count(record: RunRecord) -> str:
    last = next((event for event in reversed(record.events) if isinstance(event, TaskEvent)), None)
    done = 0 if last is None else last.together or last.task + 1
    return f"{done}/{_tasks(record) or '?'} tasks"


def _age(record: RunRecord, now: float) -> str:
    """How long ago something was logged: a run that is silent for long may have been stopped."""
    try:
        return f"{duration(max(0.0, now - (record.path / LOG).stat().st_mtime))} ago"
    except OSError:
        return "–"

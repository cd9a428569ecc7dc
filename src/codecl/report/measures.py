"""What is measured of an experiment: the columns of tables, and the cells in them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from codecl.report.experiments import Experiment
from codecl.report.footprint import FOOTPRINTS
from codecl.report.published import as_printed, printed
from codecl.report.table import Cell, Column
from codecl.text import duration, size

Measure = tuple[Column, Callable[[Experiment], Cell]]
"""A column, and what stands in it for an experiment."""


def acc(e: Experiment) -> Cell:
    return Cell.mean([run.result.acc for run in e.runs])


def bwt(e: Experiment) -> Cell:
    return Cell.mean([run.result.bwt for run in e.runs if run.result.bwt is not None])


def memory(e: Experiment) -> Cell:
    return _amount([run.result.bytes["memory"] for run in e.runs])


def memory_per_task(e: Experiment) -> Cell:
    return _amount([run.result.bytes["per_task"] for run in e.runs])


def time(e: Experiment) -> Cell:
    return _amount([run.result.total_seconds for run in e.runs])


def time_between_tasks(e: Experiment) -> Cell:
    return _amount([run.result.seconds["between_tasks"] for run in e.runs])


def epoch_time(e: Experiment) -> Cell:
    results = [run.result for run in e.runs]
    return _amount([r.seconds["train"] / sum(r.epochs) for r in results if sum(r.epochs)])


def machines(e: Experiment) -> Cell:
    results = [run.result for run in e.runs]
    names = {f"{r.device}, {r.threads} thread{'s' * (r.threads > 1)}" for r in results}
    return Cell(" and ".join(sorted(names)))


def paper_order(e: Experiment) -> Cell:
    order = FOOTPRINTS[e.method].paper if e.method in FOOTPRINTS else "–"
    return Cell(f"O({order})" if order != "–" else None)


def memory_formula(e: Experiment) -> Cell:
    return Cell(FOOTPRINTS[e.method].formula if e.method in FOOTPRINTS else None)


def _amount(values: Sequence[float]) -> Cell:
    """A mean, with its deviation unless that is 0: most memories are the same for every seed."""
    cell = Cell.mean(values)
    return replace(cell, spread=cell.spread or None)


def _in_bytes(value: float) -> str:
    return size(round(value))


ACC: Measure = (Column("ACC %", best="highest"), acc)
BWT: Measure = (Column("BWT %", best="highest"), bwt)
MEMORY: Measure = (Column("memory", _in_bytes), memory)
PAPER_ACC: Measure = (Column("paper ACC", as_printed), lambda e: printed(e, "acc"))
PAPER_BWT: Measure = (Column("paper BWT", as_printed), lambda e: printed(e, "bwt"))
COSTS: list[Measure] = [
    (Column("order in the paper"), paper_order),
    (Column("bytes of a layer"), memory_formula),
    MEMORY,
    (Column("of it per task", _in_bytes), memory_per_task),
    (Column("time a run", duration), time),
    (Column("training epoch", "{:.2f} s".format), epoch_time),
    (Column("between tasks", duration), time_between_tasks),
    (Column("on"), machines),
]

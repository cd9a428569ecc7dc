"""The tables of the paper, for whatever was run: accuracy, forward transfer, memory, overlapping classes, ablations."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from codecl.report import experiments as grouping
from codecl.report.experiments import Ablation, Experiment
from codecl.report.footprint import FOOTPRINTS
from codecl.report.published import as_printed, printed
from codecl.report.records import Run
from codecl.report.table import DEVIATION, Cell, Column, Row, Section, Table, make_table
from codecl.report.transfer import Transfer, find_transfers
from codecl.runs.records import Result
from codecl.text import duration, shown, size

OVERLAPPING = ("ol-cifar100",)
"""Benchmarks whose tasks share classes: Table 4 of the paper."""
PAPER_NOTE = "The paper's numbers are for all tasks and its whole schedule; what was run here stands above the rows."
JOINT_NOTE = "multitask learns all tasks at once: an upper bound that takes no rank."
MEMORY_NOTE = (
    "A fully connected layer of N inputs and M outputs after T tasks: B directions for each task, r for all, "
    "s that the last task shares, K freed, E inputs added by a task, w bytes for a number of the model. "
    "Memory is what the method stores in the end for the whole network."
)


class Measure(NamedTuple):
    """A column, the cell that an experiment has in it, and what is to be said below a table that has the column."""

    column: Column
    cell: Callable[[Experiment], Cell]
    note: str = ""


def mean(e: Experiment, number: Callable[[Result], float | None]) -> Cell:
    """The mean of a number over seeds."""
    values = [number(run.result) for run in e.runs]
    return replace(Cell.mean([value for value in values if value is not None]), unranked=e.joint)


def amount(e: Experiment, number: Callable[[Result], float | None]) -> Cell:
    """The same, without a deviation of 0: most memories are the same for every seed."""
    cell = mean(e, number)
    return replace(cell, spread=cell.spread or None)


def in_bytes(value: float) -> str:
    return size(round(value))


def epoch_seconds(result: Result) -> float | None:
    return result.seconds["train"] / sum(result.epochs) if sum(result.epochs) else None


def machines(e: Experiment) -> Cell:
    results = [run.result for run in e.runs]
    return Cell(" and ".join(sorted({f"{r.device}, {r.threads} thread{'s' * (r.threads > 1)}" for r in results})))


def footprint(field: str) -> Callable[[Experiment], Cell]:
    return lambda e: Cell(getattr(FOOTPRINTS[e.method], field) if e.method in FOOTPRINTS else None)


ACC = Measure(Column("ACC %", best="highest"), lambda e: mean(e, lambda r: r.acc))
BWT = Measure(Column("BWT %", best="highest"), lambda e: mean(e, lambda r: r.bwt))
MEMORY = Measure(Column("memory", in_bytes), lambda e: amount(e, lambda r: r.bytes["memory"]))
TIME = Measure(Column("time a run", duration), lambda e: amount(e, lambda r: r.total_seconds))
PAPER_ACC = Measure(Column("paper ACC", as_printed), lambda e: printed(e, "acc"), PAPER_NOTE)
PAPER_BWT = Measure(Column("paper BWT", as_printed), lambda e: printed(e, "bwt"), PAPER_NOTE)
COSTS = [
    Measure(Column("order in the paper"), footprint("paper")),
    Measure(Column("bytes of a layer"), footprint("formula"), MEMORY_NOTE),
    MEMORY,
    Measure(Column("of it per task", in_bytes), lambda e: amount(e, lambda r: r.bytes["per_task"])),
    TIME,
    Measure(Column("training epoch", "{:.2f} s".format), lambda e: amount(e, epoch_seconds)),
    Measure(Column("between tasks", duration), lambda e: amount(e, lambda r: r.seconds["between_tasks"])),
    Measure(Column("on"), machines),
]


@dataclass(frozen=True)
class Analysis:
    """What some runs show together. ``main`` are the ``experiments`` that do not stand in an ablation alone."""

    experiments: Sequence[Experiment]
    main: Sequence[Experiment]
    ablations: Sequence[Ablation]
    transfers: Sequence[Transfer]
    tables: Sequence[Table]


def analyse(runs: Iterable[Run], baseline: str) -> Analysis:
    """Find experiments and ablations, and make the tables that there is something for."""
    experiments = grouping.find_experiments(runs)
    ablations = grouping.find_ablations(experiments)
    main = grouping.unvaried(experiments, ablations)
    transfers = find_transfers(main, baseline)
    separate = [e for e in main if e.condition.benchmark not in OVERLAPPING]
    overlapping = [e for e in main if e.condition.benchmark in OVERLAPPING]
    paired = [e for t in transfers if t.is_measured for e in t.paired if t.condition.benchmark not in OVERLAPPING]
    under = {transfer.condition: transfer for transfer in transfers}
    fwt = Measure(
        Column(f"FWT % over {baseline}", best="highest"), lambda e: under[e.condition].fwt(e),
        f"FWT: how much better each task was learned than by {baseline}, on average; over the seeds that both have.",
    )  # fmt: skip
    paper_fwt = Measure(Column("paper FWT", as_printed), lambda e: printed(e, "fwt", baseline), PAPER_NOTE)
    tables = [
        table_by_condition("accuracy", "Accuracy and backward transfer", separate, [ACC, BWT, PAPER_ACC, PAPER_BWT]),
        table_by_condition("transfer", f"Forward transfer relative to {baseline}", paired, [fwt, paper_fwt]),
        table_by_condition(
            "overlapping", "Tasks with overlapping classes", overlapping,
            [ACC, BWT, fwt, PAPER_ACC, PAPER_BWT, paper_fwt],
        ),
        *ablation_tables(ablations),
        table_by_condition("memory", "Memory and time", main, COSTS),
    ]  # fmt: skip
    return Analysis(experiments, main, ablations, transfers, [table for table in tables if table.sections])


def table_by_condition(name: str, title: str, experiments: Iterable[Experiment], measures: Sequence[Measure]) -> Table:
    """A table with a section for each condition."""
    sections = [
        Section(
            group[0].condition.title(),
            tuple(_row(e.label(), e, measures) for e in group),
            group[0].condition.fields(),
        )
        for group in grouping.by_condition(experiments)
    ]
    return _table(name, title, Column("method"), sections, measures)


def ablation_tables(ablations: Sequence[Ablation]) -> list[Table]:
    """ACC, BWT and memory over each hyperparameter that was varied, all others fixed."""
    measures = [ACC, BWT, MEMORY, PAPER_ACC, PAPER_BWT]
    sections: dict[str, list[Section]] = {}
    for a in ablations:
        rows = tuple(_row(value if a.numeric else shown(value), e, measures) for value, e in a.points)
        condition = {"method": a.label} | a.first.condition.fields(without=a.name)
        sections.setdefault(a.name, []).append(Section(f"{a.label}, {a.condition}", rows, condition))
    return [
        _table(f"ablation-{name}", f"Ablation: {name}", Column(name, shown), over, measures)
        for name, over in sections.items()
    ]


def _table(name: str, title: str, first: Column, sections: Sequence[Section], measures: Sequence[Measure]) -> Table:
    """The table, with notes on the columns that it has."""
    table = make_table(name, title, [first, Column("seeds", "{:g}".format), *(m.column for m in measures)], sections)
    notes = [DEVIATION, *(m.note for m in measures if m.note and m.column in table.columns)]
    ranked = [cell for row in table.rows for c, cell in zip(table.columns, row.cells, strict=True) if c is ACC.column]
    notes += [JOINT_NOTE] * any(cell.unranked for cell in ranked)
    return replace(table, notes=tuple(dict.fromkeys(notes)))


def _row(first: str | float, e: Experiment, measures: Sequence[Measure]) -> Row:
    cells = [Cell(first), Cell(len(e.runs)), *(measure.cell(e) for measure in measures)]
    return Row(tuple(cells), tuple(run.name for run in e.runs))

"""The tables of the paper, for whatever was run: accuracy, forward transfer, memory, overlapping classes, ablations."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from codecl.report.experiments import (
    Ablation,
    Experiment,
    by_condition,
    find_ablations,
    find_experiments,
    unvaried,
)
from codecl.report.measures import ACC, BWT, COSTS, MEMORY, PAPER_ACC, PAPER_BWT, Measure
from codecl.report.published import as_printed, printed
from codecl.report.records import Run
from codecl.report.table import DEVIATION, Cell, Column, Row, Section, Table, make_table
from codecl.report.transfer import Transfer, find_transfers
from codecl.text import shown

OVERLAPPING = ("ol-cifar100",)
"""Benchmarks whose tasks share classes: Table 4 of the paper."""
PAPER_NOTE = "The paper's numbers are for all tasks and its whole schedule; what was run here stands above the rows."
JOINT_NOTE = "multitask learns all tasks at once: an upper bound that takes no rank."
MEMORY_NOTE = (
    "A fully connected layer of N inputs and M outputs after T tasks: B directions for each task, r for all, "
    "s that the last task shares, K freed, E inputs added by a task, w bytes for a number of the model. "
    "Memory is what the method stores in the end for the whole network."
)


@dataclass(frozen=True)
class Analysis:
    """What some runs show together.

    ``main`` are the ``experiments`` without those that stand in an ablation alone.
    """

    experiments: Sequence[Experiment]
    main: Sequence[Experiment]
    ablations: Sequence[Ablation]
    transfers: Sequence[Transfer]
    tables: Sequence[Table]


def analyse(runs: Iterable[Run], baseline: str) -> Analysis:
    """Find experiments and ablations, and make the tables that there is something for."""
    experiments = find_experiments(runs)
    ablations = find_ablations(experiments)
    main = unvaried(experiments, ablations)
    transfers = find_transfers(main, baseline)
    in_table_4 = [t for t in transfers if t.condition.benchmark in OVERLAPPING]
    tables = [
        accuracy_table([e for e in main if e.condition.benchmark not in OVERLAPPING]),
        transfer_table([t for t in transfers if t not in in_table_4], baseline),
        overlapping_table([e for e in main if e.condition.benchmark in OVERLAPPING], in_table_4, baseline),
        *(
            ablation_table(name, [a for a in ablations if a.name == name])
            for name in dict.fromkeys(a.name for a in ablations)
        ),
        memory_table(main),
    ]
    return Analysis(experiments, main, ablations, transfers, [table for table in tables if table.sections])


def accuracy_table(experiments: Sequence[Experiment]) -> Table:
    """Table 1: ACC and BWT of every method."""
    measures = [ACC, BWT, PAPER_ACC, PAPER_BWT]
    return _by_condition("accuracy", "Accuracy and backward transfer", experiments, measures)


def transfer_table(transfers: Sequence[Transfer], baseline: str) -> Table:
    """Table 2: how much better each task was learned than by ``baseline`` with the same seed."""
    paired = [e for transfer in transfers if transfer.is_measured for e in transfer.paired]
    measures, notes = _transfer_measures(transfers, baseline)
    return _by_condition("transfer", f"Forward transfer relative to {baseline}", paired, measures, notes)


def overlapping_table(experiments: Sequence[Experiment], transfers: Sequence[Transfer], baseline: str) -> Table:
    """Table 4: all three numbers, where tasks share classes."""
    (fwt, paper_fwt), notes = _transfer_measures(transfers, baseline)
    measures = [ACC, BWT, fwt, PAPER_ACC, PAPER_BWT, paper_fwt]
    return _by_condition("overlapping", "Tasks with overlapping classes", experiments, measures, notes)


def memory_table(experiments: Sequence[Experiment]) -> Table:
    """Table 3: what a method stores, as a formula for one layer and as measured; and the time it takes."""
    return _by_condition("memory", "Memory and time", experiments, COSTS, [MEMORY_NOTE])


def ablation_table(name: str, ablations: Sequence[Ablation]) -> Table:
    """ACC, BWT and memory over one hyperparameter, all others fixed."""
    measures = [ACC, BWT, MEMORY, PAPER_ACC, PAPER_BWT]
    sections = [
        Section(
            f"{a.label}, {a.condition}",
            tuple(_row(value if a.numeric else shown(value), e, measures) for value, e in a.points),
            {"method": a.label} | a.first.condition.fields(without=name),
        )
        for a in ablations
    ]
    return _table(f"ablation-{name}", f"Ablation: {name}", Column(name, shown), sections, measures)


def _by_condition(
    name: str, title: str, experiments: Sequence[Experiment], measures: Sequence[Measure], notes: Sequence[str] = ()
) -> Table:
    """A table with a section for each condition."""
    sections = [
        Section(
            group[0].condition.title(),
            tuple(_row(e.label(), e, measures) for e in group),
            group[0].condition.fields(),
        )
        for group in by_condition(experiments)
    ]
    return _table(name, title, Column("method"), sections, measures, notes)


def _table(
    name: str,
    title: str,
    first: Column,
    sections: Sequence[Section],
    measures: Sequence[Measure],
    notes: Sequence[str] = (),
) -> Table:
    columns = [first, Column("seeds", "{:g}".format), *(column for column, _ in measures)]
    table = make_table(name, title, columns, sections, [*notes, DEVIATION])
    has_paper = any(column.show is as_printed for column in table.columns)
    has_unranked = any(column.best for column in table.columns) and any(row.unranked for row in table.rows)
    return replace(table, notes=(*table.notes, *[PAPER_NOTE] * has_paper, *[JOINT_NOTE] * has_unranked))


def _row(first: str | float, e: Experiment, measures: Sequence[Measure]) -> Row:
    cells = [Cell(first), Cell(len(e.runs)), *(measure(e) for _, measure in measures)]
    return Row(tuple(cells), tuple(run.name for run in e.runs), unranked=e.joint)


def _transfer_measures(transfers: Sequence[Transfer], baseline: str) -> tuple[list[Measure], list[str]]:
    """Our forward transfer and the paper's, and what it means."""
    under = {transfer.condition: transfer for transfer in transfers}
    measures: list[Measure] = [
        (Column(f"FWT % over {baseline}", best="highest"), lambda e: under[e.condition].fwt(e)),
        (Column("paper FWT", as_printed), lambda e: printed(e, "fwt", baseline)),
    ]
    meaning = (
        f"FWT: how much better each task was learned than by {baseline}, on average; over the seeds that both have."
    )
    return measures, [meaning] if any(transfer.base is not None for transfer in transfers) else []

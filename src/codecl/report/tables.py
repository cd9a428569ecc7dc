"""The tables of a report: results best first, further measures, ablations, memory and time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from codecl.report import experiments as grouping
from codecl.report.experiments import Ablation, Experiment
from codecl.report.footprint import FOOTPRINTS
from codecl.report.published import printed
from codecl.report.records import Run
from codecl.report.table import DEVIATION, Cell, Column, Row, Section, Table, make_table
from codecl.report.transfer import Transfer, difference, find_transfers, fwt
from codecl.runs.recipe import PRESETS
from codecl.runs.records import Result
from codecl.text import duration, shown, size
from codecl.training import metrics

RESULTS = "results"
PAPER_NOTE = "The paper's numbers are for all tasks and its whole schedule; what was run here stands above the rows."
JOINT_NOTE = "multitask learns all tasks at once: an upper bound that takes no rank."
SINGLE_NOTE = "Where a method has a single seed nothing is marked as best: a difference may be noise."
MEMORY_NOTE = (
    "A fully connected layer of N inputs and M outputs after T tasks: B directions for each task, r for all, "
    "s that the last task shares, K freed, E inputs added by a task, w bytes for a number of the model. "
    "Memory is what the method stores in the end for the whole network."
)
CHOICE_NOTE = "What is best is marked by validation accuracy; the test accuracy beside it was not chosen by."
NO_CHOICE_NOTE = (
    "These runs recorded no validation accuracy in the end, so nothing is marked: test data are not to choose by."
)
TIME_NOTE = (
    "Wall times depend on what else the machine did, which no record says: compare them only between runs that were "
    "alone on it. make bench measures methods against plain SGD."
)


class Measure(NamedTuple):
    """A column, the cell that an experiment has in it, and what is to be said below a table that has the column."""

    column: Column
    cell: Callable[[Experiment], Cell]
    note: str = ""

    def text(self, e: Experiment) -> str:
        return self.column.text(self.cell(e))


def over_seeds(number: Callable[[Result], float | None]) -> Callable[[Experiment], Cell]:
    """The mean of a number and its deviation."""

    def cell(e: Experiment) -> Cell:
        values = [number(run.result) for run in e.runs]
        return replace(Cell.mean([value for value in values if value is not None]), unranked=bool(values) and e.joint)

    return cell


def amount(number: Callable[[Result], float | None]) -> Callable[[Experiment], Cell]:
    """The same, without a deviation of 0: most memories are the same for every seed."""
    mean = over_seeds(number)
    return lambda e: replace(mean(e), spread=mean(e).spread or None)


def inferred(field: str) -> Callable[[Experiment], Cell]:
    """The mean of what was measured without telling the task."""
    return over_seeds(lambda r: r.inference.get(field) if r.inference else None)


def in_bytes(value: float) -> str:
    return size(round(value))


def epoch_seconds(result: Result) -> float | None:
    return result.seconds["train"] / sum(result.epochs) if sum(result.epochs) else None


def machines(e: Experiment) -> Cell:
    results = [run.result for run in e.runs]
    return Cell(" and ".join(sorted({f"{r.device}, {r.threads} thread{'s' * (r.threads > 1)}" for r in results})))


def footprint(field: str) -> Callable[[Experiment], Cell]:
    """Of the reading that a run takes, where it stores otherwise than the method does."""

    def cell(e: Experiment) -> Cell:
        found = FOOTPRINTS.get(f"{e.method} ({PRESETS.get(e.first.preset)})") or FOOTPRINTS.get(e.method)
        return Cell(getattr(found, field) if found else None)

    return cell


SEEDS = Measure(Column("seeds", "{:g}".format), lambda e: Cell(len(e.runs)))
ACC = Measure(Column("ACC %", best="highest"), over_seeds(lambda r: r.acc))
VALIDATION = Measure(Column("validation %", best="highest"), over_seeds(lambda r: r.validation_acc))
BWT = Measure(Column("BWT %", best="highest"), over_seeds(lambda r: r.bwt))
MEMORY = Measure(Column("memory", in_bytes), amount(lambda r: r.bytes["memory"]))
TIME = Measure(Column("time a run", duration), amount(lambda r: r.total_seconds), TIME_NOTE)
PAPER_ACC = Measure(Column("paper ACC", str), lambda e: printed(e, "acc"), PAPER_NOTE)
PAPER_BWT = Measure(Column("paper BWT", str), lambda e: printed(e, "bwt"), PAPER_NOTE)
FURTHER = [
    Measure(
        Column("learned %", best="highest"), over_seeds(lambda r: metrics.learning_accuracy(r.accuracy)),
        "Learned: the mean accuracy on each task just after it was learned (learning accuracy).",
    ),
    Measure(
        Column("forgotten %", best="lowest"), over_seeds(lambda r: metrics.forgetting(r.accuracy)),
        "Forgotten: how far each task fell below the best it ever had, on average over all but the last.",
    ),
    Measure(
        Column("over seen %", best="highest"), over_seeds(lambda r: metrics.area_over_seen(r.accuracy)),
        "Over seen: the area under the average accuracy over the tasks seen so far, as a mean over the tasks.",
    ),
    Measure(
        Column("moved", "{:.2g}".format, best="lowest"), over_seeds(lambda r: r.mean_moved),
        "Moved: how far learning a task moved the outputs of an earlier one on its validation inputs, relative to "
        "their size, on average over all such pairs.",
    ),
]  # fmt: skip
SPACE = [
    Measure(Column("order in the paper"), footprint("paper")),
    Measure(Column("bytes of a layer"), footprint("formula"), MEMORY_NOTE),
    MEMORY,
    Measure(Column("of it per task", in_bytes), amount(lambda r: r.bytes["per_task"])),
]
INFERRED = [
    ACC._replace(column=Column("told %")),
    Measure(
        Column("inferred %", best="highest"), inferred("inferred"),
        "Told and inferred: ACC where the task of each input is told, and where it is inferred from the input alone.",
    ),
    Measure(
        Column("tasks right %", best="highest"), inferred("tasks_right"),
        "Tasks right: for how many inputs the task is inferred right, one input at a time.",
    ),
    Measure(
        Column("together %", best="highest"), inferred("tasks_right_together"),
        "Together: the same for several inputs of one task at a time, 16 unless the records say otherwise.",
    ),
    Measure(
        Column("by heads %", best="highest"), inferred("tasks_right_by_heads"),
        "By heads: tasks right, one input at a time, where the surest head decides alone.",
    ),
    Measure(Column("by"), lambda e: Cell((e.first.inference or {}).get("evidence"))),
    MEMORY,
]  # fmt: skip
TIMES = [
    TIME,
    Measure(Column("training epoch", "{:.2f} s".format), amount(epoch_seconds)),
    Measure(Column("between tasks", duration), amount(lambda r: r.seconds["between_tasks"])),
    Measure(Column("on"), machines),
]


@dataclass(frozen=True)
class Analysis:
    """What some runs show together. ``main`` are the ``experiments`` that do not stand in an ablation alone.

    ``main`` is sorted by condition, and the best comes first.
    """

    experiments: Sequence[Experiment]
    main: Sequence[Experiment]
    ablations: Sequence[Ablation]
    transfers: Sequence[Transfer]
    tables: Sequence[Table]


def analyse(runs: Iterable[Run], baseline: str) -> Analysis:
    """Find experiments and ablations, and make the tables that there is something for."""
    experiments = grouping.find_experiments(runs)
    ablations = grouping.find_ablations(experiments)
    groups = grouping.by_condition(grouping.unvaried(experiments, ablations))
    main = [e for group in groups for e in sorted(group, key=acc_of, reverse=True)]
    transfers = find_transfers(main, baseline)
    tables = [
        table_by_condition(RESULTS, "Results", main, result_measures(transfers, baseline)),
        table_by_condition("measures", "Further measures", main, FURTHER),
        *ablation_tables(ablations),
        table_by_condition("inference", "Without telling the task", inferring(experiments), INFERRED),
        table_by_condition("memory", "Memory", main, SPACE),
        table_by_condition("time", "Time", main, TIMES),
    ]
    return Analysis(experiments, main, ablations, transfers, [table for table in tables if table.sections])


def inferring(experiments: Iterable[Experiment]) -> list[Experiment]:
    """Those in which the task was not told, too."""
    return [e for e in experiments if any(run.result.inference for run in e.runs)]


def acc_of(e: Experiment) -> float:
    return ACC.cell(e).number or 0.0


def result_measures(transfers: Sequence[Transfer], baseline: str) -> list[Measure]:
    """What the first table has: ACC, how far it is from the baseline's, both transfers, and what the paper prints."""
    base = {transfer.condition: transfer.base for transfer in transfers}
    apart = (
        f"Over {baseline}: the difference in ACC over the seeds that both have, and its 95 % interval (Student's t)."
    )
    note = f"FWT: how much better each task was learned than by {baseline}, on average; over the seeds that both have."
    return [
        ACC,
        Measure(Column(f"ACC over {baseline}", "{:+z.2f}".format), lambda e: difference(e, base[e.condition]), apart),
        BWT,
        Measure(Column(f"FWT % over {baseline}", best="highest"), lambda e: fwt(e, base[e.condition]), note),
        PAPER_ACC,
        PAPER_BWT,
        Measure(Column("paper FWT", str), lambda e: printed(e, "fwt", baseline), PAPER_NOTE),
    ]


def table_by_condition(name: str, title: str, experiments: Iterable[Experiment], measures: Sequence[Measure]) -> Table:
    """A table with a section for each condition."""
    measures = [SEEDS, *measures]
    sections = []
    for group in grouping.by_condition(experiments):
        rows = tuple(_row(e.label(), e, measures) for e in group)
        sections.append(Section(group[0].condition.title(), rows, group[0].condition.fields()))
    return _table(name, title, Column("method"), sections, measures)


def ablation_tables(ablations: Sequence[Ablation]) -> list[Table]:
    """ACC, BWT and memory over each hyperparameter that was varied, all others fixed. What is best says validation."""
    unmarked = [m._replace(column=replace(m.column, best=None)) for m in (ACC, BWT)]
    measures = [SEEDS, VALIDATION, *unmarked, MEMORY, PAPER_ACC, PAPER_BWT]
    sections: dict[str, list[Section]] = {}
    notes: dict[str, list[str]] = {}
    for a in ablations:
        rows = tuple(_row(value if a.numeric else shown(value), e, measures) for value, e in a.points)
        condition = {"method": a.label} | a.first.condition.fields(without=a.name)
        sections.setdefault(a.name, []).append(Section(f"{a.label}, {a.condition}", rows, condition))
        chosen = choice([(f"{a.name} = {shown(value)}", e) for value, e in a.points])
        notes.setdefault(a.name, []).append(f"{a.label}, {a.condition}: {chosen}" if chosen else NO_CHOICE_NOTE)
    made = []
    for name, over in sections.items():
        table = _table(f"ablation-{name}", f"Ablation: {name}", Column(name, shown), over, measures)
        by_validation = [CHOICE_NOTE] * (VALIDATION.column in table.columns)
        made.append(replace(table, notes=(*table.notes, *dict.fromkeys([*notes[name], *by_validation]))))
    return made


def choice(points: Sequence[tuple[str, Experiment]]) -> str:
    """Which of several settings is best by validation, with its test accuracy; empty if not all have recorded it.

    All that print the same mean as the best are named.
    """
    numbers = [VALIDATION.cell(e).number if e.runs else None for _, e in points]
    known = [round(number, 2) for number in numbers if number is not None]
    if len(points) < 2 or None in numbers:
        return ""
    named = [
        f"{name} (validation {VALIDATION.text(e)} %, test ACC {ACC.text(e)} %)"
        for (name, e), number in zip(points, known, strict=True) if number == max(known)
    ]  # fmt: skip
    return f"best by validation: {' and '.join(named)}."


def _table(name: str, title: str, first: Column, sections: Sequence[Section], measures: Sequence[Measure]) -> Table:
    """The table, with notes on the columns that it has."""
    made = make_table(name, title, [first, *(m.column for m in measures)], sections)
    cells = [(column, cell) for row in made.rows for column, cell in zip(made.columns, row.cells, strict=True)]
    notes = [DEVIATION] * any(cell.spread is not None for _, cell in cells)
    notes += [SINGLE_NOTE] * any(column.best and cell.runs == 1 for column, cell in cells)
    notes += [JOINT_NOTE] * any(column is ACC.column and cell.unranked for column, cell in cells)
    notes += [m.note for m in measures if m.note and m.column in made.columns]
    return replace(made, notes=tuple(dict.fromkeys(notes)))


def _row(first: str | float, e: Experiment, measures: Sequence[Measure]) -> Row:
    return Row((Cell(first), *(measure.cell(e) for measure in measures)), tuple(run.name for run in e.runs))

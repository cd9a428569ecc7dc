"""The tables of the paper, for whatever was run: accuracy, forward transfer, memory, overlapping classes, ablations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from codecl.report.experiments import Ablation, Experiment, conditions_of
from codecl.report.footprint import FOOTPRINTS
from codecl.report.published import PAPER_ACC, PAPER_BWT, PAPER_FWT, printed
from codecl.report.table import DEVIATION, Cell, Column, Row, Section, Table, make_table
from codecl.text import duration, shown, size
from codecl.training import metrics

OVERLAPPING = ("ol-cifar100",)
"""Benchmarks whose tasks share classes: Table 4 of the paper."""
WHOLE = "The paper's numbers are for all tasks and its whole schedule; what was run here stands above the rows."
JOINT = "multitask learns all tasks at once: an upper bound that takes no rank."


def in_bytes(value: float) -> str:
    return size(round(value))


def plainly(value: float) -> str:
    return f"{value:g}"


METHOD = Column("method")
SEEDS = Column("seeds", plainly)
ACC, BWT = Column("ACC %", best="highest"), Column("BWT %", best="highest")
MEMORY = Column("memory", in_bytes)


def all_tables(experiments: Sequence[Experiment], ablations: Sequence[Ablation], baseline: str) -> list[Table]:
    """Those that there is something for. What was only varied stands in its ablation, and not among the methods."""
    main = unvaried(experiments, ablations)
    apart = [e for e in main if e.condition.benchmark not in OVERLAPPING]
    shared = [e for e in main if e.condition.benchmark in OVERLAPPING]
    varied = {name: [a for a in ablations if a.name == name] for name in dict.fromkeys(a.name for a in ablations)}
    tables = [
        accuracy(apart),
        transfer(apart, baseline),
        overlapping(shared, baseline),
        *(ablation(name, of) for name, of in varied.items()),
        memory(main),
    ]
    return [table for table in tables if table.sections]


def unvaried(experiments: Sequence[Experiment], ablations: Sequence[Ablation]) -> list[Experiment]:
    """The experiments without those that depart from their recipe file in what an ablation varies.

    Where nothing would be left of a method under a condition, all of it stays.
    """
    varied = {id(e) for a in ablations for _, e in a.points if a.key in e.departures}
    bases = {(e.condition, e.method) for e in experiments if id(e) not in varied}
    return [e for e in experiments if id(e) not in varied or (e.condition, e.method) not in bases]


def accuracy(experiments: Sequence[Experiment]) -> Table:
    """Table 1: ACC and BWT of every method."""
    columns = [METHOD, SEEDS, ACC, BWT, PAPER_ACC, PAPER_BWT]

    def cells(e: Experiment, _: Sequence[Experiment]) -> list[Cell]:
        return [acc(e), bwt(e), printed(e, "acc"), printed(e, "bwt")]

    sections = by_condition(experiments, cells)
    return make_table(
        "accuracy", "Accuracy and backward transfer", columns, sections, notes(experiments, ["acc", "bwt"])
    )


def transfer(experiments: Sequence[Experiment], baseline: str) -> Table:
    """Table 2: how much better each task was learned than by ``baseline`` with the same seed."""
    columns = [METHOD, SEEDS, fwt_column(baseline), PAPER_FWT]
    groups = [with_seeds_of(baseline_of(of, baseline), of) for of in conditions_of(experiments)]
    paired = [e for of in groups if len(of) > 1 for e in of]  # more than the baseline itself

    def cells(e: Experiment, of: Sequence[Experiment]) -> list[Cell]:
        return [fwt(e, of, baseline), printed(e, "fwt", baseline)]

    sections, heading = by_condition(paired, cells), f"Forward transfer relative to {baseline}"
    return make_table("transfer", heading, columns, sections, [meaning(baseline), *notes(paired, ["fwt"])])


def overlapping(experiments: Sequence[Experiment], baseline: str) -> Table:
    """Table 4: all three numbers, where tasks share classes."""
    columns = [METHOD, SEEDS, ACC, BWT, fwt_column(baseline), PAPER_ACC, PAPER_BWT, PAPER_FWT]

    def cells(e: Experiment, of: Sequence[Experiment]) -> list[Cell]:
        return [acc(e), bwt(e), fwt(e, of, baseline), *(printed(e, name, baseline) for name in ("acc", "bwt", "fwt"))]

    sections, heading = by_condition(experiments, cells), "Tasks with overlapping classes"
    measured = any(baseline_of(of, baseline) for of in conditions_of(experiments))
    told = [*([meaning(baseline)] if measured else []), *notes(experiments, ["acc", "bwt", "fwt"])]
    return make_table("overlapping", heading, columns, sections, told)


def memory(experiments: Sequence[Experiment]) -> Table:
    """Table 3: what a method stores, as a formula for one layer and as measured; and the time it takes."""
    columns = [
        METHOD, SEEDS, Column("order in the paper"), Column("bytes of a layer"), MEMORY,
        Column("of it per task", in_bytes), Column("time a run", duration),
        Column("training epoch", lambda seconds: f"{seconds:.2f} s"),
        Column("between tasks", duration), Column("on"),
    ]  # fmt: skip

    def cells(e: Experiment, _: Sequence[Experiment]) -> list[Cell]:
        known, results = FOOTPRINTS.get(e.method), [run.result for run in e.runs]
        places = {f"{r['device']}, {r['threads']} thread{'s' * (r['threads'] > 1)}" for r in results}
        return [
            Cell(f"O({known.paper})" if known and known.paper != "–" else None),
            Cell(known.formula if known else None),
            stored(e),
            amount([r["bytes"]["per_task"] for r in results]),
            amount([run.seconds for run in e.runs]),
            amount([r["seconds"]["train"] / sum(r["epochs"]) for r in results if sum(r["epochs"])]),
            amount([r["seconds"]["between_tasks"] for r in results]),
            Cell(" and ".join(sorted(places))),
        ]

    letters = (
        "A fully connected layer of N inputs and M outputs after T tasks: B directions for each task, r for all, "
        "s that the last task shares, K freed, E inputs added by a task, w bytes for a number of the model. "
        "Memory is what the method stores in the end for the whole network."
    )
    return make_table("memory", "Memory and time", columns, by_condition(experiments, cells), [letters, DEVIATION])


def ablation(name: str, ablations: Sequence[Ablation]) -> Table:
    """ACC, BWT and memory over one hyperparameter, all others fixed."""
    sections = [
        Section(
            f"{a.label}, {a.condition}",
            tuple(
                row(
                    e,
                    [acc(e), bwt(e), stored(e), printed(e, "acc"), printed(e, "bwt")],
                    Cell(value if a.numeric else shown(value)),
                )
                for value, e in a.points
            ),
            {"method": a.label} | a.points[0][1].condition.words(without=name),
        )
        for a in ablations
    ]
    columns = [Column(name, shown), SEEDS, ACC, BWT, MEMORY, PAPER_ACC, PAPER_BWT]
    told = notes([e for a in ablations for _, e in a.points], ["acc", "bwt"])
    return make_table(f"ablation-{name}", f"Ablation: {name}", columns, sections, told)


# What stands in a row.


def by_condition(
    experiments: Sequence[Experiment], cells: Callable[[Experiment, Sequence[Experiment]], list[Cell]]
) -> list[Section]:
    """A section for each condition; ``cells`` says what stands in a row, knowing the others."""
    return [
        Section(of[0].condition.title(), tuple(row(e, cells(e, of)) for e in of), of[0].condition.words())
        for of in conditions_of(experiments)
    ]


def row(e: Experiment, cells: Sequence[Cell], first: Cell | None = None) -> Row:
    head = (first or Cell(e.label()), Cell(len(e.runs)))
    return Row((*head, *cells), tuple(run.name for run in e.runs), e.first.joint)


def acc(e: Experiment) -> Cell:
    return Cell.mean([run.acc for run in e.runs])


def bwt(e: Experiment) -> Cell:
    return Cell.mean([run.bwt for run in e.runs if run.bwt is not None])


def stored(e: Experiment) -> Cell:
    return amount([run.result["bytes"]["memory"] for run in e.runs])


def amount(values: Sequence[float]) -> Cell:
    """A mean whose deviation is told if there is one; most memories are the same for every seed."""
    cell = Cell.mean(values)
    return replace(cell, spread=cell.spread or None)


def fwt(e: Experiment, of: Sequence[Experiment], baseline: str) -> Cell:
    """Over the seeds that the baseline among ``of`` has too."""
    base = baseline_of(of, baseline)
    theirs = {run.seed: run.accuracy for run in base.runs} if base is not None else {}
    ours = [run for same in with_seeds_of(base, [e]) for run in same.runs]
    return replace(
        Cell.mean([metrics.fwt(run.accuracy, theirs[run.seed]) for run in ours]), outside=e.method == baseline
    )


def fwt_column(baseline: str) -> Column:
    return Column(f"FWT % over {baseline}", best="highest")


def meaning(baseline: str) -> str:
    return f"FWT: how much better each task was learned than by {baseline}, on average; over the seeds that both have."


def with_seeds_of(base: Experiment | None, of: Sequence[Experiment]) -> list[Experiment]:
    """What of each experiment can be compared with ``base`` task by task: the runs of its seeds."""
    seeds = {run.seed for run in base.runs} if base is not None else set()
    common = [replace(e, runs=tuple(run for run in e.runs if run.seed in seeds and not run.joint)) for e in of]
    return [e for e in common if e.runs]


def baseline_of(of: Sequence[Experiment], baseline: str) -> Experiment | None:
    """The experiment of ``baseline`` as its recipe file has it, or the only one; None where that is not clear."""
    there = [e for e in of if e.method == baseline and not e.first.joint]
    usual = [e for e in there if not e.departures]
    return usual[0] if len(usual) == 1 else there[0] if len(there) == 1 else None


def notes(experiments: Sequence[Experiment], beside: Sequence[str]) -> list[str]:
    """What is to be said of numbers that have those of the paper ``beside`` them."""
    compared = any(printed(e, what).value is not None for e in experiments for what in beside)
    joint = any(e.first.joint for e in experiments)
    return [DEVIATION, *([WHOLE] if compared else []), *([JOINT] if joint else [])]

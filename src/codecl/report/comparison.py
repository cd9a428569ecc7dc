"""The tables that ``compare`` and ``sweep`` print: means over seeds, a row for a method or for a value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from codecl.report.experiments import Experiment
from codecl.report.records import Run
from codecl.report.table import DEVIATION, Cell, Column
from codecl.report.tables import ACC, BWT, MEMORY, SEEDS, TIME, VALIDATION, Measure, acc_of, choice
from codecl.report.transfer import fwt
from codecl.runs.records import Result, RunRecord
from codecl.runs.sweep import BASE
from codecl.text import shown, table


def _without_spread(measure: Measure) -> Measure:
    return measure._replace(cell=lambda e: Cell(measure.cell(e).value))


COSTS = [SEEDS, _without_spread(TIME), _without_spread(MEMORY)]


def compare_methods(results: Sequence[Result], baseline: str = "gpm") -> str:
    """Mean ± deviation over seeds for each method, the best first as in the report.

    Forward transfer is relative to the run of ``baseline`` with the same seed, where there is one.
    """
    methods = dict.fromkeys(result.method for result in results)
    experiments = {method: _experiment([r for r in results if r.method == method]) for method in methods}
    base = experiments.get(baseline)
    measures = [ACC, BWT, *COSTS]
    if base is not None and not base.joint:
        measures.insert(2, Measure(Column(f"FWT % over {baseline}"), lambda e: fwt(e, base)))
    best_first = sorted(experiments.values(), key=acc_of, reverse=True)
    rows = [[e.label(), *(measure.text(e) for measure in measures)] for e in best_first]
    notes = [DEVIATION] * any(len(e.runs) > 1 for e in best_first)
    return "\n".join([table(["method", *(measure.column.name for measure in measures)], rows), *notes])


def compare_cells(rows: Sequence[tuple[str, Mapping[str, Any], Sequence[Result]]]) -> str:
    """A table of a sweep: of every row the name of its cell, the values it changes, and the results that it has."""
    experiments = [_experiment(results) for _, _, results in rows]
    validated = any(VALIDATION.cell(e).number is not None for e in experiments)
    measures = [*[VALIDATION] * validated, ACC, BWT, *COSTS]
    lines = []
    for (cell, changes, _), e in zip(rows, experiments, strict=True):
        first, *others = map(shown, changes.values())
        lines.append([first + " (base)" * (cell == BASE), *others, *(measure.text(e) for measure in measures)])
    notes = [DEVIATION] * any(len(e.runs) > 1 for e in experiments)
    named = [", ".join(f"{name} = {shown(value)}" for name, value in changes.items()) for _, changes, _ in rows]
    notes += filter(None, [choice([(n, e) for n, e in zip(named, experiments, strict=True) if e.runs])])
    return "\n".join([table([*rows[0][1], *(measure.column.name for measure in measures)], lines), *notes])


def _experiment(results: Sequence[Result]) -> Experiment:
    return Experiment(tuple(Run("", RunRecord(Path(), result=result)) for result in results))

"""The tables that ``compare`` and ``sweep`` print: means over seeds, a row for a method or for a value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from codecl.report.table import DEVIATION, Cell, Column
from codecl.runs.plugins import title
from codecl.runs.records import Result
from codecl.runs.sweep import BASE
from codecl.text import duration, shown, size, table
from codecl.training import metrics

MEASURES = ("ACC %", "BWT %", "seeds", "time a run", "memory")
NUMBER = Column("")


def compare_methods(results: Sequence[Result], baseline: str = "gpm") -> str:
    """Mean ± deviation over seeds for each method, in the order the methods were given.

    Forward transfer is relative to the run of ``baseline`` with the same seed, where there is one.
    """
    by_method: dict[str, list[Result]] = {}
    for result in results:
        by_method.setdefault(result.method, []).append(result)
    base = {result.seed: result for result in by_method.get(baseline, []) if not result.joint}
    rows = []
    for method, runs in by_method.items():
        paired = [run for run in runs if run.seed in base and not run.joint]
        transfers = [metrics.fwt(run.accuracy, base[run.seed].accuracy) for run in paired]
        acc, bwt, *others = measure(runs)
        rows.append([title(method), acc, bwt, *([_spread(transfers)] if base else []), *others])
    acc, bwt, *others = MEASURES
    transfer = [f"FWT % over {baseline}"] if base else []
    return f"{table(['method', acc, bwt, *transfer, *others], rows)}\n{DEVIATION}"


def compare_cells(rows: Sequence[tuple[str, Mapping[str, Any], Sequence[Result]]]) -> str:
    """A table of a sweep: of every row the name of its cell, the values it changes, and the results that it has."""
    lines = []
    for cell, changes, results in rows:
        first, *others = map(shown, changes.values())
        lines.append([first + " (base)" * (cell == BASE), *others, *measure(results)])
    deviation = f"\n{DEVIATION}" if any(len(results) > 1 for _, _, results in rows) else ""
    return table([*rows[0][1], *MEASURES], lines) + deviation


def measure(runs: Sequence[Result]) -> list[str]:
    """The cells of ``MEASURES`` for runs that differ in the seed alone."""
    if not runs:
        return ["–", "–", "0", "–", "–"]
    return [
        _spread([run.acc for run in runs]),
        _spread([run.bwt for run in runs if run.bwt is not None]),
        str(len(runs)),
        duration(sum(run.total_seconds for run in runs) / len(runs)),
        size(round(sum(run.bytes["memory"] for run in runs) / len(runs))),
    ]


def _spread(values: Sequence[float]) -> str:
    return NUMBER.text(Cell.mean(values))

"""What the paper prints for each method of a benchmark, beside what came of its protocol and of the fast one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from codecl.benchmarks.registry import BENCHMARKS
from codecl.method import Method
from codecl.methods import METHODS
from codecl.report.experiments import Experiment, position
from codecl.report.published import COMPUTING, PAPERS_BASELINE, reported
from codecl.report.render import markdown_lines
from codecl.report.table import Cell
from codecl.report.tables import ACC, BWT
from codecl.report.transfer import fwt
from codecl.runs.plugins import title
from codecl.runs.recipe import FAST_PRESETS, PRESETS, READINGS

Line = tuple[str, str]
"""A method and its reading, which have a row."""
NUMBERS = ("ACC", "BWT", "FWT")
NOTHING = ["–"] * len(NUMBERS)


def beside_paper(benchmark: str, experiments: Sequence[Experiment]) -> str:
    """The table of one benchmark, in the order of the paper; empty where nothing was run as published."""
    whole, fast = by_schedule(benchmark, experiments)
    if not whole and not fast:
        return ""
    papers = papers_numbers(benchmark)
    lines = sorted({*whole, *fast, *((method, "paper") for method in papers)}, key=_place)
    columns = {
        "the paper": {line: _printed(papers[line[0]]) for line in lines if line[0] in papers and is_papers(line)},
        "protocol": _measured(whole),
        "fast": _measured(fast),
    }
    columns = {name: cells for name, cells in columns.items() if cells}
    head = ["method", *(f"{name}: {number}" for name in columns for number in NUMBERS)]
    rows = [
        [name_of(line), *(text for cells in columns.values() for text in cells.get(line, NOTHING))] for line in lines
    ]
    return "\n".join([f"### {benchmark}", "", *markdown_lines(head, rows)])


def by_schedule(
    benchmark: str, experiments: Sequence[Experiment]
) -> tuple[dict[Line, Experiment], dict[Line, Experiment]]:
    """What learned all tasks as published: with the schedule of the paper or of its code, and with the fast one."""
    published = [e for e in experiments if e.first.benchmark == benchmark and is_as_published(e)]
    whole = [e for e in published if e.first.preset not in FAST_PRESETS]
    return _by_line(whole), _by_line(e for e in published if e.first.preset in FAST_PRESETS)


def _by_line(experiments: Iterable[Experiment]) -> dict[Line, Experiment]:
    """One for each row; it takes seeds that were computed in another way where it has none of its own."""
    found: dict[Line, Experiment] = {}
    for e in experiments:  # what departs least comes first
        line = e.method, PRESETS[e.first.preset]
        has = found[line].runs if line in found else ()
        more = [run for run in e.runs if run.seed not in {other.seed for other in has}]
        found[line] = replace(found.get(line, e), runs=tuple(sorted([*has, *more], key=lambda run: run.seed)))
    return found


def otherwise_computed(e: Experiment) -> list[str]:
    """How runs of a row were computed where that is not the usual way, and how many of them if not all."""
    ways = Counter(str(way) for run in e.runs for way in Experiment((run,)).departures.values())
    return [way if n == len(e.runs) else f"{n} in {way}" for way, n in ways.items()]


def papers_numbers(benchmark: str) -> dict[str, Mapping[str, Sequence[float]]]:
    """Of each method that the paper reports: ACC, BWT and FWT, each with its standard deviation."""
    return {method: points[0].numbers for method, points in reported().get(benchmark, {}).items()}


def is_as_published(e: Experiment) -> bool:
    """Whether it learned all tasks as the recipe file of its preset says, however that was computed."""
    c = e.condition
    if c.benchmark not in BENCHMARKS or e.method not in METHODS:
        return False
    usual = {name: choices[0] for name, choices in BENCHMARKS[c.benchmark].switches.items()}
    whole = c.epochs is None and c.tasks == c.all_tasks and dict(c.switches) == usual
    return whole and e.departures.keys() <= COMPUTING


def _place(line: Line) -> tuple[int, int]:
    """The others first, CODE-CL after them, its readings side by side."""
    method, reading = line
    return position(method, reversed(METHODS)), position(reading, READINGS)


def is_papers(line: Line) -> bool:
    """Whether a number of the paper may stand in its row."""
    return line[1] in Method.presets


def name_of(line: Line) -> str:
    method, reading = line
    return title(method) if reading == "paper" else f"{title(method)} ({reading})"


def _printed(numbers: Mapping[str, Sequence[float]]) -> list[str]:
    return [" ± ".join(map(str, numbers.get(name.lower(), ["–"]))) for name in NUMBERS]


def _measured(experiments: Mapping[Line, Experiment]) -> dict[Line, list[str]]:
    """ACC, BWT and FWT as text; the first says what they rest on."""
    base = experiments.get((PAPERS_BASELINE, "paper"))
    texts = {}
    for line, e in experiments.items():
        how = [f"{len(e.runs)} seed{'s' * (len(e.runs) > 1)}", *otherwise_computed(e)]
        how += ["subset"] * (e.first.data == "subset")
        transferred = Cell() if e is base else fwt(e, base)
        texts[line] = [f"{ACC.text(e)} ({', '.join(how)})", BWT.text(e), ACC.column.text(transferred)]
    return texts

"""Tables that a page asks for by a comment, filled from the records.

    <!-- table: split-cifar100, fast -->
    | method | ...
    <!-- end -->

is a table of all methods that learned all tasks of the benchmark under this schedule, the best first: ``protocol`` is
that of the paper or of its code, ``fast`` a few annealed epochs.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from codecl.report.beside_paper import Line, by_schedule, is_papers, name_of, otherwise_computed, papers_numbers
from codecl.report.experiments import Experiment, find_experiments
from codecl.report.published import PAPERS_BASELINE
from codecl.report.records import find_runs
from codecl.report.render import markdown_lines
from codecl.report.tables import ACC, BWT
from codecl.report.transfer import fwt

MARKED = re.compile(
    r"(<!-- table: (?P<benchmark>[\w-]+), (?P<schedule>protocol|fast) -->\n).*?(<!-- end -->)", re.DOTALL
)
HEAD = ["method", "seeds", "ACC %", "BWT %", "FWT over GPM %", "the paper's ACC %"]


def fill(page: str, results: Path) -> str:
    """The page with every marked table as the records below ``results`` have it."""
    experiments = find_experiments(find_runs([results], results).runs)

    def table(marked: re.Match[str]) -> str:
        whole, fast = by_schedule(marked["benchmark"], experiments)
        rows = _rows(fast if marked["schedule"] == "fast" else whole, papers_numbers(marked["benchmark"]))
        return marked[1] + "\n".join(markdown_lines(HEAD, rows)) + "\n" + marked[4]

    return MARKED.sub(table, page)


def _rows(learned: Mapping[Line, Experiment], papers: Mapping[str, Mapping[str, Sequence[float]]]) -> list[list[str]]:
    base = learned.get((PAPERS_BASELINE, "paper"))
    rows = []
    for line, e in sorted(learned.items(), key=lambda entry: -_number(ACC.cell(entry[1]).number)):
        forward = None if e is base else fwt(e, base).number
        printed = papers.get(line[0], {}).get("acc") if is_papers(line) else None
        rows.append(
            [
                name_of(line),
                ", ".join([str(len(e.runs)), *otherwise_computed(e)]),
                ACC.text(e),
                _signed(BWT.cell(e).number),
                _signed(forward),
                "–" if printed is None else f"{printed[0]:.2f}",
            ]
        )
    return rows


def _signed(number: float | None) -> str:
    return "–" if number is None else f"{number:+.2f}".replace("-", "−")


def _number(number: float | None) -> float:
    return float("-inf") if number is None else number

"""What the paper reports, and for which runs it may stand beside ours: ``published.toml``."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from functools import cache
from importlib import resources
from typing import Any

from codecl.report.experiments import Experiment, same
from codecl.report.table import Cell, Column

PAPERS_BASELINE = "gpm"
ABLATED = "code-cl"
"""The method of the paper's ablations."""
Tree = dict[str, Any]


class Printed(float):
    """A number that knows how it is printed: 68.80 keeps its last digit."""

    text: str

    def __new__(cls, text: str) -> Printed:
        made = super().__new__(cls, text)
        made.text = text
        return made


def as_printed(value: float) -> str:
    return value.text if isinstance(value, Printed) else f"{value:g}"


PAPER_ACC, PAPER_BWT, PAPER_FWT = (Column(f"paper {name}", as_printed) for name in ("ACC", "BWT", "FWT"))


def printed(e: Experiment, what: str, baseline: str = PAPERS_BASELINE) -> Cell:
    """What the paper reports for these settings, nothing where it does not; its FWT is over GPM.

    A run that departs from its recipe file has nothing beside it, unless that is where the paper departs too.
    """
    if what == "fwt" and baseline != PAPERS_BASELINE:
        return Cell()
    for point in _points(e.condition.benchmark, e.method):
        at = {f"settings.{name}": value for name, value in point.get("at", {}).items()}
        if what in point and e.departures.keys() <= at.keys() and all(same(e.values.get(k), v) for k, v in at.items()):
            value, *spread = point[what]
            return Cell(value, spread[0] if spread else None)
    return Cell()


@cache
def published() -> dict[str, dict[str, Tree]]:
    """What the main tables report, by benchmark and method."""
    return {name: of for name, of in _file().items() if name != "ablations"}


def ablations() -> list[Tree]:
    """The paper's ablations, as the file has them."""
    found: list[Tree] = _file()["ablations"]
    return found


def _points(benchmark: str, method: str) -> Iterator[Tree]:
    """All that the paper says of a method on a benchmark, what stands in its main tables first."""
    if method in (of := published().get(benchmark, {})):
        yield of[method]
    for ablation in ablations() if method == ABLATED else ():
        if ablation["benchmark"] == benchmark:
            yield from (
                point | {"at": ablation["fixed"] | {ablation["over"]: point["at"]}} for point in ablation["points"]
            )


@cache
def _file() -> dict[str, Any]:
    text = (resources.files("codecl.report") / "published.toml").read_text(encoding="utf-8")
    return tomllib.loads(text, parse_float=Printed)

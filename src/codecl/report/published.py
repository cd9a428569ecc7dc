"""What the paper reports, and for which runs it may stand beside ours: ``published.toml``."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from typing import Any

from codecl.report.experiments import Experiment, same
from codecl.report.table import Cell

PAPERS_BASELINE = "gpm"
ABLATIONS = "ablations"
ABLATED = "code-cl"
"""The method of the paper's ablations."""


class Printed(float):
    """A number that knows how it is printed: 68.80 keeps its last digit."""

    text: str

    def __new__(cls, text: str) -> Printed:
        made = super().__new__(cls, text)
        made.text = text
        return made


@dataclass(frozen=True)
class Reported:
    """Numbers of the paper by name, each with its deviation if there is one, and the settings they belong to."""

    numbers: Mapping[str, Sequence[float]]
    settings: Mapping[str, Any] = field(default_factory=dict)


def as_printed(value: float) -> str:
    return value.text if isinstance(value, Printed) else f"{value:g}"


def printed(e: Experiment, what: str, baseline: str = PAPERS_BASELINE) -> Cell:
    """What the paper reports for these settings, nothing where it does not; its FWT is over GPM.

    A run that departs from its recipe file has nothing beside it, unless that is where the paper departs too.
    """
    if what == "fwt" and baseline != PAPERS_BASELINE:
        return Cell()
    for point in reported().get(e.condition.benchmark, {}).get(e.method, []):
        settings = {f"settings.{name}": value for name, value in point.settings.items()}
        fits = all(same(e.values.get(key), value) for key, value in settings.items())
        if what in point.numbers and fits and e.departures.keys() <= settings.keys():
            value, *spread = point.numbers[what]
            return Cell(value, spread[0] if spread else None)
    return Cell()


@cache
def reported() -> dict[str, dict[str, list[Reported]]]:
    """By benchmark and method, what the paper reports: its main tables first, then its ablations."""
    content = read_published()
    points: dict[str, dict[str, list[Reported]]] = {
        benchmark: {method: [Reported(row, row.get("at", {}))] for method, row in methods.items()}
        for benchmark, methods in content.items()
        if benchmark != ABLATIONS
    }
    for ablation in content[ABLATIONS]:
        points[ablation["benchmark"]][ABLATED] += [
            Reported(point, ablation["fixed"] | {ablation["over"]: point["at"]}) for point in ablation["points"]
        ]
    return points


@cache
def read_published() -> dict[str, Any]:
    text = (resources.files("codecl.report") / "published.toml").read_text(encoding="utf-8")
    return tomllib.loads(text, parse_float=Printed)

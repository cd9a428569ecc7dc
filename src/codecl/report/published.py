"""What the paper reports, and for which runs it may stand beside ours: ``published.toml``."""

from __future__ import annotations

import tomllib
from functools import cache
from importlib import resources
from typing import Any, NamedTuple

from codecl.report.experiments import Ablation, Experiment, same
from codecl.report.table import Cell

PAPERS_BASELINE = "gpm"
ABLATIONS = "ablations"
ABLATED = "code-cl"
"""The method of the paper's ablations."""
COMPUTING = {"training.precision"}
"""Values that say how something is computed, and not what."""


class Printed(float):
    """A number that is shown as it was printed: 68.80 keeps its last digit."""

    text: str

    def __new__(cls, text: str) -> Printed:
        made = super().__new__(cls, text)
        made.text = text
        return made

    def __str__(self) -> str:
        return self.text


class Reported(NamedTuple):
    """Numbers of the paper by name, each with its deviation if there is one, and the settings they belong to."""

    numbers: dict[str, list[float]]
    settings: dict[str, Any]


def printed(e: Experiment, what: str, baseline: str = PAPERS_BASELINE) -> Cell:
    """What the paper reports for these settings, nothing where it does not; its FWT is over GPM.

    A run that departs from its recipe file has nothing beside it, unless that is where the paper departs too, or how
    the run was computed.
    """
    if not e.is_published or (what == "fwt" and baseline != PAPERS_BASELINE):
        return Cell()
    for point in reported().get(e.condition.benchmark, {}).get(e.method, []):
        settings = {f"settings.{name}": value for name, value in point.settings.items()}
        fits = all(same(e.values.get(key), value) for key, value in settings.items())
        if what in point.numbers and fits and e.departures.keys() <= settings.keys() | COMPUTING:
            value, spread = [*point.numbers[what], None][:2]
            return Cell(value, spread)
    return Cell()


def published_curve(a: Ablation, what: str) -> list[tuple[float, float]]:
    """What the paper reports over the hyperparameter of ``a``, where it fixes the others as ``a`` does."""
    curve = []
    for point in reported().get(a.first.condition.benchmark, {}).get(a.first.method, []):
        others = {f"settings.{name}": value for name, value in point.settings.items() if name != a.name}
        fits = all(same(a.first.values.get(key), value) for key, value in others.items())
        fits = fits and a.first.is_published and a.key.startswith("settings.")
        if a.name in point.settings and what in point.numbers and fits:
            curve.append((point.settings[a.name], point.numbers[what][0]))
    return sorted(set(curve))


@cache
def reported() -> dict[str, dict[str, list[Reported]]]:
    """By benchmark and method, what the paper reports: its main tables first, then its ablations."""
    content = read_published()
    points = {
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

"""The page of a report: everything in one file that needs nothing else, made from ``page.html``."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from importlib import resources

from codecl.report.drawing import INK, PAPER, Drawing
from codecl.report.records import Run
from codecl.report.table import Table
from codecl.runs.plugins import title
from codecl.text import duration, size


@dataclass(frozen=True)
class Contents:
    """All that a page shows. ``short`` and ``run_figures`` have a short name and the figures of each run, by name."""

    runs: Sequence[Run]
    short: Mapping[str, str]
    tables: Sequence[Table]
    figures: Sequence[Drawing]
    run_figures: Mapping[str, Sequence[Drawing]]
    left_out: Sequence[tuple[str, str]]
    notes: Sequence[str]
    warnings: Sequence[str]
    files: Sequence[str]


def make_page(contents: Contents) -> str:
    """The page as HTML; whatever a record says is escaped."""
    from jinja2 import Environment
    from markupsafe import Markup

    environment = Environment(autoescape=True, keep_trailing_newline=True)
    return environment.from_string(_resource("page.html")).render(
        vars(contents),
        title=_heading(contents.runs),
        anchors={run.name: f"run-{i + 1}" for i, run in enumerate(contents.runs)},
        method_title=title,
        facts=_facts,
        inline=lambda figure: Markup(inline(figure)),
        resource=lambda name: Markup(_resource(name)),
    )


def files_of(page: str) -> list[str]:
    """The files that a page says are its own."""
    return re.findall(r'<li data-file="((?:tables|figures)/[\w.=+-]+\.(?:txt|md|tex|csv|svg|png))">', page, re.ASCII)


def inline(figure: Drawing) -> str:
    """A figure as part of a page: in the colours of the page, with ids that no other figure has."""
    svg = figure.svg[figure.svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>", "", svg, flags=re.DOTALL)
    svg = re.sub(r'(\bid="|url\(#|href="#)', lambda found: f"{found[1]}{escape(figure.name)}-", svg)
    svg = svg.replace(INK, "var(--ink)").replace(PAPER, "var(--paper)")
    return svg.replace("<svg", f'<svg role="img" aria-label="{escape(figure.caption)}"', 1).rstrip()


def _heading(runs: Sequence[Run]) -> str:
    benchmarks = list(dict.fromkeys(run.result.benchmark for run in runs))
    named = ", ".join(benchmarks) if len(benchmarks) <= 3 else f"{len(benchmarks)} benchmarks"
    return f"{len(runs)} run{'s' * (len(runs) != 1)} on {named}"


def _facts(run: Run) -> dict[str, object]:
    """What a reader wants to know of a run, by name."""
    r = run.result
    return {
        "directory": run.name,
        "preset": r.preset + " (quick)" * r.quick,
        "data": ", ".join([r.data, *(f"{name} = {choice}" for name, choice in r.switches.items())]),
        "tasks": r.tasks,
        "epochs of each task": ", ".join(map(str, r.epochs)),
        "seed": r.seed,
        "time": ", ".join(f"{name.replace('_', ' ')} {duration(value)}" for name, value in r.seconds.items()),
        "memory": f"{size(r.bytes['memory'])}, {size(r.bytes['per_task'])} of it for each task",
        "computed on": f"{r.device}, {r.threads} thread{'s' * (r.threads != 1)}",
        "versions": ", ".join(f"{name} {version}" for name, version in r.versions.items()),
    }


def _resource(name: str) -> str:
    return (resources.files("codecl.report") / name).read_text(encoding="utf-8")

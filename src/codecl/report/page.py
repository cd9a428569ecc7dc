"""The page of a report: everything in one file that needs nothing else, made from ``page.html``; and what it says."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from importlib import resources

from codecl.report.drawing import INK, PAPER, Drawing
from codecl.report.experiments import Experiment
from codecl.report.names import few
from codecl.report.records import Run
from codecl.report.table import Table
from codecl.text import duration, size


@dataclass(frozen=True)
class Contents:
    """All that a page shows.

    ``short`` and ``run_figures`` have a short name and the figures of each run, by name; ``headlines`` a sentence for
    each condition, by its title.
    """

    runs: Sequence[Run]
    short: Mapping[str, str]
    headlines: Mapping[str, str]
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
        anchors={run.name: f"run-{i + 1}" for i, run in enumerate(contents.runs)},
        seeds={run.name: run.seed for run in contents.runs},
        duration=duration,
        size=size,
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


def _resource(name: str) -> str:
    return (resources.files("codecl.report") / name).read_text(encoding="utf-8")


def origin_note(runs: Sequence[Run]) -> str:
    versions = sorted({f"codecl {run.result.versions.get('codecl', '?')}" for run in runs})
    seeds = sorted({run.seed for run in runs})
    return f"Recorded by {', '.join(versions)}; seeds {', '.join(map(str, seeds))}."


def log_notes(runs: Sequence[Run], short: Mapping[str, str]) -> Iterator[str]:
    """Which figures are missing because of a log."""
    faults = {short[run.name]: run.record.log_fault.removeprefix("is damaged: ").rstrip(".") for run in runs}
    missing = [name for name, fault in faults.items() if fault == "missing"]
    damaged = [f"{name} ({fault})" for name, fault in faults.items() if fault not in ("", "missing")]
    if missing:
        yield f"No training curves, spectra and capacities of runs without log.jsonl: {few(missing)}."
    if damaged:
        begin = "Training curves, spectra and capacities are missing or incomplete where log.jsonl is damaged"
        yield f"{begin}: {few(damaged)}."


def repeat_notes(experiments: Sequence[Experiment]) -> tuple[list[tuple[str, str]], list[str]]:
    """The runs that are not counted, because another of the same recipe and seed is; and warnings where they differ."""
    repeats, warnings = [], []
    for run, counted in ((run, e.of_seed(run.seed)) for e in experiments for run in e.repeats):
        reason = f"repeats seed {run.seed} of {counted.name}; not counted"
        if run.result.accuracy != counted.result.accuracy:
            acc, counted_acc = f"{run.result.acc:.2f}", f"{counted.result.acc:.2f}"
            reason += f", though its numbers differ: ACC {acc}, not {counted_acc}"
            warnings.append(
                f"{run.name} and {counted.name} have the same recipe and seed, but other accuracies: ACC {acc} and "
                f"{counted_acc}. Only {counted.name} is counted, as the first by name; leave one of them out."
            )
        repeats.append((run.name, reason))
    return repeats, warnings

"""The figures of the paper: tasks just after learning and in the end, time and memory, ablations; accuracy matrices."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from codecl.experiments.progress import duration, size
from codecl.experiments.registry import title
from codecl.experiments.report.drawing import (
    COLOURS,
    LINE,
    WIDTH,
    Drawn,
    drawn,
    grid,
    legend_below,
    new_figure,
    style_of,
    styles,
    task_ticks,
    wrapped,
)
from codecl.experiments.report.experiments import Ablation, Experiment, sortable
from codecl.experiments.report.records import Run
from codecl.experiments.report.tables import acc, bwt, stored
from codecl.experiments.sweep import shown
from codecl.training import metrics


def matrix(run: Run, name: str) -> Drawn:
    """The accuracy on every task after every task."""
    A = run.accuracy
    figure = new_figure(0.95 if run.joint else 0.5 + 0.8 * WIDTH)
    axes = figure.add_subplot()
    grid(figure, axes, [[math.nan if value is None else value for value in row] for row in A], "{:.1f}")
    learned = {0.5: "all"} if run.joint else {tick: f"{tick + 0.5:.0f}" for tick in axes.get_xticks()}
    axes.set_yticks(list(learned), list(learned.values()))
    axes.set(xlabel="accuracy on task, %", ylabel="after task")
    return drawn(name, f"Accuracy on each task after learning each task: {run.name}.", figure)


def tasks(of: Sequence[Experiment], name: str) -> Drawn:
    """Figure 2: each task's accuracy just after learning it, and in the end; the mean over seeds."""
    figure = new_figure(1.95)
    after, end = figure.subplots(1, 2, sharey=True)
    panels = ((after, "just after learning", metrics.learned), (end, "after all tasks", metrics.final))
    for axes, heading, values in panels:
        for e, style in zip(of, styles(of), strict=True):
            every = [values(run.accuracy) for run in e.runs]
            means = [math.fsum(column) / len(column) for column in zip(*every, strict=True)]
            axes.plot(range(1, len(means) + 1), means, label=e.label(), **style)
        axes.set(title=heading, xlabel="task")
        task_ticks(axes, of[0].condition.tasks)
        axes.grid(axis="y")
    after.set_ylabel("accuracy, %")
    legend_below(figure, after)
    return drawn(name, f"Accuracy on each task: {of[0].condition.title()}.", figure)


def cost(of: Sequence[Experiment], name: str) -> Drawn:
    """Figure 3: time of a run and memory in the end."""
    labels = [wrapped(e.label(), 24) for e in of]
    figure = new_figure(0.55 + sum(0.06 + LINE * (label.count("\n") + 1) for label in labels))
    time, memory = figure.subplots(1, 2, sharey=True)
    places = range(len(of))
    seconds = [math.fsum(run.seconds for run in e.runs) / len(e.runs) for e in of]
    stores = [float(stored(e).value or 0) for e in of]
    for axes, values, heading, print_, colour in (
        (time, seconds, "time of a run", duration, COLOURS[0]),
        (memory, stores, "memory", lambda value: size(round(value)), COLOURS[1]),
    ):
        axes.barh(places, values, height=0.7, color=colour)
        for place, value in zip(places, values, strict=True):
            axes.annotate(print_(value), (value, place), (3, 0), textcoords="offset points", va="center")
        axes.set(title=heading, xlim=(0, 1.6 * (max(values) or 1)), xticks=[])
        axes.spines["bottom"].set_visible(False)
        axes.tick_params(axis="y", length=0)
    time.set_yticks(places, labels)
    time.invert_yaxis()
    return drawn(name, f"Time and memory: {of[0].condition.title()}. Less is better.", figure)


def swept(ablations: Sequence[Ablation], name: str) -> Drawn:
    """Figures 4 and 5: ACC and BWT over one hyperparameter; a line for each way the others were fixed."""
    first = ablations[0]
    numeric = all(a.numeric for a in ablations)
    figure = new_figure(1.7)
    panels = figure.subplots(1, 2)
    places = {shown(v): i for i, v in enumerate(_values(ablations))}
    for axes, measure, label in zip(panels, (acc, bwt), ("ACC, %", "BWT, %"), strict=True):
        for place, a in enumerate(ablations):
            points = [(value, measure(e)) for value, e in a.points if measure(e).value is not None]
            x = [value if numeric else places[shown(value)] for value, _ in points]
            y = [cell.value for _, cell in points]
            bars = [cell.spread or 0.0 for _, cell in points]
            style = style_of(place if len(ablations) > 1 else int(measure is bwt))
            axes.errorbar(x, y, bars if any(bars) else None, label=a.label, capsize=2, elinewidth=0.8, **style)
        axes.set(xlabel=first.name, ylabel=label)
        axes.grid(axis="y")
        _ticks(axes, _values(ablations), numeric)
    if len(ablations) > 1:
        legend_below(figure, panels[0], columns=2)
    who = first.label if len(ablations) == 1 else title(first.points[0][1].method)
    return drawn(name, f"ACC and BWT over {first.name}: {who}, {first.condition}.", figure)


def _values(ablations: Sequence[Ablation]) -> list[Any]:
    """All that were tried, in order."""
    every = {shown(value): value for a in ablations for value, _ in a.points}
    return sorted(every.values(), key=sortable)


def _ticks(axes: Any, values: Sequence[Any], numeric: bool) -> None:
    """The values that were tried; numbers to scale, a logarithmic one if they span most of a decade."""
    words = [shown(value) for value in values]
    if not numeric:
        long = max(map(len, words)) > 6
        axes.set_xticks(range(len(words)), words, rotation=30 * long, ha="right" if long else "center")
        axes.margins(x=0.15)
        return
    if values[0] > 0 and values[-1] / values[0] >= 8:
        axes.set_xscale("log")
    axes.set_xticks(values, words)
    axes.minorticks_off()

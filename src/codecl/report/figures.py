"""The figures of the paper: accuracy on each task, time and memory, ablations."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from codecl.methods import METHODS
from codecl.report.drawing import (
    COLOURS,
    LINE,
    Drawing,
    every_nth,
    legend_below,
    line_style,
    new_figure,
    render,
    styled,
    wrapped,
)
from codecl.report.experiments import Ablation, Experiment, by_condition, sort_key
from codecl.report.measures import acc, bwt, memory, time
from codecl.report.names import slug, unique
from codecl.runs.plugins import title
from codecl.text import duration, shown, size
from codecl.training import metrics

LONG = 12
"""Letters of the longest value that stands below an axis; longer ones are numbered and explained in the legend."""


def summary_figures(experiments: Sequence[Experiment], ablations: Sequence[Ablation]) -> list[Drawing]:
    """The figures of a whole report: one or two for each condition, one for each hyperparameter that was varied."""
    drawings: list[Drawing] = []
    taken: set[str] = set()
    with styled():
        for group in by_condition(experiments):
            where = group[0].condition.slug
            drawings.append(tasks(group, unique(f"tasks-{where}", taken)))
            if len(group) > 1:
                drawings.append(cost(group, unique(f"cost-{where}", taken)))
        families: dict[tuple[str, str], list[Ablation]] = {}
        for a in ablations:
            name = slug(f"ablation-{a.name}-{a.first.method}-{a.first.condition.benchmark}")
            families.setdefault((name, a.condition), []).append(a)
        for (name, _), family in families.items():
            drawings.append(ablation(family, unique(name, taken)))
    return drawings


def tasks(experiments: Sequence[Experiment], name: str) -> Drawing:
    """Figure 2: each task's accuracy just after learning it and in the end; the mean over seeds.

    Experiments that learned all tasks at once have only an end.
    """
    one_by_one = [e for e in experiments if not e.joint]
    panels = [("just after learning", metrics.learned, one_by_one)] if one_by_one else []
    panels += [("after all tasks", metrics.final, experiments)]
    styles = method_styles(experiments)
    figure = new_figure(1.95)
    every_axes = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    for axes, (heading, values, shown_here) in zip(every_axes, panels, strict=True):
        for e in shown_here:
            columns = zip(*(values(run.result.accuracy) for run in e.runs), strict=True)
            means = [math.fsum(column) / len(column) for column in columns]
            axes.plot(range(1, len(means) + 1), means, label=e.label(), **styles[e])
        axes.set(title=heading, xlabel="task", xticks=[t + 1 for t in every_nth(experiments[0].condition.tasks, 6)])
        axes.grid(axis="y")
    every_axes[0].set_ylabel("accuracy, %")
    legend_below(figure, every_axes[-1])
    return render(figure, name, f"Accuracy on each task: {experiments[0].condition.title()}.")


def method_styles(experiments: Sequence[Experiment]) -> dict[Experiment, dict[str, Any]]:
    """The line of each: a method keeps its own in all figures, further experiments of it take what is free."""
    known, taken = list(METHODS), set()
    numbers: dict[Experiment, int] = {}
    for e in experiments:
        number = known.index(e.method) if e.method in METHODS else len(known)
        while number in taken:
            number = max(number + 1, len(known))
        taken.add(number)
        numbers[e] = number
    return {e: line_style(number) for e, number in numbers.items()}


def cost(experiments: Sequence[Experiment], name: str) -> Drawing:
    """Figure 3: time of a run and memory in the end."""
    labels = [wrapped(e.label(), 24) for e in experiments]
    figure = new_figure(0.55 + sum(0.06 + LINE * (label.count("\n") + 1) for label in labels))
    panels = figure.subplots(1, 2, sharey=True)
    for axes, heading, measure, form, colour in (
        (panels[0], "time of a run", time, duration, COLOURS[0]),
        (panels[1], "memory", memory, lambda value: size(round(value)), COLOURS[1]),
    ):
        values = [float(measure(e).value or 0) for e in experiments]
        bars = axes.barh(range(len(values)), values, height=0.7, color=colour)
        axes.bar_label(bars, [form(value) for value in values], padding=3)
        axes.set(title=heading, xlim=(0, 1.6 * (max(values) or 1)), xticks=[])
        axes.spines["bottom"].set_visible(False)
        axes.tick_params(axis="y", length=0)
    panels[0].set_yticks(range(len(labels)), labels)
    panels[0].invert_yaxis()
    return render(figure, name, f"Time and memory: {experiments[0].condition.title()}. Less is better.")


def ablation(ablations: Sequence[Ablation], name: str) -> Drawing:
    """Figures 4 and 5: ACC and BWT over one hyperparameter; a line for each way the others were fixed."""
    first, several = ablations[0], len(ablations) > 1
    values = {shown(value): value for a in ablations for value, _ in a.points}
    values = dict(sorted(values.items(), key=lambda item: sort_key(item[1])))
    to_scale = all(a.numeric for a in ablations) and all(map(math.isfinite, values.values()))
    places = values if to_scale else {text: i for i, text in enumerate(values)}
    figure = new_figure(2.5)
    panels = figure.subplots(2, 1, sharex=True)
    for axes, measure, label in zip(panels, (acc, bwt), ("ACC, %", "BWT, %"), strict=True):
        for number, a in enumerate(ablations):
            points = [(places[shown(value)], measure(e)) for value, e in a.points]
            points = [(x, cell) for x, cell in points if cell.value is not None]
            bars = [cell.spread or 0.0 for _, cell in points]
            axes.errorbar(
                [x for x, _ in points], [cell.value for _, cell in points], bars if any(bars) else None,
                label=a.label if several else None, capsize=2, elinewidth=0.8,
                **line_style(number if several else int(measure is bwt)),
            )  # fmt: skip
        axes.set_ylabel(label)
        axes.grid(axis="y")
    panels[-1].set_xlabel(first.name)
    if to_scale:
        panels[-1].set_xscale(**_scale([*values.values()]))
        words = [_brief(value) for value in values.values()]
    else:
        numbers = {text: f"({i + 1})" for i, text in enumerate(text for text in places if len(text) > LONG)}
        words = [numbers.get(text, text) for text in places]
        for text, number in numbers.items():
            panels[0].plot([], [], linestyle="none", label=f"{number} {text}")
    if panels[0].get_legend_handles_labels()[0]:
        legend_below(figure, panels[0], columns=2)
    _mark_values(figure, panels[-1], [*places.values()], words, to_scale)
    who = title(first.first.method) if several else first.label
    return render(figure, name, f"ACC and BWT over {first.name}: {who}, {first.condition}.")


def _mark_values(figure: Any, axes: Any, places: Sequence[float], words: Sequence[str], to_scale: bool) -> None:
    """Put a tick at each place. Where words would touch, some numbers are left out, and other words stand aslant."""
    axes.set_xticks(places, words)
    axes.minorticks_off()
    figure.draw_without_rendering()
    boxes = [label.get_window_extent().padded(3, 0) for label in axes.get_xticklabels()]
    first, last = 0, len(boxes) - 1
    kept = [first]
    for i in range(1, last):
        if not boxes[i].overlaps(boxes[kept[-1]]) and not boxes[i].overlaps(boxes[last]):
            kept.append(i)
    kept.append(last)
    if to_scale:
        axes.set_xticks(places, [word if i in kept else "" for i, word in enumerate(words)])
    elif len(set(kept)) < len(boxes):
        axes.set_xticks(places, words, rotation=45, ha="right", rotation_mode="anchor")


def _scale(values: Sequence[float]) -> dict[str, Any]:
    """The scale for sorted numbers: logarithmic if they span most of a decade; with 0 among them, if they span two."""
    least = min((value for value in values if value > 0), default=1.0)
    if values[0] > 0 and values[-1] / least >= 8:
        return {"value": "log"}
    if values[0] == 0 and values[-1] / least >= 100:
        return {"value": "asinh", "linear_width": least}
    return {"value": "linear"}


def _brief(value: float) -> str:
    """A number in few letters: 0.0001 is 1e-4."""
    plain = shown(value)
    digits, power = f"{value:.15e}".split("e")
    short = f"{digits.rstrip('0').rstrip('.')}e{int(power)}"
    return short if len(short) < len(plain) and ("e" in plain or len(plain) > 5) else plain

"""The figures of the paper: accuracy on each task, time and memory, ablations."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

from codecl.methods import METHODS
from codecl.report import drawing
from codecl.report.drawing import COLOURS, LINE, Drawing
from codecl.report.experiments import Ablation, Experiment, by_condition, position, sort_key
from codecl.report.names import slug, unique
from codecl.report.tables import ACC, BWT, MEMORY, TIME
from codecl.runs.plugins import title
from codecl.text import shown
from codecl.training import metrics


def summary_figures(experiments: Sequence[Experiment], ablations: Sequence[Ablation]) -> list[Drawing]:
    """The figures of a whole report: one or two for each condition, one for each hyperparameter that was varied."""
    drawings: list[Drawing] = []
    taken: set[str] = set()
    with drawing.styled():
        for group in by_condition(experiments):
            c = group[0].condition
            epochs = "whole" if c.epochs is None else f"{c.epochs}-epochs"
            where = slug(f"{c.benchmark}-{c.preset}-{c.tasks}-tasks-{epochs}{'-quick' * c.quick}")
            drawings.append(tasks(group, unique(f"tasks-{where}", taken)))
            if len(group) > 1:
                drawings.append(cost(group, unique(f"cost-{where}", taken)))
        families: dict[tuple[str, str], list[Ablation]] = {}
        for a in ablations:
            name = slug(f"ablation-{a.name}-{a.first.method}-{a.first.condition.benchmark}")
            families.setdefault((name, a.condition), []).append(a)
        drawings += [ablation(family, unique(name, taken)) for (name, _), family in families.items()]
    return drawings


def tasks(experiments: Sequence[Experiment], name: str) -> Drawing:
    """Figure 2: each task's accuracy just after learning it and in the end; the mean over seeds.

    Experiments that learned all tasks at once have only an end.
    """
    styles = method_styles(experiments)
    one_by_one = [e for e in experiments if not e.joint]
    panels = [("just after learning", metrics.learned, one_by_one), ("after all tasks", metrics.final, [*experiments])]
    panels = [panel for panel in panels if panel[2]]
    figure = drawing.new_figure(1.95)
    every_axes = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    for axes, (heading, accuracies, shown_here) in zip(every_axes, panels, strict=True):
        for e in shown_here:
            columns = zip(*(accuracies(run.result.accuracy) for run in e.runs), strict=True)
            means = [math.fsum(column) / len(column) for column in columns]
            axes.plot(range(1, len(means) + 1), means, label=e.label(), **styles[e])
        ticks = drawing.every_nth(experiments[0].condition.tasks, most=6)
        axes.set(title=heading, xlabel="task", xticks=[t + 1 for t in ticks])
        axes.grid(axis="y")
    every_axes[0].set_ylabel("accuracy, %")
    drawing.legend_below(figure, every_axes[-1])
    return drawing.render(figure, name, f"Accuracy on each task: {experiments[0].condition.title()}.")


def method_styles(experiments: Sequence[Experiment]) -> dict[Experiment, dict[str, Any]]:
    """The line of each: a method has its colour in all figures; its further experiments differ in marker and dashes."""
    styles, seen = {}, Counter[int]()
    for e in experiments:
        place = position(e.method, METHODS)
        styles[e] = drawing.line_style(place + 2 * len(COLOURS) * seen[place])
        seen[place] += 1
    return styles


def cost(experiments: Sequence[Experiment], name: str) -> Drawing:
    """Figure 3: time of a run and memory in the end."""
    labels = [drawing.wrapped(e.label(), 24) for e in experiments]
    figure = drawing.new_figure(0.55 + sum(0.06 + LINE * (label.count("\n") + 1) for label in labels))
    panels = figure.subplots(1, 2, sharey=True)
    for axes, heading, measure, colour in zip(
        panels, ("time of a run", "memory"), (TIME, MEMORY), COLOURS, strict=False
    ):
        values = [float(measure.cell(e).value or 0) for e in experiments]
        bars = axes.barh(range(len(values)), values, height=0.7, color=colour)
        axes.bar_label(bars, [measure.column.show(value) for value in values], padding=3)
        axes.set(title=heading, xlim=(0, 1.6 * (max(values) or 1)), xticks=[])
        axes.spines["bottom"].set_visible(False)
        axes.tick_params(axis="y", length=0)
    panels[0].set_yticks(range(len(labels)), labels)
    panels[0].invert_yaxis()
    return drawing.render(figure, name, f"Time and memory: {experiments[0].condition.title()}. Less is better.")


def ablation(ablations: Sequence[Ablation], name: str) -> Drawing:
    """Figures 4 and 5: ACC and BWT over one hyperparameter; a line for each way the others were fixed.

    Numbers are drawn to scale, anything else in order.
    """
    first, several = ablations[0], len(ablations) > 1
    tried = {shown(value): value for a in ablations for value, _ in a.points}
    tried = dict(sorted(tried.items(), key=lambda item: sort_key(item[1])))
    to_scale = all(a.numeric for a in ablations) and all(map(math.isfinite, tried.values()))
    places = tried if to_scale else {text: i for i, text in enumerate(tried)}
    figure = drawing.new_figure(2.5)
    panels = figure.subplots(2, 1, sharex=True)
    for row, (axes, measure, label) in enumerate(zip(panels, (ACC, BWT), ("ACC, %", "BWT, %"), strict=True)):
        for number, a in enumerate(ablations):
            points = [(places[shown(value)], measure.cell(e)) for value, e in a.points]
            points = [(x, cell) for x, cell in points if cell.value is not None]
            bars = [cell.spread or 0.0 for _, cell in points]
            axes.errorbar(
                [x for x, _ in points], [cell.value for _, cell in points], bars if any(bars) else None,
                label=a.label if several else None, capsize=2, elinewidth=0.8,
                **drawing.line_style(number if several else row),
            )  # fmt: skip
        axes.set_ylabel(label)
        axes.grid(axis="y")
    panels[1].set_xlabel(first.name)
    words = [*tried] if to_scale else _numbered(panels[0], [*tried])
    if to_scale:
        panels[1].set_xscale(**_scale([*tried.values()]))
    panels[1].set_xticks([*places.values()], words)
    panels[1].minorticks_off()
    if panels[0].get_legend_handles_labels()[0]:
        drawing.legend_below(figure, panels[0], columns=2)
    drawing.hide_touching(figure, panels[1].get_xticklabels())
    who = title(first.first.method) if several else first.label
    return drawing.render(figure, name, f"ACC and BWT over {first.name}: {who}, {first.condition}.")


def _numbered(axes: Any, words: Sequence[str]) -> list[str]:
    """``words``, with numbers for those that are too long to stand side by side; the legend explains them."""
    longest = 40 // len(words)
    numbers = {word: f"({i + 1})" for i, word in enumerate(word for word in words if len(word) > longest)}
    for word, number in numbers.items():
        axes.plot([], [], linestyle="none", label=f"{number} {word}")
    return [numbers.get(word, word) for word in words]


def _scale(values: Sequence[float]) -> dict[str, Any]:
    """The scale for sorted numbers: logarithmic if they span most of a decade; with 0 among them, if they span two."""
    least = min((value for value in values if value > 0), default=1.0)
    if values[0] > 0 and values[-1] / least >= 8:
        return {"value": "log"}
    if values[0] == 0 and values[-1] / least >= 100:
        return {"value": "asinh", "linear_width": least}
    return {"value": "linear"}

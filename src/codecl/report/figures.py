"""The figures of the paper: accuracy on each task, time and memory, ablations."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from codecl.methods import METHODS
from codecl.report import drawing
from codecl.report.drawing import COLOURS, Drawing
from codecl.report.experiments import Ablation, Experiment, by_condition, position, sort_key
from codecl.report.names import slug, unique
from codecl.report.published import published_curve
from codecl.report.tables import ACC, BWT, MEMORY, TIME, Analysis, acc_of
from codecl.text import shown
from codecl.training import metrics

Styles = dict[Experiment, dict[str, Any]]
MOST_LINES = 7
"""More lines than these are hard to tell apart."""
LOADED = "Times depend on what else the machine did."
BEST_LINES = 3
"""How many of the best are highlighted, where not all can be."""
ALWAYS = ("code-cl", "finetune")
"""Highlighted wherever they stand: what this library is about, and what happens without any method."""


def summary_figures(analysis: Analysis) -> list[Drawing]:
    """The figures of a whole report: some for each condition, one for each hyperparameter that was varied."""
    drawings: list[Drawing] = []
    taken: set[str] = set()
    with drawing.styled():
        for group in by_condition(analysis.main):
            c = group[0].condition
            epochs = "whole" if c.epochs is None else f"{c.epochs}-epochs"
            where = slug(f"{c.benchmark}-{c.preset}-{c.tasks}-tasks-{epochs}")
            styles = line_styles(group, [t.base for t in analysis.transfers])
            made = [seen(group, styles, unique(f"seen-{where}", taken))]
            if len(group) > 1:
                made.append(tradeoff(group, styles, unique(f"tradeoff-{where}", taken)))
            made.append(tasks(group, styles, unique(f"tasks-{where}", taken)))
            drawings += [replace(one, part=c.title()) for one in made]
        families: dict[tuple[str, str], list[Ablation]] = {}
        for a in analysis.ablations:
            name = slug(f"ablation-{a.name}-{a.first.method}-{a.first.condition.benchmark}")
            families.setdefault((name, a.condition), []).append(a)
        for (name, _), family in families.items():
            drawings.append(replace(ablation(family, unique(name, taken)), part=f"ablation-{family[0].name}"))
    return drawings


def line_styles(experiments: Sequence[Experiment], bases: Sequence[Experiment | None] = ()) -> Styles:
    """The line of each, best first. A method has its colour in all figures, unless another here has the same.

    What is as its recipe file has it, in the paper's reading, takes its colour before other forms of the same method.

    Of many experiments a few are highlighted, the best, the baseline and ``ALWAYS``; the rest are grey and nameless.
    """
    few = [e for i, e in enumerate(experiments) if i < BEST_LINES or e in bases or e.label() in ALWAYS]
    if len(experiments) <= MOST_LINES:
        few = list(experiments)
    styles: Styles = {e: {"color": drawing.GREY, "marker": ".", "linewidth": 0.7, "zorder": 2} for e in experiments}
    taken = {len(COLOURS) - 1} if len(few) < len(experiments) else set()  # the last one is grey too
    for e in sorted(few, key=lambda e: bool(e.named) or e.title != e.first.title):
        number = position(e.method, METHODS)
        while number % len(COLOURS) in taken and len(taken) < len(COLOURS):
            number += 1
        taken.add(number % len(COLOURS))
        styles[e] = drawing.line_style(number) | {"label": e.label(), "zorder": 3}
    return styles


def seen(experiments: Sequence[Experiment], styles: Styles, name: str) -> Drawing:
    """The average accuracy over the tasks seen so far, after each task; the mean over seeds.

    What learned all tasks at once is a line across: an upper bound.
    """
    figure = drawing.new_figure(2.1)
    axes = figure.add_subplot()
    count = experiments[0].condition.tasks
    for e in experiments:
        curves = [metrics.average_over_seen(run.result.accuracy) for run in e.runs]
        means = _means([[math.nan if value is None else value for value in curve] for curve in curves])
        if e.joint:
            axes.axhline(means[0], **styles[e] | {"marker": None, "linestyle": "--"})
        else:
            axes.plot(range(1, len(means) + 1), means, **styles[e])
    _task_axis(axes, count, "tasks seen")
    axes.set_ylabel("average accuracy, %")
    _legend(figure, axes, styles)
    return drawing.render(
        figure, name, f"Average accuracy over the tasks seen so far: {experiments[0].condition.title()}."
    )


def tasks(experiments: Sequence[Experiment], styles: Styles, name: str) -> Drawing:
    """Figure 2: each task's accuracy just after learning it and in the end; the mean over seeds.

    Experiments that learned all tasks at once have only an end.
    """
    one_by_one = [e for e in experiments if not e.joint]
    panels = [("just after learning", metrics.learned, one_by_one), ("after all tasks", metrics.final, [*experiments])]
    panels = [panel for panel in panels if panel[2]]
    figure = drawing.new_figure(1.95)
    every_axes = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    for axes, (heading, accuracies, shown_here) in zip(every_axes, panels, strict=True):
        for e in shown_here:
            means = _means([accuracies(run.result.accuracy) for run in e.runs])
            axes.plot(range(1, len(means) + 1), means, **styles[e])
        _task_axis(axes, experiments[0].condition.tasks, "task")
        axes.set_title(heading)
    every_axes[0].set_ylabel("accuracy, %")
    _legend(figure, every_axes[-1], styles)
    return drawing.render(figure, name, f"Accuracy on each task: {experiments[0].condition.title()}.")


def tradeoff(experiments: Sequence[Experiment], styles: Styles, name: str) -> Drawing:
    """ACC against the memory in the end and against the time of a run; a point for each experiment."""
    figure = drawing.new_figure(2.1)
    panels = figure.subplots(1, 2, sharey=True)
    labels: list[tuple[Any, Any]] = []
    for axes, heading, measure in zip(panels, ("memory", "time of a run"), (MEMORY, TIME), strict=True):
        amounts = [float(measure.cell(e).number or 0) for e in experiments]
        for e, value in zip(experiments, amounts, strict=True):
            axes.plot([value], [acc_of(e)], **styles[e] | {"linestyle": "none"})
            if "label" not in styles[e]:
                at = {"xytext": (3, 0), "textcoords": "offset points", "va": "center"}
                labels.append((axes, axes.annotate(e.title, (value, acc_of(e)), **at)))
        axes.set_xscale(**_scale(sorted(amounts)))
        drawing.few_ticks(axes, amounts, measure.column.show)
        axes.set_xlabel(heading)
        axes.grid(axis="y")
    panels[0].set_ylabel("ACC, %")
    _legend(figure, panels[0], styles)
    drawing.hide_crowded(figure, labels)
    where = experiments[0].condition.title()
    return drawing.render(
        figure, name, f"ACC against memory and time; the best is above on the left: {where}. {LOADED}"
    )


def _means(rows: Sequence[Sequence[float]]) -> list[float]:
    """The mean of each column."""
    return [math.fsum(column) / len(column) for column in zip(*rows, strict=True)]


def _task_axis(axes: Any, count: int, label: str) -> None:
    axes.set(xlabel=label, xticks=[t + 1 for t in drawing.every_nth(count, most=6)])
    axes.grid(axis="y")


def _legend(figure: Any, axes: Any, styles: Styles) -> None:
    """The names of the highlighted lines, and how many are grey."""
    grey = [style for style in styles.values() if "label" not in style]
    if grey:
        axes.plot([], [], **grey[0], label=f"{len(grey)} others")
    drawing.legend_below(figure, axes)


def ablation(ablations: Sequence[Ablation], name: str) -> Drawing:
    """Figures 4 and 5: ACC and BWT over one hyperparameter; a line for each way the others were fixed.

    Numbers are drawn to scale, anything else in order. The recipe's value is marked, and the paper's curve is grey.
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
        _draw_references(axes, first, places, published_curve(first, label[:3].lower()) if to_scale else [])
        axes.set_ylabel(label)
        axes.grid(axis="y")
    panels[1].axhline(0, color=drawing.INK, linewidth=0.6)
    panels[1].set_xlabel(first.name)
    words = [*tried] if to_scale else _numbered(panels[0], [*tried])
    if to_scale:
        panels[1].set_xscale(**_scale([*tried.values()]))
    panels[1].set_xticks([*places.values()], words)
    panels[1].minorticks_off()
    if panels[0].get_legend_handles_labels()[0]:
        drawing.legend_below(figure, panels[0], columns=2)
    drawing.hide_touching(figure, panels[1].get_xticklabels())
    who = first.first.title if several else first.label
    return drawing.render(figure, name, f"ACC and BWT over {first.name}: {who}, {first.condition}.")


def _draw_references(axes: Any, a: Ablation, places: Mapping[str, float], curve: Sequence[tuple[float, float]]) -> None:
    """The value that the recipe file has, and what the paper reports between the values that were tried."""
    between = [(x, y) for x, y in curve if min(places.values()) <= x <= max(places.values())]
    if between:
        style = {"color": drawing.GREY, "linestyle": "--", "marker": "o"}
        axes.plot(*zip(*between, strict=True), **style, label="paper, its whole schedule")
    usual = shown(a.first.usual.get(a.key))
    if usual in places:
        axes.axvline(places[usual], color=drawing.INK, linestyle=":", label="as the recipe has it")


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

"""The figures of the paper: tasks just after learning and in the end, time and memory, ablations; accuracy matrices."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from codecl.report.drawing import (
    COLOURS,
    LINE,
    WIDTH,
    Drawn,
    apart,
    drawn,
    grid,
    legend_below,
    new_figure,
    numbered,
    style_of,
    styles,
    task_ticks,
    wrapped,
)
from codecl.report.experiments import Ablation, Condition, Experiment, sortable
from codecl.report.records import Run
from codecl.report.tables import acc, bwt, stored
from codecl.runs.plugins import title
from codecl.text import duration, shown, size
from codecl.training import metrics

PANEL, WHOLE = 66.0, 172.0
"""Points between the first value and the last below one of two panels, and below one as wide as the figure."""


def matrix(run: Run, name: str, limits: tuple[float, float] = (0.0, 100.0)) -> Drawn:
    """The accuracy on every task after every task. Runs drawn with the same ``limits`` have the same colours."""
    A = [[math.nan if value is None else value for value in row] for row in run.accuracy]
    figure = new_figure(min(0.45 + 0.5 * len(A), 0.5 + 0.8 * WIDTH))
    axes = figure.add_subplot()
    step = math.ceil(len(A) / 12)
    names = ["all"] if run.joint else ["" if i % step else f"{i + 1}" for i in range(len(A))]
    if numbered(A, names, _percent):
        grid(axes, A, names, limits, _percent)
    else:
        figure.colorbar(grid(axes, A, names, limits), ax=axes, pad=0.02)
    axes.set(xlabel="accuracy on task, %", ylabel="after task")
    colours = f"Colours from {limits[0]:g} to {limits[1]:g} %."
    return drawn(name, f"Accuracy on each task after learning each task: {run.name}. {colours}", figure)


def _percent(value: float) -> str:
    return f"{value:.1f}".replace("100.0", "100")  # which has no room for more


def limits_of(runs: Sequence[Run]) -> dict[str, tuple[float, float]]:
    """For each run, by name: the tens of percent between which all accuracies under its condition lie."""
    conditions = {run.name: Condition.of(run.result) for run in runs}
    found: dict[Condition, list[float]] = {}
    for run in runs:
        values = [value for row in run.accuracy for value in row if value is not None]
        found.setdefault(conditions[run.name], []).extend(values)
    lows = {condition: min(90.0, 10.0 * math.floor(min(values) / 10)) for condition, values in found.items()}
    highs = {condition: max(lows[condition] + 10, 10.0 * math.ceil(max(found[condition]) / 10)) for condition in found}
    return {name: (lows[condition], highs[condition]) for name, condition in conditions.items()}


def tasks(of: Sequence[Experiment], name: str) -> Drawn:
    """Figure 2: each task's accuracy just after learning it, and in the end; the mean over seeds.

    Where all tasks were learned at once, there is only an end.
    """
    every = [(e, style) for e, style in zip(of, styles(of), strict=True)]
    in_turn = [(e, style) for e, style in every if not e.first.joint]
    panels = [("just after learning", metrics.learned, in_turn)] if in_turn else []
    panels += [("after all tasks", metrics.final, every)]
    figure = new_figure(1.95)
    several = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    for axes, (heading, values, drawn_) in zip(several, panels, strict=True):
        for e, style in drawn_:
            columns = zip(*(values(run.accuracy) for run in e.runs), strict=True)
            means = [math.fsum(column) / len(column) for column in columns]
            axes.plot(range(1, len(means) + 1), means, label=e.label(), **style)
        axes.set(title=heading, xlabel="task")
        task_ticks(axes, of[0].condition.tasks)
        axes.grid(axis="y")
    several[0].set_ylabel("accuracy, %")
    legend_below(figure, several[-1])
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
    """Figures 4 and 5: ACC and BWT over one hyperparameter; a line for each way the others were fixed.

    Side by side if the values that were tried have room below each panel, else one above the other.
    """
    first, several = ablations[0], len(ablations) > 1
    tried = _Tried.of(ablations)
    beside = all(tried.fitting(PANEL))
    figure = new_figure(1.7 if beside else 2.5)
    panels = figure.subplots(1, 2) if beside else figure.subplots(2, 1, sharex=True)
    for axes, measure, label in zip(panels, (acc, bwt), ("ACC, %", "BWT, %"), strict=True):
        for place, a in enumerate(ablations):
            points = [(tried.places[shown(value)], measure(e)) for value, e in a.points]
            points = [(x, cell) for x, cell in points if cell.value is not None]
            bars = [cell.spread or 0.0 for _, cell in points]
            axes.errorbar(
                [x for x, _ in points], [cell.value for _, cell in points], bars if any(bars) else None,
                label=a.label if several else None, capsize=2, elinewidth=0.8,
                **style_of(place if several else int(measure is bwt)),
            )  # fmt: skip
        axes.set(xlabel=first.name if beside or axes is panels[-1] else "", ylabel=label)
        axes.grid(axis="y")
        tried.mark(axes, PANEL if beside else WHOLE)
    for meaning in tried.long:
        panels[0].plot([], [], linestyle="none", label=meaning)
    if several or tried.long:
        legend_below(figure, panels[0], columns=2)
    who = title(first.points[0][1].method) if several else first.label
    return drawn(name, f"ACC and BWT over {first.name}: {who}, {first.condition}.", figure)


@dataclass(frozen=True)
class _Tried:
    """The values that were tried, on an axis: where each is, by how it is shown; what is printed there; its scale.

    ``along`` is how far each is on this scale. ``long`` says what numbers in brackets stand for.
    """

    places: dict[str, float]
    words: list[str]
    long: list[str]
    scale: dict[str, Any]
    along: list[float]

    @classmethod
    def of(cls, ablations: Sequence[Ablation]) -> _Tried:
        """Numbers to scale, anything else in order."""
        every = {shown(value): value for a in ablations for value, _ in a.points}
        places = dict(sorted(every.items(), key=lambda item: sortable(item[1])))
        if all(a.numeric for a in ablations) and all(map(math.isfinite, places.values())):
            return cls(places, [_brief(value) for value in places.values()], [], *_scale([*places.values()]))
        long = {word: f"({i + 1})" for i, word in enumerate(word for word in places if len(word) > 12)}
        meanings = [f"{number} {word}" for word, number in long.items()]
        order = {word: float(i) for i, word in enumerate(places)}
        return cls(order, [long.get(word, word) for word in order], meanings, {}, [*order.values()])

    def fitting(self, width: float) -> list[bool]:
        """What can be printed on so many points between the first and the last."""
        begin, end = self.along[0], self.along[-1]
        return apart(self.words, [(place - begin) / (end - begin or 1.0) for place in self.along], width)

    def mark(self, axes: Any, width: float) -> None:
        """A tick for each; of numbers those printed that fit, of anything else all, aslant if they must."""
        fitting, words = self.fitting(width), self.words
        if self.scale:
            axes.set_xscale(**self.scale)
            words = [word if fits else "" for word, fits in zip(words, fitting, strict=True)]
        aslant = {"rotation": 45, "ha": "right", "rotation_mode": "anchor"} if not (self.scale or all(fitting)) else {}
        axes.set_xticks([*self.places.values()], words, **aslant)
        axes.minorticks_off()


def _scale(values: Sequence[float]) -> tuple[dict[str, Any], list[float]]:
    """The scale for these numbers, and how far each is on it: a logarithmic one if they span most of a decade.

    With 0 among them, if they span two, one that is linear up to the next.
    """
    least = min((value for value in values if value > 0), default=1.0)
    if values[0] > 0 and values[-1] / least >= 8:
        return {"value": "log"}, [math.log(value) for value in values]
    if values[0] == 0 and values[-1] / least >= 100:
        return {"value": "asinh", "linear_width": least}, [math.asinh(value / least) for value in values]
    return {"value": "linear"}, [float(value) for value in values]


def _brief(value: float) -> str:
    """A number in few letters: 0.0001 is 1e-4."""
    plain = shown(value)
    digits, power = f"{value:.15e}".split("e")
    short = f"{digits.rstrip('0').rstrip('.')}e{int(power)}"
    return short if len(short) < len(plain) and ("e" in plain or len(plain) > 5) else plain

"""What happened within a run, from its log: training curves, and how full the memory of each layer became."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from codecl.report.drawing import (
    COLOURS,
    INK,
    Drawn,
    drawn,
    grid,
    legend_below,
    new_figure,
    numbered,
    scale,
    shade,
    wrapped,
)
from codecl.report.experiments import is_number
from codecl.report.records import Run

Tree = dict[str, Any]
MOST_LAYERS = 24
"""The most layers with a panel of their own."""
MOST_NUMBERED = 12
"""The most layers whose numbers are printed."""
TALLEST = 3.4
"""Inches of the tallest heat map."""
EPOCH = ("task", "epoch", "loss", "validation_loss", "validation_accuracy", "lr")


def curves(run: Run, name: str) -> Drawn | None:
    """Loss and validation accuracy, epoch by epoch; None if the log does not have them."""
    epochs = [e for e in run.events if e.get("event") == "epoch" and all(is_number(e.get(key)) for key in EPOCH)]
    if not epochs:
        return None
    figure = new_figure(2.25)
    loss, accuracy = figure.subplots(2, 1, sharex=True)
    tasks = list(dict.fromkeys(event["task"] for event in epochs))
    for task in tasks:
        of = [(i + 1, event) for i, event in enumerate(epochs) if event["task"] == task]
        x = [i for i, _ in of]
        for axes, key, colour, label in (
            (loss, "loss", COLOURS[0], "training"),
            (loss, "validation_loss", COLOURS[1], "validation"),
            (accuracy, "validation_accuracy", COLOURS[1], ""),
        ):
            y = [event[key] for _, event in of]
            axes.plot(
                x, y, color=colour, label=label if task == tasks[0] else None, marker="." if len(x) == 1 else None
            )
    ends = [i + 0.5 for i in range(1, len(epochs)) if epochs[i]["task"] != epochs[i - 1]["task"]]
    for axes in (loss, accuracy):
        for end in ends:
            axes.axvline(end, color=INK, alpha=0.25, linewidth=0.6)
        axes.grid(axis="y")
    begins = [0.5, *ends, len(epochs) + 0.5]
    if 1 < len(tasks) <= 20:
        above = loss.secondary_xaxis("top")
        middles = [(a + b) / 2 for a, b in itertools.pairwise(begins)]
        above.set_xticks(middles, [f"{task + 1}" for task in tasks])
        above.tick_params(length=0)
        above.spines[:].set_visible(False)
        above.set_xlabel("task")
    loss.set(ylabel="loss")
    legend_below(figure, loss)
    accuracy.xaxis.get_major_locator().set_params(integer=True)
    accuracy.set(xlabel="epoch", ylabel="validation, %", xlim=(0.5, len(epochs) + 0.5))
    return drawn(name, f"Training and validation, epoch by epoch: {run.name}.", figure)


def fullness(run: Run, name: str) -> Drawn | None:
    """Of every layer after every task: the share of its inputs that is protected, and how many directions were freed.

    None if the log does not say; older ones do not.
    """
    logged = layers_of(run)
    every = list(dict.fromkeys(layer for of in logged for layer in of))
    grids = [
        _Grid(heading, form, high, [[_number(of.get(layer, {}).get(key)) for of in logged] for layer in every])
        for key, heading, form, high in (
            ("capacity", "share of the inputs that is protected", "{:.2f}".format, 1.0),
            ("freed", "directions freed", "{:.0f}".format, None),
        )
    ]
    grids = [g for g in grids if any(value > 0 for row in g.rows for value in row)]
    if not grids:
        return None
    names = [_cut(layer, 20) for layer in _short(every)]
    few = len(names) <= MOST_NUMBERED and all(numbered(g.rows, names, g.form) for g in grids)
    figure = _numbers(grids, names) if few else _colours(grids, names)
    return drawn(name, f"How full the memory of each layer is, and what was freed: {run.name}.", figure)


@dataclass(frozen=True)
class _Grid:
    """Numbers of every layer after every task, up to ``high`` or the largest there is."""

    heading: str
    form: Callable[[float], str]
    high: float | None
    rows: list[list[float]]

    @property
    def limits(self) -> tuple[float, float]:
        largest = max(value for row in self.rows for value in row if not math.isnan(value))
        return 0.0, largest if self.high is None else self.high


def _numbers(grids: Sequence[_Grid], names: Sequence[str]) -> Any:
    """One heat map above the other, with numbers."""
    figure = new_figure(len(grids) * (0.5 + 0.17 * len(names)) + 0.2)
    panels = figure.subplots(len(grids), 1, squeeze=False, sharex=True)[:, 0]
    for axes, g in zip(panels, grids, strict=True):
        grid(axes, g.rows, names, g.limits, g.form)
        axes.set_title(g.heading)
    panels[-1].set_xlabel("after task")
    return figure


def _colours(grids: Sequence[_Grid], names: Sequence[str]) -> Any:
    """Heat maps of all layers side by side, with what the colours mean below; of many layers, some are named."""
    tall = min(TALLEST, 0.17 * len(names))
    step = math.ceil(0.12 * len(names) / tall)
    figure = new_figure(1.25 + tall)
    panels = figure.subplots(1, len(grids), squeeze=False, sharey=True)[0]
    for axes, g in zip(panels, grids, strict=True):
        some = [label if i % step == 0 else "" for i, label in enumerate(names)]
        mesh = grid(axes, g.rows, some, g.limits, most=12 // len(grids))
        axes.set(title=wrapped(g.heading, 20), xlabel="after task")
        figure.colorbar(mesh, ax=axes, location="bottom", aspect=12, pad=0.03)
    return figure


def spectra(run: Run, name: str) -> Drawn | None:
    """The singular values of every layer's conceptor, after every task, over the share of inputs they stand for."""
    logged = layers_of(run)
    every = list(dict.fromkeys(layer for of in logged for layer in of if _spectrum(of[layer])))
    shown = min(MOST_LAYERS, len(every))
    names = [every[round(i * (len(every) - 1) / max(1, shown - 1))] for i in range(shown)]
    if not names:
        return None
    columns = 2 if len(names) <= 8 else 3
    rows = math.ceil(len(names) / columns)
    figure = new_figure(0.55 + 0.95 * rows)
    panels = figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True).flat
    width = 26 if columns == 2 else 16
    for axes, layer, label in zip(panels, names, _short(names), strict=False):
        for t, of in enumerate(logged):
            if values := _spectrum(of.get(layer, {})):
                share = of[layer]["rank"] / of[layer]["shape"][-1]
                x = [share * i / max(1, len(values) - 1) for i in range(len(values))]
                axes.plot(x, values, color=shade(t, len(logged)), linewidth=0.9, label=f"{t + 1}")
        axes.set_title(_cut(label, width))
        axes.grid()
    for i, axes in enumerate(figure.axes):
        axes.set_visible(i < len(names))
        if i >= len(names) - columns:  # the lowest of its column
            axes.set_xlabel("share of the inputs")
            axes.tick_params(labelbottom=True)
    figure.supylabel("singular value", fontsize=7)
    scale(figure, len(logged))
    left_out = ""
    if len(every) > len(names):
        left_out = f" {len(names)} of {len(every)} layers, from the first to the last."
        figure.suptitle(left_out.strip(" ."), fontsize=7)
    return drawn(name, f"Spectra of the conceptors, a line for each task: {run.name}.{left_out}", figure)


def layers_of(run: Run) -> list[dict[str, Tree]]:
    """What the log says of every layer after each task, layers by name; empty if it says nothing, as older ones do."""
    logged = [event.get("layers") for event in run.events if event.get("event") == "task"]
    if not any(isinstance(of, dict) for of in logged):
        return []
    return [{k: v for k, v in of.items() if isinstance(v, dict)} if isinstance(of, dict) else {} for of in logged]


def _spectrum(layer: Tree) -> list[float]:
    """The singular values of a layer, if they are there with what is needed to place them."""
    values, shape, rank = layer.get("spectrum"), layer.get("shape"), layer.get("rank")
    if not (isinstance(shape, list) and shape and is_number(shape[-1]) and shape[-1] > 0 and is_number(rank)):
        return []
    return values if isinstance(values, list) and all(map(is_number, values)) else []


def _number(value: Any) -> float:
    return float(value) if is_number(value) and math.isfinite(value) else math.nan


def _short(names: Sequence[str]) -> list[str]:
    """Without what all of them begin with, and without the name of the parameter."""
    parts = [name.removesuffix(".weight").split(".") for name in names]
    common = 0
    while len(names) > 1 and all(len(p) > common + 1 and p[common] == parts[0][common] for p in parts):
        common += 1
    if common and any(p[common].isdigit() for p in parts):  # a number alone says little
        common -= 1
    return [".".join(p[common:]) for p in parts]


def _cut(name: str, most: int) -> str:
    """The end of a name, where layers differ."""
    return name if len(name) <= most else f"…{name[1 - most :]}"

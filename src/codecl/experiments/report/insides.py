"""What happened within a run, from its log: training curves, and how full the memory of each layer became."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

from codecl.experiments.report.drawing import (
    COLOURS,
    INK,
    Drawn,
    drawn,
    grid,
    legend_below,
    new_figure,
    scale,
    shade,
)
from codecl.experiments.report.experiments import is_number
from codecl.experiments.report.records import Run

Tree = dict[str, Any]
MOST_LAYERS = 24
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
    names = list(dict.fromkeys(layer for of in logged for layer in of))
    grids = {
        heading: [[_number(of.get(layer, {}).get(key)) for of in logged] for layer in names]
        for key, heading in (("capacity", "share of the inputs that is protected"), ("freed", "directions freed"))
    }
    shown = {heading: rows for heading, rows in grids.items() if any(value > 0 for row in rows for value in row)}
    if not shown:
        return None
    figure = new_figure(len(shown) * (0.5 + 0.17 * len(names)) + 0.2)
    panels = figure.subplots(len(shown), 1, squeeze=False, sharex=True)[:, 0]
    for axes, (heading, rows) in zip(panels, shown.items(), strict=True):
        share = heading == next(iter(grids))
        grid(figure, axes, rows, "{:.2f}" if share else "{:.0f}", (0.0, 1.0) if share else None)
        axes.set_yticks([i + 0.5 for i in range(len(names))], _short(names))
        axes.set_title(heading)
    panels[-1].set_xlabel("after task")
    return drawn(name, f"How full the memory of each layer is, and what was freed: {run.name}.", figure)


def spectra(run: Run, name: str) -> Drawn | None:
    """The singular values of every layer's conceptor, after every task, over the share of inputs they stand for."""
    logged = layers_of(run)
    every = list(dict.fromkeys(layer for of in logged for layer in of if _spectrum(of[layer])))
    names = every[:MOST_LAYERS]
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
        axes.set_title(label if len(label) <= width else f"…{label[1 - width :]}")
        axes.grid()
    for i, axes in enumerate(figure.axes):
        axes.set_visible(i < len(names))
        if i >= len(names) - columns:  # the lowest of its column
            axes.set_xlabel("share of the inputs")
            axes.tick_params(labelbottom=True)
    figure.supylabel("singular value", fontsize=7)
    scale(figure, len(logged))
    left_out = f" The first {MOST_LAYERS} of {len(every)} layers." if len(every) > len(names) else ""
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

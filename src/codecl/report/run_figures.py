"""The figures of single runs: the accuracy matrix, training curves, and how full the memory of each layer became."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

from codecl.report import drawing
from codecl.report.drawing import COLOURS, INK, WIDTH, Drawing
from codecl.report.names import slug, unique
from codecl.report.records import Run

MOST_PANELS = 24
"""The most layers whose spectra are drawn."""
MOST_NUMBERED = 12
"""The most layers whose numbers are printed."""
TALLEST = 3.4
"""Inches of the tallest heat map."""


def figures_of_runs(runs: Sequence[Run], short: Mapping[str, str]) -> dict[str, list[Drawing]]:
    """The figures of each run, by its name; files are called by its ``short`` name."""
    taken: set[str] = set()
    limits = accuracy_limits(runs)
    found: dict[str, list[Drawing]] = {}
    with drawing.styled():
        for run in runs:
            kinds = ("matrix", "curves", "fullness", "spectra", "inferred-tasks")
            names = [unique(slug(f"{kind}-{short[run.name]}"), taken) for kind in kinds]
            figures = [matrix(run, names[0], limits), curves(run, names[1]), fullness(run, names[2])]
            figures += [spectra(run, names[3]), inferred_tasks(run, names[4])]
            found[run.name] = [figure for figure in figures if figure is not None]
    return found


def accuracy_limits(runs: Sequence[Run]) -> tuple[float, float]:
    """The tens of percent between which all accuracies lie, so that the matrices of a report have the same colours."""
    every = [value for run in runs for row in run.result.accuracy for value in row if value is not None]
    low = min(90.0, 10.0 * math.floor(min(every) / 10))
    return low, max(low + 10, 10.0 * math.ceil(max(every) / 10))


def matrix(run: Run, name: str, limits: tuple[float, float] = (0.0, 100.0)) -> Drawing:
    """The accuracy on every task after every task, in colours between ``limits``."""
    A = [[_number(value) for value in row] for row in run.result.accuracy]
    figure = _percent_map(A, limits, "accuracy on task, %", "after task", ["all"] if run.result.joint else [])
    colours = f"Colours from {limits[0]:g} to {limits[1]:g} %."
    return drawing.render(figure, name, f"Accuracy on each task after learning each task: {run.name}. {colours}")


def inferred_tasks(run: Run, name: str) -> Drawing | None:
    """Which task the inputs of each task are taken for, where that was measured."""
    if (found := run.result.inference) is None:
        return None
    figure = _percent_map(found["confusion"], (0.0, 100.0), "taken for task, % of its inputs", "inputs of task")
    told = f"accuracy {run.result.acc:.2f} % told, {found['inferred']:.2f} % inferred"
    together = f"{found['tasks_right_together']:.2f} % for {found['together']} inputs together"
    return drawing.render(
        figure, name,
        f"Without telling the task: {run.name}. Tasks inferred {found['tasks_right']:.2f} %, {together}; {told}.",
    )  # fmt: skip


def _percent_map(
    rows: Sequence[Sequence[float]], limits: tuple[float, float], across: str, down: str, names: Sequence[str] = ()
) -> Any:
    """A figure of percentages by task, with numbers where there is room for them; ``names`` are those of the rows."""
    names = names or [f"{i + 1}" for i in range(len(rows))]
    figure = drawing.new_figure(min(0.45 + 0.5 * len(rows), 0.5 + 0.8 * WIDTH))
    axes = figure.add_subplot()
    numbered = drawing.has_room(rows, names, _percent)
    mesh = drawing.heat_map(axes, rows, names, limits, _percent if numbered else None)
    if not numbered:
        figure.colorbar(mesh, ax=axes, pad=0.02)
    axes.set(xlabel=across, ylabel=down)
    return figure


def curves(run: Run, name: str) -> Drawing | None:
    """Loss and validation accuracy, epoch by epoch; None without a log."""
    epochs = run.record.epochs
    if not epochs:
        return None
    figure = drawing.new_figure(2.25)
    loss, accuracy = figure.subplots(2, 1, sharex=True)
    tasks = list(dict.fromkeys(epoch.task for epoch in epochs))
    for task in tasks:
        numbers = [i for i, epoch in enumerate(epochs) if epoch.task == task]
        for axes, field, colour, label in (
            (loss, "loss", COLOURS[0], "training"),
            (loss, "validation_loss", COLOURS[1], "validation"),
            (accuracy, "validation_accuracy", COLOURS[1], ""),
        ):
            axes.plot(
                [i + 1 for i in numbers], [getattr(epochs[i], field) for i in numbers], color=colour,
                label=label if task == tasks[0] else None, marker="." if len(numbers) == 1 else None,
            )  # fmt: skip
    ends = [i + 0.5 for i in range(1, len(epochs)) if epochs[i].task != epochs[i - 1].task]
    for axes in (loss, accuracy):
        for end in ends:
            axes.axvline(end, color=INK, alpha=0.25, linewidth=0.6)
        axes.grid(axis="y")
    if 1 < len(tasks) <= 20:
        above = loss.secondary_xaxis("top")
        middles = [(a + b) / 2 for a, b in itertools.pairwise([0.5, *ends, len(epochs) + 0.5])]
        above.set_xticks(middles, [f"{task + 1}" for task in tasks])
        above.tick_params(length=0)
        above.spines[:].set_visible(False)
        above.set_xlabel("task")
    loss.set_ylabel("loss")
    drawing.legend_below(figure, loss)
    accuracy.xaxis.get_major_locator().set_params(integer=True)
    accuracy.set(xlabel="epoch", ylabel="validation, %", xlim=(0.5, len(epochs) + 0.5))
    return drawing.render(figure, name, f"Training and validation, epoch by epoch: {run.name}.")


def fullness(run: Run, name: str) -> Drawing | None:
    """Of every layer after every task: the share of its inputs that is protected, and how many directions were freed.

    Heat maps with numbers one above the other, or without them side by side. None if no layer remembers anything.
    """
    tasks = [event.layers for event in run.record.tasks]
    layers = list(dict.fromkeys(layer for task in tasks for layer in task))
    maps = []
    for field, heading, form, high in (
        ("capacity", "share of the inputs that is protected", "{:.2f}".format, 1.0),
        ("freed", "directions freed", "{:.0f}".format, 0.0),
    ):
        rows = [[_number(task.get(layer, {}).get(field)) for task in tasks] for layer in layers]
        largest = max((value for row in rows for value in row if value > 0), default=0.0)
        if largest:
            maps.append((heading, form, (0.0, high or largest), rows))
    if not maps:
        return None
    names = [_end(layer, 20) for layer in _without_common(layers)]
    numbered = len(names) <= MOST_NUMBERED and all(drawing.has_room(rows, names, form) for _, form, _, rows in maps)
    tall = min(TALLEST, 0.17 * len(names))
    figure = drawing.new_figure(0.2 + len(maps) * (0.5 + tall) if numbered else 1.25 + tall)
    shape = (len(maps), 1) if numbered else (1, len(maps))
    panels = figure.subplots(*shape, squeeze=False, sharex=numbered, sharey=not numbered).flat
    for axes, (heading, form, limits, rows) in zip(panels, maps, strict=True):
        if numbered:
            drawing.heat_map(axes, rows, names, limits, form)
            axes.set_title(heading)
        else:
            mesh = drawing.heat_map(axes, rows, names, limits, None, int(tall / 0.12), 12 // len(maps))
            axes.set(title=drawing.wrapped(heading, 20), xlabel="after task")
            figure.colorbar(mesh, ax=axes, location="bottom", aspect=12, pad=0.03)
    axes.set_xlabel("after task")
    return drawing.render(figure, name, f"How full the memory of each layer is, and what was freed: {run.name}.")


def spectra(run: Run, name: str) -> Drawing | None:
    """The singular values of every layer's conceptor, after every task, over the share of inputs they stand for."""
    tasks = [{n: layer for n, layer in event.layers.items() if _has_spectrum(layer)} for event in run.record.tasks]
    layers = list(dict.fromkeys(layer for task in tasks for layer in task))
    if not layers:
        return None
    count = min(MOST_PANELS, len(layers))
    shown = [layers[round(i * (len(layers) - 1) / max(1, count - 1))] for i in range(count)]
    columns = 2 if count <= 8 else 3
    rows = math.ceil(count / columns)
    figure = drawing.new_figure(0.55 + 0.95 * rows)
    panels = list(figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True).flat)
    for axes, layer, label in zip(panels, shown, _without_common(shown), strict=False):
        for t, task in enumerate(tasks):
            if layer in task:
                values, share = task[layer]["spectrum"], task[layer]["rank"] / task[layer]["shape"][-1]
                x = [share * i / max(1, len(values) - 1) for i in range(len(values))]
                axes.plot(x, values, color=drawing.task_colour(t, len(tasks)), linewidth=0.9, label=f"task {t + 1}")
        axes.set_title(_end(label, 26 if columns == 2 else 16))
        axes.grid()
    for i, axes in enumerate(panels):
        axes.set_visible(i < count)
        if i >= count - columns:  # the lowest of its column
            axes.set_xlabel("share of the inputs")
            axes.tick_params(labelbottom=True)
    figure.supylabel("singular value")
    some = sorted({0, len(tasks) // 2, len(tasks) - 1})
    lines = [panels[0].plot([], [], color=drawing.task_colour(t, len(tasks)))[0] for t in some]
    figure.legend(lines, [f"task {t + 1}" for t in some], loc="outside lower center", ncols=len(some))
    left_out = f"{count} of {len(layers)} layers, from the first to the last" if count < len(layers) else ""
    if left_out:
        figure.suptitle(left_out)
    caption = f"Spectra of the conceptors, a line for each task: {run.name}."
    return drawing.render(figure, name, f"{caption} {left_out}." if left_out else caption)


def _has_spectrum(layer: Mapping[str, Any]) -> bool:
    return bool(layer.get("spectrum")) and layer.get("rank") is not None


def _number(value: float | None) -> float:
    return math.nan if value is None else value


def _percent(value: float) -> str:
    return f"{value:.1f}".replace("100.0", "100")  # there is no room for more


def _without_common(names: Sequence[str]) -> list[str]:
    """Without what all names begin with, and without the name of the parameter."""
    split = [name.removesuffix(".weight").split(".") for name in names]
    common = 0
    while len(names) > 1 and all(len(words) > common + 1 and words[common] == split[0][common] for words in split):
        common += 1
    if common and any(words[common].isdigit() for words in split):  # a number alone says little
        common -= 1
    return [".".join(words[common:]) for words in split]


def _end(name: str, most: int) -> str:
    """The end of a name, where layers differ."""
    return name if len(name) <= most else f"…{name[1 - most :]}"

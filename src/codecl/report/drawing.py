"""The look of every figure: as wide as a column of a paper, letters of 7 points, colours for colour-blind readers.

matplotlib is imported when something is drawn. The same numbers give the same bytes.
"""

from __future__ import annotations

import io
import math
import textwrap
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from codecl.errors import UsageError
from codecl.text import installing, printable

WIDTH = 3.3
"""Inches of a column."""
CHARACTERS = 56
"""About how many characters a line of this width holds."""
LINE = 0.14
"""Inches of a line of text."""
DPI = 300
INK, PAPER = "#1a1b1c", "#fdfdfe"
"""Two colours that nothing else has, so that a page can put its own in their place."""
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#e69f00", "#cc79a7", "#56b4e9", INK, "#8c8c8c")
"""Okabe and Ito's, with grey for their yellow, which is too pale for lines."""
GREY = "#9aa0a6"
"""What is not highlighted."""
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
DASHES = ("-", "--", ":")
FIRST_TASK, LAST_TASK = COLOURS[0], "#c88400"
"""These and all shades between them stand out against white and against a dark page."""
BLACK_FROM = 0.32
"""The share of the heat colours from which black is easier to read on them than white."""


@dataclass(frozen=True)
class Drawing:
    """A figure as it is written: the name of its files, what it shows, its bytes, and the part of a page it is in."""

    name: str
    caption: str
    svg: str
    png: bytes
    part: str = ""


def require_matplotlib() -> None:
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise UsageError(
            f"figures need matplotlib: {installing('report')}, or leave them out with --no-figures."
        ) from None


def styled() -> AbstractContextManager[None]:
    """A context with matplotlib's defaults and ``figures.mplstyle``, whatever the user's settings are."""
    from matplotlib import style

    return style.context(["default", Path(__file__).with_name("figures.mplstyle")])


def new_figure(height: float) -> Any:
    from matplotlib.figure import Figure

    return Figure(figsize=(WIDTH, height), layout="constrained")


def render(figure: Any, name: str, caption: str) -> Drawing:
    """The bytes of ``figure``, without dates."""
    svg, png = io.StringIO(), io.BytesIO()
    figure.draw_without_rendering()  # the layout, once for both formats
    figure.set_layout_engine("none")
    figure.savefig(svg, format="svg", metadata={"Date": None, "Creator": None})
    figure.savefig(png, format="png", dpi=DPI, metadata={"Software": None})
    return Drawing(name, caption, printable(svg.getvalue()), png.getvalue())


def line_style(number: int) -> dict[str, Any]:
    """Colour, marker and dashes of a line; those of the first 56 differ."""
    return {
        "color": COLOURS[number % len(COLOURS)],
        "marker": MARKERS[number % len(MARKERS)],
        "linestyle": DASHES[number // len(COLOURS) % len(DASHES)],
    }


def legend_below(figure: Any, axes: Any, columns: int = 3) -> None:
    """A legend below the panels, in at most so many columns; the figure grows by it."""
    handles, labels = axes.get_legend_handles_labels()
    labels = [wrapped(label, 48) for label in labels]
    lines = [line for label in labels for line in label.split("\n")]
    fitting = max(1, min(columns, CHARACTERS // (max(map(len, lines)) + 7)))
    rows = math.ceil(len(labels) / fitting)
    height = len(lines) if fitting == 1 else rows
    figure.set_figheight(figure.get_figheight() + 0.08 + LINE * height)
    figure.legend(handles, labels, loc="outside lower center", ncols=math.ceil(len(labels) / rows))


def wrapped(label: str, width: int) -> str:
    """``label`` in at most three lines of at most ``width`` letters."""
    return "\n".join(textwrap.wrap(label, width, max_lines=3, placeholder=" …") or [label])


def few_ticks(axes: Any, values: Sequence[float], show: Callable[[float], str]) -> None:
    """Ticks at the least and the largest of ``values``, in the words of ``show``."""
    ends = sorted({min(values), max(values)})
    axes.set_xticks(ends, [show(value) for value in ends])
    axes.minorticks_off()
    axes.margins(x=0.15)


def hide_crowded(figure: Any, labels: Sequence[tuple[Any, Any]]) -> None:
    """Hide labels that would touch others, a point or the edge; each comes with its axes, and the first wins."""
    figure.draw_without_rendering()
    kept: list[Any] = []
    for axes, label in labels:
        box = label.get_window_extent()
        points = [axes.transData.transform(line.get_xydata()[0]) for line in axes.get_lines() if len(line.get_xydata())]
        on_a_point = any(box.x0 < x < box.x1 and box.y0 < y < box.y1 for x, y in points)
        if on_a_point or box.x1 > axes.get_window_extent().x1 or any(map(box.overlaps, kept)):
            label.set_visible(False)
        else:
            kept.append(box)


def hide_touching(figure: Any, labels: Sequence[Any]) -> None:
    """Hide labels of an axis that would touch others, but for the first and the last."""
    figure.draw_without_rendering()
    boxes = [label.get_window_extent().padded(3, 0) for label in labels]
    kept = [boxes[0], boxes[-1]]
    for label, box in list(zip(labels, boxes, strict=True))[1:-1]:
        if any(map(box.overlaps, kept)):
            label.set_visible(False)
        else:
            kept.append(box)


def heat_map(
    axes: Any,
    rows: Sequence[Sequence[float]],
    names: Sequence[str],
    limits: tuple[float, float],
    form: Callable[[float], str] | None = None,
    most_names: int = 12,
    most_tasks: int = 12,
) -> Any:
    """Draw a row for each name, from above, and a column for each task, with numbers in some ``form``.

    At most ``most_names`` rows and ``most_tasks`` columns are labelled.
    """
    low, high = limits
    tasks = len(rows[0])
    mesh = axes.pcolormesh(
        range(tasks + 1), range(len(rows) + 1), rows,
        cmap=heat_colours(), vmin=low, vmax=high, edgecolor=PAPER, linewidth=0.6,
    )  # fmt: skip
    for i, row in enumerate(rows):
        for j, value in enumerate(row):
            if form and not math.isnan(value):
                colour = "k" if mesh.norm(value) > BLACK_FROM else "w"
                axes.text(j + 0.5, i + 0.5, form(value), ha="center", va="center", color=colour)
    columns, labelled = every_nth(tasks, most_tasks), every_nth(len(names), most_names)
    axes.set_xticks([j + 0.5 for j in columns], [f"{j + 1}" for j in columns])
    axes.set_yticks([i + 0.5 for i in labelled], [names[i] for i in labelled])
    axes.set_ylim(len(rows), 0)
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0)
    return mesh


def has_room(rows: Sequence[Sequence[float]], names: Sequence[str], form: Callable[[float], str]) -> bool:
    """Whether the cells of a heat map as wide as the figure have room for their numbers."""
    longest = max((len(form(value)) for row in rows for value in row if not math.isnan(value)), default=0)
    return len(rows[0]) * (longest + 0.5) + max(map(len, names)) <= CHARACTERS - 8


def every_nth(count: int, most: int) -> range:
    """Evenly spaced numbers below ``count``, at most so many."""
    return range(0, count, math.ceil(count / most))


def heat_colours() -> Any:
    """cividis without its darkest part, which a dark page swallows."""
    from matplotlib import colormaps
    from matplotlib.colors import ListedColormap

    return ListedColormap(colormaps["cividis"](range(56, 256)))


def task_colour(task: int, tasks: int) -> Any:
    """A shade for one of several tasks, from the first to the last."""
    from matplotlib.colors import LinearSegmentedColormap

    return LinearSegmentedColormap.from_list("tasks", [FIRST_TASK, LAST_TASK])(task / max(1, tasks - 1))

"""How every figure looks: as wide as a column of a paper, letters of 7 points, colours that colour-blind readers know.

matplotlib is imported when something is drawn. The same numbers give the same bytes.
"""

from __future__ import annotations

import io
import math
import re
import textwrap
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from codecl.errors import UsageError
from codecl.methods import METHODS
from codecl.report.experiments import Experiment

WIDTH = 3.3
"""Inches of a column."""
INK, PAPER = "#1a1b1c", "#fdfdfe"
"""Two colours that nothing else has, so that a page can put its own in their place."""
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#e69f00", "#cc79a7", "#56b4e9", INK, "#8c8c8c")
"""Okabe and Ito's, with grey for their yellow, which is too pale for lines."""
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
DASHES = ("-", "--", ":")
STYLE = {
    "font.family": "sans-serif", "font.sans-serif": ["DejaVu Sans", "Helvetica", "Arial"],
    "font.size": 7.0, "axes.titlesize": 7.5, "axes.labelsize": 7.0,
    "xtick.labelsize": 7.0, "ytick.labelsize": 7.0, "legend.fontsize": 7.0, "legend.frameon": False,
    "legend.handlelength": 2.2, "legend.columnspacing": 1.2, "text.color": INK, "axes.edgecolor": INK,
    "axes.labelcolor": INK, "xtick.color": INK, "ytick.color": INK, "figure.facecolor": PAPER, "axes.facecolor": PAPER,
    "savefig.facecolor": PAPER, "axes.linewidth": 0.6, "xtick.major.width": 0.6, "ytick.major.width": 0.6,
    "xtick.major.size": 2.5, "ytick.major.size": 2.5, "lines.linewidth": 1.2, "lines.markersize": 3.2,
    "axes.spines.top": False, "axes.spines.right": False, "axes.grid": False, "grid.color": INK, "grid.alpha": 0.15,
    "grid.linewidth": 0.5, "svg.fonttype": "none", "svg.hashsalt": "codecl", "text.parse_math": False,
}  # fmt: skip
DPI = 300
LINE = 0.14
"""Inches of a line of text."""
EARLY, LATE = COLOURS[0], "#c88400"
"""The first task and the last; these and all between stand out against white and against a dark page."""


@dataclass(frozen=True)
class Drawn:
    """A figure: the name of its files, what it shows, and its bytes."""

    name: str
    caption: str
    svg: str
    png: bytes


def check_there() -> None:
    """``UsageError`` if nothing can be drawn."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise UsageError(
            "figures need matplotlib: pip install 'codecl[report]', or leave them out with --no-figures."
        ) from None


def styled() -> AbstractContextManager[None]:
    """matplotlib's own settings and ours for a while, whatever the user's are."""
    from matplotlib import style

    return style.context(["default", STYLE])


def new_figure(height: float) -> Any:
    from matplotlib.figure import Figure

    return Figure(figsize=(WIDTH, height), layout="constrained")


def drawn(name: str, caption: str, figure: Any) -> Drawn:
    """The bytes of ``figure``, without dates."""
    svg, png = io.StringIO(), io.BytesIO()
    figure.draw_without_rendering()  # places everything, once for both
    figure.set_layout_engine("none")
    figure.savefig(svg, format="svg", metadata={"Date": None, "Creator": None})
    figure.savefig(png, format="png", dpi=DPI, metadata={"Software": None})
    return Drawn(name, caption, svg.getvalue(), png.getvalue())


def styles(experiments: Sequence[Experiment]) -> list[dict[str, Any]]:
    """Colour, marker and dashes of each: a method keeps its own in all figures, variants take what is free."""
    places, free = [], len(METHODS)
    for e in experiments:
        place = list(METHODS).index(e.method) if e.method in METHODS else free
        if place in places:
            place = free
        free += place == free
        places.append(place)
    return [style_of(place) for place in places]


def style_of(place: int) -> dict[str, Any]:
    return {
        "color": COLOURS[place % len(COLOURS)],
        "marker": MARKERS[place % len(MARKERS)],
        "linestyle": DASHES[place // len(COLOURS) % len(DASHES)],
    }


def legend_below(figure: Any, axes: Any, columns: int = 3) -> None:
    """The legend below the panels, in as many columns as fit; the figure grows by it."""
    handles, labels = axes.get_legend_handles_labels()
    labels = [wrapped(label, 48) for label in labels]
    longest = max(len(line) for label in labels for line in label.split("\n"))
    fitting = max(1, min(columns, int(WIDTH * 72 / (4.2 * longest + 30))))
    rows = math.ceil(len(labels) / fitting)
    lines = sum(label.count("\n") + 1 for label in labels) if fitting == 1 else rows
    figure.set_figheight(figure.get_figheight() + 0.08 + LINE * lines)
    figure.legend(handles, labels, loc="outside lower center", ncols=math.ceil(len(labels) / rows))


def wrapped(label: str, width: int, lines: int = 3) -> str:
    """``label`` in lines of at most ``width`` letters, cut if they are many."""
    return "\n".join(textwrap.wrap(label, width, max_lines=lines, placeholder=" …") or [label])


def points(word: str) -> float:
    """About how long a word is."""
    return 4.45 * len(word) - 2.2 * word.count(".")


def numbered(rows: Sequence[Sequence[float]], names: Sequence[str], form: Callable[[float], str]) -> bool:
    """Whether the cells of a heat map as wide as the figure have room for their numbers."""
    room = 72 * WIDTH - 24 - max(map(points, names))
    words = [form(value) for row in rows for value in row if not math.isnan(value)]
    return max(map(points, words), default=0.0) + 1.5 < room / len(rows[0])


def grid(
    axes: Any,
    rows: Sequence[Sequence[float]],
    names: Sequence[str],
    limits: tuple[float, float],
    form: Callable[[float], str] | None = None,
    most: int = 12,
) -> Any:
    """A heat map, a row with a name after the other from above, a column for each task; with numbers in some ``form``.

    At most so many tasks have their number below.
    """
    tasks = len(rows[0])
    low, high = limits
    mesh = axes.pcolormesh(
        range(tasks + 1), range(len(rows) + 1), rows, cmap=heat(), vmin=low, vmax=high, edgecolor=PAPER, linewidth=0.6
    )
    axes.set_ylim(len(rows), 0)
    for i, row in enumerate(rows):
        for j, value in enumerate(row):
            if form and not math.isnan(value):
                colour = "k" if luminance(mesh.to_rgba(value)) > 0.179 else "w"  # there, both differ as much from it
                axes.text(j + 0.5, i + 0.5, form(value), ha="center", va="center", color=colour)
    ticks = range(0, tasks, math.ceil(tasks / most))
    axes.set_xticks([t + 0.5 for t in ticks], [f"{t + 1}" for t in ticks])
    named = [i for i, name in enumerate(names) if name]
    axes.set_yticks([i + 0.5 for i in named], [names[i] for i in named])
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0)
    return mesh


def heat() -> Any:
    """cividis without its darkest part, which a dark page swallows."""
    from matplotlib import colormaps
    from matplotlib.colors import ListedColormap

    return ListedColormap(colormaps["cividis"](range(56, 256)))


def luminance(colour: Any) -> float:
    """How light a colour is, from 0 to 1, as the contrast of the WCAG is made of."""
    from matplotlib.colors import to_rgb

    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in to_rgb(colour)]
    return math.fsum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def shade(task: int, tasks: int) -> Any:
    """A colour for one of several tasks, from the early to the late ones."""
    from matplotlib.colors import LinearSegmentedColormap

    return LinearSegmentedColormap.from_list("tasks", [EARLY, LATE])(task / max(1, tasks - 1))


def scale(figure: Any, tasks: int) -> None:
    """What the shades of tasks mean, in a line below the figure."""
    from matplotlib.lines import Line2D

    some = sorted({0, tasks // 2, tasks - 1})
    lines = [Line2D([], [], color=shade(t, tasks)) for t in some]
    figure.legend(lines, [f"task {t + 1}" for t in some], loc="outside lower center", ncols=len(some))


def task_ticks(axes: Any, tasks: int, most: int = 6) -> None:
    """The tasks of an x axis, counted from 1."""
    axes.set_xticks(range(1, tasks + 1, math.ceil(tasks / most)))


def apart(words: Sequence[str], places: Sequence[float], width: float) -> list[bool]:
    """Which of the words, centred at places from 0 to 1 of so many points, can be printed without touching.

    The first and the last before those between, from the left.
    """
    last, kept = len(words) - 1, [0]
    half = [points(word) / 2 + 2 for word in words]

    def touch(i: int, j: int) -> bool:
        return (places[j] - places[i]) * width < half[i] + half[j]

    for i in range(1, last):
        if not touch(kept[-1], i) and not touch(i, last):
            kept.append(i)
    return [i in kept or i == last for i in range(len(words))]


def slug(text: str) -> str:
    """``text`` as a file name."""
    return re.sub(r"[^\w.=+-]+", "-", text, flags=re.ASCII).strip("-.") or "run"

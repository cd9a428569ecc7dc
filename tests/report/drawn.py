"""What a figure shows, by its lines, words, heat maps and colours, and runs to draw it of."""

import math
from dataclasses import replace

from matplotlib.colors import to_rgb

from codecl.report import figures
from codecl.report.experiments import find_experiments
from codecl.report.records import find_runs
from codecl.report.tables import acc_of
from tests.report.cases import write_run

TOGETHER = [[95.0, 97.5]]


def runs_in(folder):
    return find_runs([folder], folder).runs


def run_of(accuracy, method="gpm", tmp_path=None, **more):
    write_run(tmp_path / "run", method, accuracy, **more)
    return runs_in(tmp_path / "run")[0]


def data(axes):
    """The points of each line that has a name."""
    return {line.get_label(): (*map(list, line.get_data()),) for line in axes.get_lines() if line.get_label()[0] != "_"}


def best_first(runs):
    """The experiments as a report draws them, and their lines."""
    experiments = sorted(find_experiments(runs), key=acc_of, reverse=True)
    return experiments, figures.line_styles(experiments)


def words(axes):
    return [text.get_text() for text in axes.texts]


def heat_map(axes):
    """The rows of a heat map as they are seen, from above; None where nothing is."""
    rows = axes.collections[0].get_array().tolist()
    assert axes.get_xlim() == (0, len(rows[0]))
    assert axes.get_ylim() == (len(rows), 0)
    return [[None if value != value else value for value in row] for row in rows]


def with_result(run, name="a", **changes):
    """``run`` under another name with these changes to its result."""
    return replace(run, name=name, record=replace(run.record, result=replace(run.result, **changes)))


def luminance(colour):
    """How light a colour is, from 0 to 1, as the WCAG defines contrast."""
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in to_rgb(colour)]
    return math.fsum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def contrast(one, other):
    low, high = sorted(map(luminance, (one, other)))
    return (high + 0.05) / (low + 0.05)


def overlapping(texts):
    """Pairs of words that touch."""
    boxes = [(text.get_text(), text.get_window_extent()) for text in texts if text.get_text() and text.get_visible()]
    return [(a, b) for i, (a, one) in enumerate(boxes) for b, other in boxes[i + 1 :] if one.overlaps(other)]

"""Colours stand out on light and on dark paper, by the contrast of the WCAG."""

import re
from importlib import resources

import pytest

from codecl.report import drawing
from codecl.report.drawing import heat_colours, task_colour
from tests.report.drawn import contrast, luminance


def papers():
    """The light paper of the page and the dark one."""
    css = resources.files("codecl.report").joinpath("page.css").read_text()
    return re.findall(r"--paper: (#\w+)", css)[:2]


def test_luminance_is_that_of_the_wcag():
    assert [luminance(colour) for colour in ("k", "w")] == pytest.approx([0, 1])
    assert luminance("#777777") == pytest.approx(0.184, abs=1e-3)
    assert contrast("#777777", "w") == pytest.approx(4.48, abs=0.01)  # the well-known grey that just fails


@pytest.mark.parametrize("tasks", [1, 2, 5, 20])
def test_the_shades_of_tasks_stand_out_on_light_and_on_dark_paper(tasks):
    shades = [task_colour(t, tasks) for t in range(tasks)]
    assert len(set(shades)) == tasks
    assert shades[0] == task_colour(0, 2)
    assert shades[0][2] > shades[0][0]  # blue comes first
    assert tasks == 1 or shades[-1][2] < shades[-1][0]
    assert min(contrast(colour, paper) for colour in shades for paper in (drawing.PAPER, *papers())) >= 3


def test_the_darkest_cell_stands_out_on_dark_paper():
    light, dark = papers()
    assert luminance(dark) < 0.02 < 0.9 < luminance(light)
    assert contrast(heat_colours()(0.0), dark) > 1.7

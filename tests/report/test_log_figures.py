"""What happened within a run, as its log has it: curves, capacities, freed directions and spectra."""

import pytest

from codecl.report import drawing, run_figures
from codecl.report.drawing import task_colour
from tests.report.cases import FIRST, epoch, task
from tests.report.drawn import data, heat_map, overlapping, run_of, words


def test_curves_are_those_of_the_log(draw, tmp_path):
    log = [
        epoch(0, 1) | {"loss": 2.0, "validation_loss": 2.5, "validation_accuracy": 40.0},
        epoch(0, 2) | {"loss": 1.0, "validation_loss": 1.5, "validation_accuracy": 60.0},
        epoch(1, 1) | {"loss": 3.0, "validation_loss": 3.5, "validation_accuracy": 50.0},
    ]
    figure = draw(run_figures.curves, run_of(FIRST, tmp_path=tmp_path, log=log))
    loss, accuracy = figure.axes[:2]

    def lines(axes):
        return [(*map(list, line.get_data()), line.get_color()) for line in axes.get_lines()]

    training, validation = drawing.COLOURS[:2]
    end = ([2.5, 2.5], [0, 1], drawing.INK)
    assert lines(loss) == [
        ([1, 2], [2, 1], training), ([1, 2], [2.5, 1.5], validation),
        ([3], [3], training), ([3], [3.5], validation), end,
    ]  # fmt: skip
    assert lines(accuracy) == [([1, 2], [40, 60], validation), ([3], [50], validation), end]
    named = dict(zip((t.get_text() for t in figure.legends[0].get_texts()), figure.legends[0].get_lines(), strict=True))
    assert {name: line.get_color() for name, line in named.items()} == {"training": training, "validation": validation}
    assert (loss.get_ylabel(), accuracy.get_ylabel(), accuracy.get_xlabel()) == ("loss", "validation, %", "epoch")
    (above,) = loss.child_axes
    assert [(t.get_position()[0], t.get_text()) for t in above.get_xticklabels()] == [(1.5, "1"), (3, "2")]


def logged(layers, tasks, name="net.stages.{}.conv"):
    """The ends of tasks with layers of their own capacities: (layer + task) / 100; freed: 10 layer + task."""
    of = task(0, 0.0)["layers"]["net.a.weight"]
    return [
        task(t, 0.0)
        | {"layers": {name.format(i): of | {"capacity": (i + t) / 100, "freed": 10 * i + t} for i in range(layers)}}
        for t in range(tasks)
    ]


def test_capacities_and_freed_directions_are_those_of_the_log(draw, tmp_path):
    figure = draw(run_figures.fullness, run_of(FIRST, tmp_path=tmp_path, log=logged(3, 2)))
    share, freed = figure.axes
    assert [axes.get_title() for axes in figure.axes] == ["share of the inputs that is protected", "directions freed"]
    assert heat_map(share) == [[0.00, 0.01], [0.01, 0.02], [0.02, 0.03]]
    assert heat_map(freed) == [[0, 1], [10, 11], [20, 21]]
    assert words(share) == ["0.00", "0.01", "0.01", "0.02", "0.02", "0.03"]
    assert words(freed) == ["0", "1", "10", "11", "20", "21"]
    assert [text.get_text() for text in share.get_yticklabels()] == ["stages.0.conv", "stages.1.conv", "stages.2.conv"]
    assert share.collections[0].get_clim() == (0, 1)
    assert freed.collections[0].get_clim() == (0, 21)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("layers", "tasks", "named"), [(21, 20, 21), (21, 2, 21), (3, 20, 3), (60, 10, 20), (200, 2, 25)]
)
def test_many_layers_make_no_tall_figure(draw, tmp_path, layers, tasks, named):
    log = logged(layers, tasks, "net.stages.{}.a_long_name_of_a_layer.conv")
    figure = draw(run_figures.fullness, run_of(FIRST, tmp_path=tmp_path, log=log))
    share, freed, *scales = figure.axes
    assert heat_map(share) == [[(i + t) / 100 for t in range(tasks)] for i in range(layers)]
    assert heat_map(freed) == [[10 * i + t for t in range(tasks)] for i in range(layers)]
    assert figure.get_figheight() < 4.8
    assert len(scales) == 2
    labels = share.get_yticklabels()
    assert len(labels) == named
    assert overlapping([*labels, *share.get_xticklabels(), *freed.get_xticklabels()]) == []
    assert overlapping([share.title, freed.title]) == []
    assert share.get_position().width * 3.3 > 0.7
    for text in (*labels, share.title, freed.title):
        box = text.get_window_extent()
        assert box.x0 >= 0
        assert box.x1 <= 3.3 * figure.dpi


def test_spectra_are_those_of_the_log(draw, tmp_path):
    layer = {"shape": [1, 8, 4], "bytes": 1, "rank": 2.0, "spectrum": [0.9, 0.7, 0.5], "capacity": 0.5}
    later = layer | {"rank": 4.0, "spectrum": [1.0, 0.6, 0.2]}
    log = [task(t, 0.0) | {"layers": {"a.weight": layer, "b.weight": b}} for t, b in enumerate((layer, later))]
    figure = draw(run_figures.spectra, run_of(FIRST, tmp_path=tmp_path, log=log))
    a, b = figure.axes
    assert (a.get_title(), b.get_title()) == ("a", "b")
    first = ([0, 0.25, 0.5], [0.9, 0.7, 0.5])
    assert data(a) == {"task 1": first, "task 2": first}
    assert data(b) == {"task 1": first, "task 2": ([0, 0.5, 1], [1.0, 0.6, 0.2])}
    assert [line.get_color() for line in b.get_lines()] == [task_colour(0, 2), task_colour(1, 2)]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["task 1", "task 2"]
    assert [line.get_color() for line in figure.legends[0].get_lines()] == [task_colour(0, 2), task_colour(1, 2)]


@pytest.mark.slow
def test_of_many_layers_the_spectra_of_some_are_shown_and_the_figure_says_so(draw, tmp_path):
    figure = draw(run_figures.spectra, run_of(FIRST, tmp_path=tmp_path, log=logged(47, 2)))
    titles = [axes.get_title() for axes in figure.axes if axes.get_visible()]
    assert titles == [f"stages.{i}.conv" for i in range(0, 47, 2)]
    assert figure.get_suptitle() == "24 of 47 layers, from the first to the last"
    assert draw.caption.endswith(" 24 of 47 layers, from the first to the last.")

"""The figures of an ablation: ACC, BWT and their spread over values that can be read."""

import pytest

from codecl.report import figures
from codecl.report.experiments import Ablation, Experiment, find_ablations, find_experiments, sort_key
from tests.report.cases import FIRST, SECOND, write_run
from tests.report.drawn import data, overlapping, run_of, runs_in, with_result


def ablation_of(tmp_path, values):
    """An ablation over these values, whatever they are; ACC is 50, 51, … and BWT −10."""
    run = run_of(FIRST, "code-cl", tmp_path)
    points = []
    for i, value in enumerate(values):
        A = [[60.0 + i, None], [50.0 + i, 50.0 + i]]
        settings = run.result.settings | {"aperture": value}
        points.append((value, Experiment((with_result(run, accuracy=A, settings=settings),))))
    return Ablation("settings.aperture", "code-cl", tuple(sorted(points, key=lambda point: sort_key(point[0]))))


def errors(axes):
    """Where each error bar begins and ends."""
    return [
        [[tuple(end) for end in bar.tolist()] for bar in container.lines[2][0].get_segments()]
        for container in axes.containers
        if container.has_yerr
    ]


def test_an_ablation_has_acc_bwt_and_their_spread(draw, tmp_path):
    write_run(tmp_path / "a", "code-cl", FIRST, changes={"aperture": 2})
    write_run(tmp_path / "b", "code-cl", SECOND, changes={"aperture": 2}, seed=1)
    write_run(tmp_path / "c", "code-cl", [[50.0, None], [49.0, 50.0]], changes={"aperture": 4})
    (ablation,) = find_ablations(find_experiments(runs_in(tmp_path)))
    figure = draw(figures.ablation, [ablation])
    acc, bwt = figure.axes
    assert [axes.get_ylabel() for axes in figure.axes] == ["ACC, %", "BWT, %"]
    assert [axes.get_xlabel() for axes in figure.axes] == ["", "aperture"]
    spread = 32**0.5  # of 80 and 88, and of −10 and −2
    for axes, y in ((acc, [84, 49.5]), (bwt, [-6, -1])):
        (line, *_) = axes.containers[0].lines
        assert (list(line.get_xdata()), list(line.get_ydata())) == ([2, 4], pytest.approx(y))
        ((first, second),) = errors(axes)
        assert first == [(2, pytest.approx(y[0] - spread)), (2, pytest.approx(y[0] + spread))]
        assert second == [(4, pytest.approx(y[1]))] * 2  # one run has none
    assert figure.legends == []


def test_an_ablation_marks_the_recipes_value_zero_and_what_the_paper_reports(draw, tmp_path):
    for value in (4, 8, 9):
        write_run(tmp_path / f"{value}", "code-cl", FIRST, changes={"aperture": value}, benchmark="5-datasets")
    (ablation,) = find_ablations(find_experiments(runs_in(tmp_path)))
    acc, bwt = draw(figures.ablation, [ablation]).axes
    for axes, papers in ((acc, [93.32, 93.51]), (bwt, [-0.25, -0.11])):
        assert data(axes)["as the recipe has it"] == ([8, 8], [0, 1])
        assert data(axes)["paper, its whole schedule"] == ([4, 8], papers)  # it has others, which were not tried here
    assert [0, 0] in [list(line.get_ydata()) for line in bwt.get_lines()]
    assert [0, 0] not in [list(line.get_ydata()) for line in acc.get_lines()]


def test_a_grid_has_a_line_for_each_way_the_rest_was_fixed(draw, tmp_path):
    for aperture in (2, 4):
        for free in (0, 20):
            final = 50.0 + aperture + free
            A = [[final, None], [final, final]]
            write_run(tmp_path / f"{aperture}-{free}", "code-cl", A, changes={"aperture": aperture, "free_dims": free})
    several = [a for a in find_ablations(find_experiments(runs_in(tmp_path))) if a.name == "aperture"]
    figure = draw(figures.ablation, several)
    lines = [(container.get_label(), container.lines[0]) for container in figure.axes[0].containers]
    assert [(label.rpartition(", ")[2], *map(list, line.get_data())) for label, line in lines] == [
        ("free_dims = 0", [2, 4], [52, 54]),
        ("free_dims = 20", [2, 4], [72, 74]),
    ]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == [label for label, _ in lines]
    assert len({line.get_color() for _, line in lines}) == len({line.get_marker() for _, line in lines}) == 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("values", "scale", "printed"),
    [
        ([1, 2, 4], "linear", ["1", "2", "4"]),
        ([1, 4, 16.0], "log", ["1", "4", "16"]),
        ([0.0001, 0.0005, 0.001, 0.002, 0.01, 0.05], "log", ["0.0001", "0.0005", "0.002", "0.01", "0.05"]),
        ([0, 1e-5, 1e-4, 1e-3], "asinh", ["0", "1e-05", "0.0001", "0.001"]),
        ([0, 20, 40, 80], "linear", ["0", "20", "40", "80"]),
        ([-1.0, 0, 100], "linear", ["-1", "100"]),
        ([0.99, 0.991, 0.992, 0.993, 0.9999], "linear", ["0.99", "0.992", "0.9999"]),
        ([123456, 1234567, 100000], "log", ["100000", "1234567"]),
        ([*range(1, 31)], "log", None),
        (["a", "b"], "linear", ["a", "b"]),
        ([1, 2, "none"], "linear", ["1", "2", "none"]),
        ([4, "4"], "linear", ["4"]),  # written the same
        ([1.0, float("inf")], "linear", ["1", "Infinity"]),
        (["a representative subspace", 6], "linear", ["6", "(1)"]),
        ([[i] * 4 for i in range(9)], "linear", [f"({i + 1})" for i in range(9)]),
    ],
)
def test_the_values_below_an_ablation_can_be_read(draw, tmp_path, values, scale, printed):
    figure = draw(figures.ablation, [ablation_of(tmp_path, values)])
    first, second = figure.axes
    assert first.get_xscale() == second.get_xscale() == scale
    labels = second.get_xticklabels()
    if printed:
        assert [label.get_text() for label in labels] == printed
    assert len(second.get_xticks()) == len({str(value) for value in values})  # a tick for each, printed or not
    ends = sorted({figures.shown(value): value for value in values}.values(), key=sort_key)[:: max(1, len(values) - 1)]
    if scale == "log":
        assert [labels[0].get_text(), labels[-1].get_text()] == list(map(figures.shown, ends))
    assert overlapping(labels) == []
    edges = [label.get_window_extent() for label in labels]
    assert min(box.x0 for box in edges) >= 0
    assert max(box.x1 for box in edges) <= 3.3 * figure.dpi


def test_a_table_that_was_tried_is_named_below(draw, tmp_path):
    tables = [{"*conv*": 2, "*": 6}, {"*conv*": 2, "*": 8}]
    figure = draw(figures.ablation, [ablation_of(tmp_path, [1, 16, *tables])])
    assert [label.get_text() for label in figure.axes[1].get_xticklabels()] == ["1", "16", "(1)", "(2)"]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == [
        '(1) {"*conv*": 2, "*": 6}',
        '(2) {"*conv*": 2, "*": 8}',
    ]
    (line, *_) = figure.axes[0].containers[0].lines
    assert (list(line.get_xdata()), list(line.get_ydata())) == ([0, 1, 2, 3], [50, 51, 52, 53])

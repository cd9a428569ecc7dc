"""The figures of a report: every number where it belongs, colours that mean the same, letters that can be read."""

import math
import re
from dataclasses import replace
from importlib import resources
from xml.etree import ElementTree

import pytest
from matplotlib.colors import to_rgb

from codecl.report import drawing, figures, run_figures
from codecl.report.drawing import Drawing, heat_colours, styled, task_colour
from codecl.report.experiments import Ablation, Experiment, find_ablations, find_experiments, sort_key
from codecl.report.records import find_runs
from codecl.report.tables import acc_of
from tests.report.cases import FIRST, SECOND, epoch, task, write_run

TOGETHER = [[95.0, 97.5]]


@pytest.fixture
def draw(monkeypatch):
    """Draw one figure and look at it, laid out but not written."""
    kept = []

    def keep(figure, name, caption):
        figure.draw_without_rendering()
        kept.append(figure)
        look.caption = caption
        return Drawing(name, caption, "", b"")

    monkeypatch.setattr(drawing, "render", keep)

    def look(make, *of, **more):
        with styled():
            assert make(*of, "name", **more) is not None
        return kept[-1]

    return look


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


def papers():
    """The light paper of the page and the dark one."""
    css = resources.files("codecl.report").joinpath("page.css").read_text()
    return re.findall(r"--paper: (#\w+)", css)[:2]


def overlapping(texts):
    """Pairs of words that touch."""
    boxes = [(text.get_text(), text.get_window_extent()) for text in texts if text.get_text() and text.get_visible()]
    return [(a, b) for i, (a, one) in enumerate(boxes) for b, other in boxes[i + 1 :] if one.overlaps(other)]


def test_luminance_is_that_of_the_wcag():
    assert [luminance(colour) for colour in ("k", "w")] == pytest.approx([0, 1])
    assert luminance("#777777") == pytest.approx(0.184, abs=1e-3)
    assert contrast("#777777", "w") == pytest.approx(4.48, abs=0.01)  # the well-known grey that just fails


# Matrices.


def test_a_matrix_has_the_accuracy_after_each_task_in_its_row(draw, tmp_path):
    (axes,) = draw(run_figures.matrix, run_of(FIRST, tmp_path=tmp_path)).axes
    assert heat_map(axes) == FIRST
    places = {(text.get_position(), text.get_text()) for text in axes.texts}
    assert places == {((0.5, 0.5), "80.0"), ((0.5, 1.5), "70.0"), ((1.5, 1.5), "90.0")}
    assert [text.get_text() for text in axes.get_yticklabels()] == ["1", "2"]
    assert (axes.get_ylabel(), axes.get_xlabel()) == ("after task", "accuracy on task, %")


def test_a_matrix_of_tasks_learned_at_once_has_one_row(draw, tmp_path):
    (axes,) = draw(run_figures.matrix, run_of(TOGETHER, "multitask", tmp_path)).axes
    assert heat_map(axes) == TOGETHER
    assert [text.get_text() for text in axes.get_yticklabels()] == ["all"]


@pytest.mark.parametrize("tasks", [10, 20])
def test_a_matrix_prints_its_numbers_where_they_have_room(draw, tmp_path, tasks):
    A = [[100.0 if j <= i else None for j in range(tasks)] for i in range(tasks)]
    run = with_result(run_of(FIRST, tmp_path=tmp_path), accuracy=A, tasks=tasks)
    axes, *bar = draw(run_figures.matrix, run).axes
    assert len(axes.texts) == (55 if tasks == 10 else 0)
    assert len(bar) == (tasks == 20)
    assert set(words(axes)) <= {"100"}
    assert overlapping([*axes.texts, *axes.get_xticklabels(), *axes.get_yticklabels()]) == []


@pytest.mark.parametrize("limits", [(0.0, 100.0), (60.0, 70.0), (100.0, 100.0)])
def test_numbers_can_be_read_on_every_colour(draw, tmp_path, limits):
    A = [[20.0 * i + j for j in range(5)] for i in range(5)]
    run = with_result(run_of(FIRST, tmp_path=tmp_path), accuracy=A, tasks=5)
    (axes,) = draw(run_figures.matrix, run, limits=limits).axes
    cells = axes.collections[0].get_facecolors()
    assert len(cells) == len(axes.texts) == 25
    assert min(contrast(text.get_color(), cell) for text, cell in zip(axes.texts, cells, strict=True)) > 4.5


def test_a_run_of_one_task_can_be_read(draw, tmp_path):
    run = run_of([[100.0]], tmp_path=tmp_path)
    figure = draw(run_figures.matrix, run, limits=run_figures.accuracy_limits([run]))
    ((text,), (cell,)) = figure.axes[0].texts, figure.axes[0].collections[0].get_facecolors()
    assert text.get_text() == "100"
    assert contrast(text.get_color(), cell) > 4.5


def test_the_same_accuracy_has_the_same_colour_in_a_report(draw, tmp_path):
    write_run(tmp_path / "a", "gpm", FIRST)
    write_run(tmp_path / "b", "sgp", [[80.0, None], [41.0, 62.0]])
    write_run(tmp_path / "c", "multitask", TOGETHER)
    write_run(tmp_path / "d", "gpm", [[100.0, None], [100.0, 100.0]], epochs=7)
    write_run(tmp_path / "e", "gpm", [[0.0, None], [0.0, 0.0]], epochs=8)
    runs = runs_in(tmp_path)
    assert [run_figures.accuracy_limits([run]) for run in runs] == [(70, 90), (40, 80), (90, 100), (90, 100), (0, 10)]
    limits = run_figures.accuracy_limits(runs[:3])
    assert limits == (40, 100)
    meshes = [draw(run_figures.matrix, run, limits=limits).axes[0].collections[0] for run in runs[:2]]
    assert [mesh.get_clim() for mesh in meshes] == [(40, 100)] * 2
    assert meshes[0].get_facecolors()[0].tolist() == meshes[1].get_facecolors()[0].tolist()
    assert draw.caption.endswith(": b. Colours from 40 to 100 %.")
    assert draw(run_figures.matrix, runs[0]).axes[0].collections[0].get_clim() == (0, 100)  # if nothing is said


# Tasks, time and memory.


def test_the_tasks_just_after_learning_and_in_the_end(draw, tmp_path):
    write_run(tmp_path / "a", "gpm", FIRST)
    write_run(tmp_path / "b", "gpm", SECOND, seed=1)
    write_run(tmp_path / "c", "code-cl", SECOND)
    write_run(tmp_path / "d", "multitask", TOGETHER)
    figure = draw(figures.tasks, *best_first(runs_in(tmp_path)))
    after, end = figure.axes
    assert (after.get_title(), end.get_title()) == ("just after learning", "after all tasks")
    assert data(after) == {"gpm": ([1, 2], [82, 92]), "code-cl": ([1, 2], [84, 94])}  # means over seeds
    assert data(end) == {"gpm": ([1, 2], [76, 92]), "code-cl": ([1, 2], [82, 94]), "multitask": ([1, 2], [95, 97.5])}
    colours = [{line.get_label(): line.get_color() for line in axes.get_lines()} for axes in (after, end)]
    assert colours[0].items() < colours[1].items()
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["multitask", "code-cl", "gpm"]
    assert after.get_ylabel() == "accuracy, %"


def test_tasks_that_were_learned_at_once_have_only_an_end(draw, tmp_path):
    figure = draw(figures.tasks, *best_first([run_of(TOGETHER, "multitask", tmp_path)]))
    assert [(axes.get_title(), data(axes)) for axes in figure.axes] == [
        ("after all tasks", {"multitask": ([1, 2], [95, 97.5])})
    ]
    assert figure.axes[0].get_ylabel() == "accuracy, %"


def test_the_average_over_the_tasks_seen_so_far(draw, tmp_path):
    write_run(tmp_path / "a", "gpm", FIRST)
    write_run(tmp_path / "b", "gpm", SECOND, seed=1)
    write_run(tmp_path / "d", "multitask", TOGETHER)
    (axes,) = draw(figures.seen, *best_first(runs_in(tmp_path))).axes
    assert data(axes) == {"multitask": ([0, 1], [96.25, 96.25]), "gpm": ([1, 2], [82, 84])}  # (80 + 84)/2, (80 + 88)/2
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("tasks seen", "average accuracy, %")


def test_acc_against_memory_and_time(draw, tmp_path):
    seconds = {"train": 100.0, "between_tasks": 15.0, "evaluate": 5.0}
    write_run(tmp_path / "a", "gpm", result={"seconds": seconds, "bytes": {"memory": 4_000_000, "per_task": 1}})
    write_run(tmp_path / "b", "gpm", seed=1, result={"bytes": {"memory": 2_000_000, "per_task": 1}})  # 75 s
    write_run(tmp_path / "c", "code-cl", SECOND, result={"bytes": {"memory": 0, "per_task": 0}})
    memory, time = draw(figures.tradeoff, *best_first(runs_in(tmp_path))).axes
    assert data(memory) == {"gpm": ([3_000_000], [80]), "code-cl": ([0], [88])}
    assert data(time) == {"gpm": ([97.5], [80]), "code-cl": ([75], [88])}
    assert [text.get_text() for text in memory.get_xticklabels()] == ["0 B", "3 MB"]
    assert [text.get_text() for text in time.get_xticklabels()] == ["1m15s", "1m38s"]
    assert draw.caption.endswith("Times depend on what else the machine did.")


def test_of_many_lines_the_best_the_baseline_and_code_cl_stand_out(draw, tmp_path):
    methods = ["owm", "gpm", "trgp", "sgp", "cuber", "code-cl", "ewc", "hat", "er", "api"]
    for i, method in enumerate(methods):
        write_run(tmp_path / method, method, [[50.0 + i, None], [50.0 + i, 50.0 + i]])
    experiments, _ = best_first(runs_in(tmp_path))
    gpm = next(e for e in experiments if e.method == "gpm")
    styles = figures.line_styles(experiments, [gpm])
    named = [e.method for e in experiments if "label" in styles[e]]
    assert named == ["api", "er", "hat", "code-cl", "gpm"]
    assert len({styles[e]["color"] for e in experiments if e.method in named}) == 5
    assert {styles[e]["color"] for e in experiments if e.method not in named} == {drawing.GREY}
    for make in (figures.seen, figures.tasks, figures.tradeoff):
        figure = draw(make, experiments, styles)
        assert [text.get_text() for text in figure.legends[0].get_texts()] == [*named, "5 others"]
    labels = [text for axes in figure.axes for text in axes.texts]
    assert {text.get_text() for text in labels} == set(methods) - set(named)
    assert overlapping(labels) == []


def test_a_method_keeps_its_colour_beside_a_better_form_of_it(tmp_path):
    write_run(tmp_path / "gpm", "gpm")
    write_run(tmp_path / "plain", "code-cl")
    _, before = best_first(runs_in(tmp_path))
    write_run(tmp_path / "changed", "code-cl", SECOND, changes={"aperture": 2.0})
    experiments, after = best_first(runs_in(tmp_path))
    colours = [{e.label(): style["color"] for e, style in styles.items()} for styles in (before, after)]
    assert experiments[0].label() == "code-cl, aperture = 2"
    assert colours[0].items() < colours[1].items()
    assert len(set(colours[1].values())) == 3


# Ablations.


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


# What happened within a run.


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


# All of them.


@pytest.fixture(scope="module")
def every(tmp_path_factory):
    """Every kind of figure, as it is written."""
    folder = tmp_path_factory.mktemp("figures")
    log = [epoch(0, 1, 2.0), epoch(0, 2), task(0, 0.25), epoch(1, 1), task(1, 0.75)]
    write_run(folder / "a", "gpm", FIRST)
    write_run(folder / "b", "code-cl", SECOND, log=log)
    write_run(folder / "c", "multitask", TOGETHER, log=[{**epoch(1, 1), "together": 2}])
    write_run(folder / "d", "code-cl", FIRST, changes={"aperture": 4})
    runs = runs_in(folder)
    experiments = find_experiments(runs)
    made = {
        "matrix": run_figures.matrix,
        "curves": run_figures.curves,
        "fullness": run_figures.fullness,
        "spectra": run_figures.spectra,
    }
    with styled():
        of_run = {name: make(runs[1], name) for name, make in made.items()}
        joint = {"joint": run_figures.matrix(runs[2], "joint"), "together": run_figures.curves(runs[2], "together")}
        of_condition = {"tasks": figures.tasks, "seen": figures.seen, "tradeoff": figures.tradeoff}
        general = {name: make(*best_first(runs), name) for name, make in of_condition.items()}
        swept = {"swept": figures.ablation(find_ablations(experiments), "swept")}
    return of_run | joint | general | swept


@pytest.mark.slow
def test_figures_are_a_column_wide_and_legible(every):
    assert len(every) == 10
    for figure in every.values():
        assert float(re.search(r'<svg [^>]*width="([\d.]+)pt"', figure.svg)[1]) == pytest.approx(3.3 * 72)
        sizes = [float(size) for size in re.findall(r"font(?:-size)?: ([\d.]+)px", figure.svg)]
        assert sizes
        assert min(sizes) >= 7
        assert "<dc:date>" not in figure.svg
        assert figure.png.startswith(b"\x89PNG")
        assert int.from_bytes(figure.png[16:20]) == 3.3 * 300


@pytest.mark.slow
def test_what_is_said_is_in_the_file(every):
    texts = {name: set(re.findall(r">([^<>\s][^<>]*)</text>", figure.svg)) for name, figure in every.items()}
    for name, said in {
        "fullness": {"0.25", "0.75", "a", "b", "share of the inputs that is protected", "directions freed"},
        "matrix": {"84.0", "82.0", "94.0", "after task"},
        "joint": {"95.0", "97.5", "all"},
        "tasks": {"just after learning", "after all tasks", "gpm", "code-cl", "multitask"},
        "seen": {"average accuracy, %", "tasks seen", "code-cl"},
        "tradeoff": {"time of a run", "memory", "1m15s", "12 kB"},
        "swept": {"aperture", "ACC, %", "BWT, %", "4", "6"},
        "curves": {"loss", "validation, %", "training", "validation"},
        "spectra": {"singular value", "share of the inputs", "task 1", "task 2"},
    }.items():
        assert said <= texts[name], name


def test_long_names_fit(tmp_path):
    """A name that does not fit would leave no room to draw in, of which matplotlib warns."""
    write_run(tmp_path / "a", "gpm", changes={"threshold": 0.5, "increment": 0.25, "samples": 10, "norm": "free"})
    (run,) = runs_in(tmp_path)
    own = with_result(run, "b", method="a_package.with_a_long_name.methods:MethodWithALongNameToo")
    with styled():
        for make in (figures.tasks, figures.seen, figures.tradeoff):
            svg = make(*best_first([run, own]), "long").svg
            assert "gpm, threshold = 0.5" in svg
            assert 'width="237.6pt"' in svg


def test_control_characters_in_a_name_leave_a_figure_whole(tmp_path):
    write_run(tmp_path / "a", "gpm")
    (run,) = runs_in(tmp_path)
    with styled():
        made = figures.tasks(*best_first([with_result(run, "a\x1b\0", method="own:\x1b\0")]), "name")
    ElementTree.fromstring(made.svg)
    assert "own:??" in made.svg


def test_the_same_figure_has_the_same_bytes(every, tmp_path):
    write_run(tmp_path / "x", "code-cl", SECOND)
    (run,) = runs_in(tmp_path)
    with styled():
        again = run_figures.matrix(with_result(run, "b"), "matrix")
    assert (again.svg, again.png) == (every["matrix"].svg, every["matrix"].png)


def test_inferred_tasks_show_what_each_task_is_taken_for(draw, tmp_path):
    confusion = [[90.0, 10.0], [30.0, 70.0]]
    shares = {"tasks_right": 80.0, "tasks_right_together": 100.0, "inferred": 60.0, "inferred_together": 75.0}
    write_run(
        tmp_path / "a", result={"inference": shares | {"together": 16, "evidence": "heads", "confusion": confusion}}
    )
    (run,) = find_runs([tmp_path], tmp_path / "report").runs
    (axes,) = draw(run_figures.inferred_tasks, run).axes
    assert axes.collections[0].get_array().reshape(2, 2).tolist() == confusion
    assert run_figures.inferred_tasks(run_of(FIRST, tmp_path=tmp_path / "other"), "name") is None

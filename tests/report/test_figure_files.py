"""Every kind of figure as it is written: a column wide, legible, whole, and the same bytes again."""

import re
from xml.etree import ElementTree

import pytest

from codecl.report import figures, run_figures
from codecl.report.drawing import styled
from codecl.report.experiments import find_ablations, find_experiments
from tests.report.cases import FIRST, SECOND, epoch, task, write_run
from tests.report.drawn import TOGETHER, best_first, runs_in, with_result


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

"""Matrices of a run: every accuracy and every task it was taken for in its cell, in colours that can be read."""

import pytest

from codecl.report import run_figures
from codecl.report.records import find_runs
from tests.report.cases import FIRST, write_run
from tests.report.drawn import TOGETHER, contrast, heat_map, overlapping, run_of, runs_in, with_result, words


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

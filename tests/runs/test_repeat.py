"""``codecl repeat``: recipes of finished runs, run again; what came out the same and what did not."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from codecl.report.repetition import compare_repetitions, largest_difference
from codecl.runs.recipe import flatten, read_recipe
from codecl.runs.rundir import RunDirectory
from tests.runs.running import codecl, make_result, result_of

TINY = ("--tasks", "2", "--epochs", "1", "--set", "batch_size=200")
RECORDS = Path(__file__).parents[2] / "results"


@pytest.fixture
def recorded(tmp_path, capsys):
    """Two finished runs, a third whose record says something else than its recipe gives, and one that was not begun."""
    top = tmp_path / "recorded"
    for name, seed in {"a": 0, "deep/b": 1, "wrong": 2}.items():
        assert codecl(capsys, "run", "--method", "finetune", "--seed", seed, *TINY, "--out", top / name)[0] == 0
    record = result_of(top / "wrong")
    record["accuracy"][1][0] += 1.5
    record |= {"acc": record["acc"] + 0.75, "bwt": record["bwt"] + 1.5}
    (top / "wrong" / "result.json").write_text(json.dumps(record))
    (top / "begun").mkdir()
    shutil.copy(top / "a" / "recipe.toml", top / "begun")
    return top


@pytest.mark.slow
def test_what_is_repeated_stands_beside_what_was_recorded(recorded, tmp_path, capsys):
    again = tmp_path / "again"
    code, out, err = codecl(capsys, "repeat", recorded, "--out", again, "--quiet")
    rows = {line.split()[0]: line for line in out.splitlines() if line.strip()}
    assert code == 0
    assert rows["a"].endswith("the same")
    assert rows["deep/b"].endswith("the same")
    assert rows["wrong"].endswith(" 1.50")
    assert "2 of 3 the same in every accuracy" in out
    assert err.splitlines() == ["codecl: begun is left out: not finished: no task learned yet"]
    assert result_of(again / "deep/b")["accuracy"] == result_of(recorded / "deep/b")["accuracy"]

    code, out, err = codecl(capsys, "repeat", recorded, "--out", again, "--only", "deep/*", "--json")
    last = json.loads(out.splitlines()[-1])
    assert last["runs"] == ["deep/b"]
    assert last["recorded"]["deep/b"]["accuracy"] == last["results"][0]["accuracy"]


@pytest.mark.slow
def test_a_single_run_is_repeated_under_its_own_name(recorded, tmp_path, capsys):
    code, out, err = codecl(capsys, "repeat", recorded / "a", "--out", tmp_path / "again", "--quiet")
    assert (code, err) == (0, "")
    assert "1 of 1 the same" in out
    assert (tmp_path / "again" / "a" / "result.json").exists()


@pytest.mark.slow
def test_runs_whose_data_are_not_there_are_left_out(recorded, tmp_path, capsys):
    nowhere = tmp_path / "nowhere"
    nowhere.mkdir()
    for method in ("gpm", "sgp"):
        shutil.copytree(RECORDS / "permuted-mnist" / "fast" / f"{method}-seed0", recorded / "mnist" / method)
    words = ("repeat", recorded, "--out", tmp_path / "again", "--data-dir", nowhere, "--quiet")
    code, out, err = codecl(capsys, *words, "--only", "a", "--only", "mnist/*")
    assert code == 1
    assert "1 of 1 the same" in out
    assert err.splitlines()[-1].startswith("codecl: permuted-mnist, 2 of 3 runs, is left out: MNIST is not at ")

    code, out, err = codecl(capsys, *words, "--only", "mnist/*")
    assert (code, out) == (2, "")
    assert err.splitlines()[-1].startswith("codecl: MNIST is not at ")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("results-of-nobody",), "there is no directory results-of-nobody."),
        ((RECORDS, "--only", "nothing/*"), f"{RECORDS}: no run fits nothing/*."),
        ((RECORDS, "--out", RECORDS / "again"), "whose runs are to be repeated: choose another."),
        ((RECORDS.parent / "docs",), "no run in or below it is finished."),
    ],
)
def test_what_cannot_be_repeated_is_said_in_a_line(words, message, capsys):
    code, out, err = codecl(capsys, "repeat", *words)
    assert (code, out) == (2, "")
    assert err.endswith(f"{message}\n")
    assert len(err.splitlines()) == 1


def test_a_difference_is_the_largest_of_all_accuracies():
    before = {"x": make_result("gpm", 0, [[80.0, None], [70.0, 90.0]])}
    after = {"x": make_result("gpm", 0, [[80.0, None], [70.25, 86.0]])}
    assert largest_difference(before["x"], after["x"]) == 4.0
    assert largest_difference(before["x"], before["x"]) == 0.0
    assert "0 of 1 the same" in compare_repetitions(before, after)


def test_other_data_are_named():
    before = {"x": make_result("gpm", 0, [[80.0, None], [70.0, 90.0]])}
    after = {"x": replace(before["x"], data="subset")}
    assert "the same (data: official, and subset again)" in compare_repetitions(before, after)


def test_every_record_of_the_project_can_be_repeated():
    """Its recipe is one that this version takes, and what it states is what would be run."""
    records = sorted(path.parent for path in RECORDS.rglob("recipe.toml"))
    assert records
    for path in records:
        stated, recipe = read_recipe(path / "recipe.toml"), flatten(vars(RunDirectory(path).recipe()))
        assert {name: recipe[name] for name in flatten(stated)} == flatten(stated), path

"""``codecl watch``: what the logs say, and nothing is touched."""

import json
import os
import threading

import pytest

from codecl.cli.watch import read_runs, watch_row
from tests.report.cases import FIRST, epoch, task, write_run
from tests.runs.running import codecl, contents


def cells(folder, now=None):
    """The row of the run in ``folder``, by column."""
    (record,) = read_runs([folder]).values()
    log = folder / "log.jsonl"
    names = ("state", "at", "validation", "accuracy", "left", "age")
    return dict(zip(names, watch_row(record, (log.stat().st_mtime if log.exists() else 0) + 75), strict=True))


def test_a_run_within_a_task(tmp_path):
    first = task(0, 0.5) | {"accuracy": [80.0, None, None, None]}
    log = [epoch(0, 1), epoch(0, 2), first, epoch(1, 1) | {"seconds": 4.0, "validation_accuracy": 61.25}]
    write_run(tmp_path / "run", "gpm", [[0.0] * 4], log=log, recipe_only=True)
    row = cells(tmp_path / "run")
    assert row == {
        "state": "learning",
        "at": "task 2/4, epoch 1/3",
        "validation": "61.2",
        "accuracy": "▇ 80.0",
        "left": "at most 12s",  # 2 epochs of this task and 2 of each of two more, at (1 + 1 + 4)/3 s
        "age": "1m15s ago",
    }


@pytest.mark.parametrize(
    ("change", "state", "at", "accuracy"),
    [
        ({"recipe_only": True}, "waiting", "0/2 tasks", "–"),
        ({"recipe_only": True, "log": [epoch(0, 1), task(0, 0.5)]}, "begun", "1/2 tasks", "▅ 50.0"),
        ({"log": [epoch(0, 1), task(0, 0.5), epoch(1, 1), task(1, 0.5)]}, "finished", "2/2 tasks", "▅▅ 80.0"),
        ({"recipe_only": True, "log": [{"event": "nonsense"}]}, "damaged", "–", "–"),
    ],
)
def test_the_other_states(tmp_path, change, state, at, accuracy):
    write_run(tmp_path / "run", "gpm", FIRST, **change)
    row = cells(tmp_path / "run")
    assert (row["state"], row["at"], row["accuracy"], row["left"]) == (state, at, accuracy, "–")


def test_a_benchmark_of_the_users_own_is_not_imported(tmp_path):
    write_run(tmp_path / "run", "gpm", FIRST, recipe_only=True, log=[epoch(0, 1)])
    recipe = tmp_path / "run/recipe.toml"
    recipe.write_text(recipe.read_text().replace('"split-cifar100"', '"evil:B"').replace("tasks = 2\n", ""))
    assert cells(tmp_path / "run")["at"] == "task 1/1, epoch 1/3"  # no more is known


def test_once_prints_a_table_and_touches_nothing(tmp_path, capsys):
    write_run(tmp_path / "a", "gpm", FIRST)
    write_run(tmp_path / "b\x1b", "gpm", seed=1, recipe_only=True)
    before = contents(tmp_path)
    code, out, err = codecl(capsys, "watch", tmp_path, "--once")
    assert (code, err) == (0, "")
    assert [line.split()[:2] for line in out.splitlines()[2:4]] == [
        [f"{tmp_path}/a", "finished"],
        [f"{tmp_path}/b?", "waiting"],
    ]
    assert out.endswith("1 of 2 finished\n")
    assert contents(tmp_path) == before


def test_it_follows_until_all_are_finished(tmp_path, capsys):
    write_run(tmp_path / "a", "gpm", FIRST)
    result = tmp_path / "a/result.json"
    text = result.read_text()
    result.unlink()
    late = threading.Timer(
        0.5, lambda: (result.with_suffix(".new").write_text(text), os.replace(result.with_suffix(".new"), result))
    )
    late.start()
    code, out, _ = codecl(capsys, "watch", tmp_path, "--every", "0.1")
    late.join()
    assert code == 0
    assert [line for line in out.splitlines() if "finished" in line and "of" in line.split()] == [
        "0 of 1 finished",
        "1 of 1 finished",
    ]
    assert json.loads(text)["acc"] == 80.0


@pytest.mark.parametrize("arguments", [["nowhere"], [".", "--every", "0"], [".", "--every", "nan"]])
def test_what_cannot_be_is_one_line(tmp_path, monkeypatch, capsys, arguments):
    monkeypatch.chdir(tmp_path)
    code, out, err = codecl(capsys, "watch", *arguments)
    assert (code, out, err.count("\n")) == (2, "", 1)


@pytest.mark.parametrize("command", [("watch", "--once"), ("report", "--no-figures")], ids=["watch", "report"])
def test_a_directory_that_cannot_be_read_is_named(tmp_path, capsys, monkeypatch, command):
    top = tmp_path / "closed"
    write_run(top / "run", "gpm", FIRST)
    real = os.scandir

    def scandir(path="."):
        if os.fspath(path) == os.fspath(top):
            raise PermissionError(13, "Permission denied", os.fspath(path))
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)
    monkeypatch.chdir(tmp_path)
    assert codecl(capsys, *command, top) == (2, "", f"codecl: {top} cannot be read: Permission denied.\n")

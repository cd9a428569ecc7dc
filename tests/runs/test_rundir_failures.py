"""A full disk, a quota used up and a loss that is no number are said in one line, and nothing is lost."""

import builtins
import errno
import json
import os

import pytest

from codecl.runs.rundir import RunDirectory
from codecl.training import checkpoint
from tests.runs.directories import arguments, assert_same_numbers
from tests.runs.running import codecl, epochs_of, log_of

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("where", ["save", "log", "result", "recipe"])
def test_a_full_disk_is_said_and_nothing_is_lost(where, whole, tmp_path, capsys, monkeypatch):
    path, real, real_open = tmp_path / "run", checkpoint.save, builtins.open

    def save(file, tree):
        if tree.get("epoch") == 2 and tree["task"] == 1:
            raise OSError(errno.ENOSPC, "No space left on device", str(file))
        real(file, tree)

    def opens(file, *rest, **options):
        name, modes = os.path.basename(file) if isinstance(file, str | os.PathLike) else "", rest[:1]
        log_is_long = name == "log.jsonl" and path.joinpath(name).exists() and path.joinpath(name).stat().st_size > 900
        if modes and modes[0] != "r" and name == {"result": "result.json.new", "recipe": "recipe.toml.new"}.get(where):
            raise OSError(errno.ENOSPC, "No space left on device")
        if where == "log" and log_is_long:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real_open(file, *rest, **options)

    with monkeypatch.context() as patch:
        if where == "save":
            patch.setattr(checkpoint, "save", save)
        else:
            patch.setattr(builtins, "open", opens)
        code, _, err = codecl(capsys, *arguments([], path))
    assert code == 1
    assert "No space left on device. Free" in err
    assert err.endswith("Free some space; the same command again goes on.\n")
    assert err.count("\n") == 1
    done = 0 if where == "recipe" else len(epochs_of(path))
    assert done >= {"save": 5, "log": 3, "result": 9, "recipe": 0}[where]
    code, _, err = codecl(capsys, *arguments([], path))
    assert (code, err) == (0, "")
    resumed = [sum(e["epochs"]) + e["epoch"] for e in log_of(path) if e["event"] == "resume"]
    assert resumed == ([] if where == "recipe" else [max(resumed)])
    assert all(n >= done - 1 for n in resumed)
    assert_same_numbers(path, whole)


def test_a_file_system_out_of_quota_is_full_too(tmp_path, capsys, monkeypatch):
    def save(file, tree):
        raise OSError(errno.EDQUOT, "Disk quota exceeded", str(file))

    monkeypatch.setattr(checkpoint, "save", save)
    code, _, err = codecl(capsys, *arguments([], tmp_path / "run"))
    assert code == 1
    assert "Disk quota exceeded" in err
    assert "the same command again goes on" in err


def test_a_nan_loss_is_said_and_nothing_is_lost(tmp_path, capsys):
    path = tmp_path / "run"
    code, _, err = codecl(capsys, *arguments(["--set", "lr=999999"], path))
    assert code == 1
    assert err.count("\n") == 1
    assert "became nan in epoch" in err
    assert "--set lr" in err
    assert "--out" in err
    assert (path / "task-000.ckpt").exists()
    assert not (path / "result.json").exists()
    assert json.loads(json.dumps(RunDirectory(path).recipe().training["lr"])) == 999999

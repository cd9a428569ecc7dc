"""Directories that are someone else's, in use or damaged are refused: one line, exit code 2, nothing touched."""

import os
import shutil

import pytest

from codecl.cli.main import main
from codecl.errors import UsageError
from codecl.runs.rundir import RunDirectory
from tests.runs.directories import arguments, assert_same_numbers, go_on, refused
from tests.runs.running import codecl

pytestmark = pytest.mark.slow


def test_a_directory_of_something_else_is_refused(tmp_path, capsys):
    (tmp_path / "thesis.tex").write_text("mine")
    assert "is not empty and not a run directory" in refused(capsys, tmp_path)


def test_a_file_of_the_users_called_lock_survives(tmp_path, capsys):
    (tmp_path / "lock").write_text("mine")
    (tmp_path / "thesis.tex").write_text("mine")
    refused(capsys, tmp_path)
    assert (tmp_path / "lock").read_text() == "mine"


def test_a_directory_in_use_is_refused(stopped, whole, capsys):
    with RunDirectory(stopped).locked():
        assert "another process is working in" in refused(capsys, stopped)
    assert main(arguments([], stopped)) == 0
    assert_same_numbers(stopped, whole)


@pytest.mark.parametrize("text", ['{"accuracy": [[', "", "[]", "{}", "\x00\x01"])
def test_a_damaged_result_is_refused(text, whole, tmp_path, capsys):
    path = shutil.copytree(whole, tmp_path / "run")
    (path / "result.json").write_text(text)
    err = refused(capsys, path)
    again = f"codecl run --resume {path} --restart"
    assert "result.json is damaged" in err
    assert err.endswith(f" Remove it to go on, or begin again: {again}\n")
    (path / "result.json").unlink()
    assert f"there is no checkpoint to go on from. Put the checkpoints back, or begin it again: {again}" in refused(
        capsys, path
    )
    assert main(arguments(["--restart"], path)) == 0
    assert_same_numbers(path, whole)


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
@pytest.mark.parametrize("name", ["result.json", "recipe.toml", "lock"])
def test_what_is_no_file_is_refused_at_once(make, name, stopped, whole, capsys):
    kept = (stopped / name).read_bytes() if (stopped / name).exists() else None
    (stopped / name).unlink(missing_ok=True)
    make(stopped / name)
    for command in (["run", "--resume", stopped, "--quiet"], ["export", stopped, "--out", stopped / "x.pt2"]):
        if (command[0], name) == ("export", "lock"):  # which it does not need
            continue
        code, _, err = codecl(capsys, *command)
        assert (code, err.count("\n")) == (2, 1), err
        assert err.startswith(f"codecl: {stopped / name}")
    (stopped / name).rmdir() if make is os.mkdir else (stopped / name).unlink()
    if kept is not None:
        (stopped / name).write_bytes(kept)
    go_on(stopped)
    assert_same_numbers(stopped, whole)


def test_a_directory_without_a_recipe_cannot_be_resumed(tmp_path):
    with pytest.raises(UsageError, match=r"is not a run directory: it has no recipe\.toml"):
        RunDirectory(tmp_path).recipe()

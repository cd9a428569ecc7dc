"""A run is begun again only when that is asked for, and that may be stopped at any moment."""

import os
import shutil

import pytest

from codecl.runs.rundir import RunDirectory
from tests.runs.directories import Stop, arguments, assert_same_numbers, cut, refused
from tests.runs.running import codecl, contents, log_of

pytestmark = pytest.mark.slow


def test_without_any_good_checkpoint_it_starts_anew_only_when_asked(stopped, whole, capsys):
    for file in stopped.glob("*.ckpt"):
        cut(file)
    log = (stopped / "log.jsonl").read_bytes()
    for _ in range(2):
        code, _, err = codecl(capsys, "run", "--resume", stopped, "--quiet")
        assert code == 2
        assert err.splitlines()[-1] == (
            f"codecl: no checkpoint in {stopped} can be read, so the run cannot go on. "
            f"To begin it again: codecl run --resume {stopped} --restart"
        )
        assert (stopped / "log.jsonl").read_bytes() == log
    assert codecl(capsys, "run", "--resume", stopped, "--restart", "--quiet")[0] == 0
    assert_same_numbers(stopped, whole)
    assert log_of(stopped)[0]["epoch"] == 1
    assert contents(stopped).keys() == contents(whole).keys()


def test_a_finished_run_is_begun_again_only_when_asked(whole, tmp_path, capsys):
    path = shutil.copytree(whole, tmp_path / "run")
    before = contents(path)
    assert codecl(capsys, "run", "--resume", path)[1].startswith("this run was finished already")
    assert contents(path) == before
    assert codecl(capsys, *arguments(["--seed", "1"], path), "--restart")[0] == 2  # another recipe
    assert contents(path) == before
    assert not codecl(capsys, *arguments([], path), "--restart")[1].startswith("this run was finished already")
    assert_same_numbers(path, whole)
    assert "resume" not in [event["event"] for event in log_of(path)]


def test_a_run_whose_checkpoints_were_removed_begins_again_only_when_asked(stopped, whole, capsys):
    for file in stopped.glob("*.ckpt"):
        file.unlink()
    before = contents(stopped)
    assert refused(capsys, stopped) == (
        f"codecl: {stopped / 'log.jsonl'} tells of a run, but there is no checkpoint to go on from. "
        f"Put the checkpoints back, or begin it again: codecl run --resume {stopped} --restart\n"
    )
    assert contents(stopped) == before
    assert codecl(capsys, "run", "--resume", stopped, "--restart", "--quiet")[0] == 0
    assert_same_numbers(stopped, whole)
    assert "resume" not in [event["event"] for event in log_of(stopped)]


def test_beginning_again_may_be_stopped_at_any_moment(stopped, whole, tmp_path, monkeypatch, capsys):
    """What is left goes on to the same numbers, or wants to be begun again."""
    found = set()
    for count in range(20):
        path = shutil.copytree(stopped, tmp_path / f"run-{count}")
        left, unlink = [count], os.unlink

        def stop(*given, left=left, unlink=unlink, **options):
            left[0] -= 1
            if left[0] < 0:
                raise Stop
            return unlink(*given, **options)

        with monkeypatch.context() as patched:
            patched.setattr(os, "unlink", stop)
            try:
                RunDirectory(path).restart()
            except Stop:
                pass
            else:
                break
        code, _, err = codecl(capsys, "run", "--resume", path, "--quiet")
        found.add(code)
        if code == 2:
            assert err.endswith(f"codecl run --resume {path} --restart\n")
            assert codecl(capsys, "run", "--resume", path, "--restart", "--quiet")[0] == 0
        assert_same_numbers(path, whole)
        assert [e["event"] for e in log_of(path) if e["event"] != "resume"].count("task") == 3
    assert found == {0, 2}
    assert count > 4

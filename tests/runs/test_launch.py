"""Runs elsewhere: commands for any scheduler, tasks of Ray, and what a scheduler does to a process."""

import importlib.util
import os
import shlex
import signal
import threading

import pytest

from codecl.errors import UsageError
from codecl.runs.events import NoticeEvent
from codecl.runs.launch import find_launcher
from codecl.runs.launch_ray import go_on
from codecl.runs.run_many import Children
from codecl.runs.tail import Tail
from codecl.runs.trackers import PARENT
from tests.runs.running import codecl, epochs_of, launching, log_of, result_of
from tests.runs.slurm import wait_until

TINY = ("--tasks", "2", "--epochs", "2", "--set", "batch_size=200")


def test_places_that_there_are_not(tmp_path, monkeypatch):
    assert isinstance(find_launcher("local", tmp_path), Children)
    with pytest.raises(UsageError, match="--on takes local, slurm, ray, or ray://HOST:PORT; got 'moon'"):
        find_launcher("moon", tmp_path)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"needs the package ray: pip install 'codecl\[ray\]'"):
        find_launcher("ray", tmp_path)


def test_a_log_that_is_cut_and_grows_again(tmp_path):
    path = tmp_path / "log.jsonl"
    events = [NoticeEvent(text) for text in "abcdef"]
    lines = [event.to_line() for event in events]
    tail = Tail(path)
    assert tail.new() == []
    path.write_text("".join(lines[:3]) + lines[3][:9])  # the last is being written
    assert tail.new() == events[:3]
    path.write_text("".join(lines[:2]))
    assert tail.new() == []
    path.write_text("".join([*lines[:2], *lines[4:]]))
    assert tail.new() == events[4:]
    assert Tail(path).new() == []  # what was there before is no news


def test_a_worker_is_left_as_it_was(tmp_path, monkeypatch):
    """What a run was told of where it belongs, and where it ran, are not told to the next one of the same process."""
    monkeypatch.setenv(PARENT, '{"name": "mine"}')
    home = os.getcwd()
    assert "UsageError" in go_on(str(tmp_path / "none"), "data", str(tmp_path), (), (), '{"name": "theirs"}')
    assert (os.environ[PARENT], os.getcwd()) == ('{"name": "mine"}', home)


def test_what_is_prepared_runs_by_the_commands_that_are_printed(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    vary = ("sweep", "--method", "gpm", "--vary", "threshold=0.8,0.9", *TINY)
    code, out, _ = codecl(capsys, *vary, "--prepare", "--out", "a")
    assert code == 0
    lines = out.splitlines()
    assert [shlex.split(line)[3] for line in lines] == ["a/threshold=0.8/seed0", "a/threshold=0.9/seed0"]
    assert not list(tmp_path.rglob("result.json"))
    for line in lines:
        assert codecl(capsys, *shlex.split(line)[1:])[0] == 0
    (tmp_path / "b/threshold=0.9/seed0").mkdir(parents=True)
    assert go_on(str(tmp_path / "b/threshold=0.9/seed0"), "data", str(tmp_path), (), (), "").startswith("UsageError: ")
    assert codecl(capsys, *vary, "--prepare", "--out", "b")[0] == 0
    assert go_on(str(tmp_path / "b/threshold=0.9/seed0"), "data", str(tmp_path), (), (), "") == ""
    assert PARENT not in os.environ  # the process has other work afterwards
    ours, theirs = (result_of(f"{out}/threshold=0.9/seed0")["accuracy"] for out in "ab")
    assert ours == theirs
    code, out, _ = codecl(capsys, *vary, "--out", "a", "--quiet")  # nothing is left to run
    assert code == 0
    assert "0.8" in out


@pytest.mark.slow
def test_a_run_that_is_terminated_says_so_and_goes_on(tmp_path):
    recipe = ("--tasks", "2", "--epochs", "6", "--set", "batch_size=20")
    with launching(tmp_path) as launcher:
        assert launcher.run("run", *recipe, "--out", tmp_path / "whole") == 0
        process = launcher.start("run", *recipe, "--out", tmp_path / "stopped")
        log = tmp_path / "stopped/log.jsonl"
        wait_until(lambda: log.exists() and log.read_text().count('"event": "epoch"') >= 3)
        process.kill(signal.SIGTERM)
        assert process.wait() == 130
        assert "stopped. What was computed is kept" in process.err.read_text()
        assert launcher.run("run", *recipe, "--out", tmp_path / "stopped") == 0
    assert [event["task"] for event in log_of(tmp_path / "stopped") if event["event"] == "resume"]
    assert epochs_of(tmp_path / "stopped") == epochs_of(tmp_path / "whole")
    assert result_of(tmp_path / "stopped")["accuracy"] == result_of(tmp_path / "whole")["accuracy"]


@pytest.fixture
def two_workers(monkeypatch):
    ray = pytest.importorskip("ray")
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    memory = 80 * 2**20
    ray.init(num_cpus=2, object_store_memory=memory, include_dashboard=False, log_to_driver=False)
    yield ray
    ray.shutdown()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_on_ray_a_worker_that_is_killed_is_replaced_and_ends_with_the_same_numbers(two_workers, tmp_path, capsys):
    psutil = pytest.importorskip("psutil")
    several = ("compare", "--methods", "gpm,code-cl", "--tasks", "2", "--epochs", "12", "--set", "batch_size=20")
    assert codecl(capsys, *several, "--jobs", "2", "--quiet", "--out", tmp_path / "here")[0] == 0
    log, killed = tmp_path / "ray/code-cl-seed0/log.jsonl", []

    def kill():
        wait_until(lambda: log.exists() and log.read_text().count('"event": "epoch"') >= 3)
        for process in psutil.Process().children(recursive=True):
            if process.name().startswith("ray::") and any(file.path == str(lock) for file in process.open_files()):
                killed.append(process.pid)
                os.kill(process.pid, signal.SIGKILL)

    lock = log.with_name("lock")
    killer = threading.Thread(target=kill)
    killer.start()
    code, _, err = codecl(capsys, *several, "--on", "ray", "--quiet", "--out", tmp_path / "ray")
    killer.join()
    assert code == 0, err
    assert len(killed) == 1
    assert [event for event in log_of(log.parent) if event["event"] == "resume"]
    for name in ("gpm-seed0", "code-cl-seed0"):
        ours, theirs = (result_of(tmp_path / place / name) for place in ("ray", "here"))
        assert ours["accuracy"] == theirs["accuracy"]
        assert epochs_of(tmp_path / "ray" / name) == epochs_of(tmp_path / "here" / name)

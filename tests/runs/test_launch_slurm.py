"""Runs as a job array of SLURM: submitted, followed, preempted, failed, cancelled, found again."""

import os
import signal
import threading
from pathlib import Path

import pytest

from codecl.errors import UsageError
from codecl.runs import launch_slurm
from codecl.runs.events import NoticeEvent
from codecl.runs.launch import find_launcher
from codecl.runs.launch_ray import go_on
from tests.runs import slurm
from tests.runs.running import codecl, epochs_of, log_of, result_of
from tests.runs.slurm import wait_until

FAILING = """
from codecl import Method

class Failing(Method):
    name = "failing"

    def remember(self, loader):
        raise RuntimeError("out of luck")
"""
STUB = """#!/bin/sh
[ -e "$3/fails" ] && { echo began; echo no such luck; exit 3; }
echo "$OMP_NUM_THREADS" > "$3/threads"
cat "$3/events" >> "$3/log.jsonl" 2> /dev/null
until [ -e "$3/go" ]; do sleep 0.05; done
echo '{}' > "$3/result.json"
"""
"""What stands in for ``codecl run --resume DIR``."""


@pytest.fixture
def jobs(tmp_path, monkeypatch):
    monkeypatch.setattr(launch_slurm, "ASK", 0.3)
    monkeypatch.setattr(launch_slurm, "LOOK", 0.05)
    return slurm.install(tmp_path, monkeypatch)


@pytest.fixture
def stub(tmp_path, jobs, monkeypatch):
    file = tmp_path / "stub"
    file.write_text(STUB)
    monkeypatch.setattr(launch_slurm, "PROGRAM", ["sh", str(file)])
    return jobs


def make_runs(out, *names):
    for name in names:
        (out / name).mkdir(parents=True)
        (out / name / "recipe.toml").write_text('method = "gpm"\n')
    return {out / name: i for i, name in enumerate(names, 1)}


def started(told=None):
    return find_launcher("slurm", Path("data"), (), (), told.append if told is not None else lambda text: None)


def calls(jobs, command):
    return [line for line in (jobs / "calls").read_text().splitlines() if line.startswith(command)]


@pytest.mark.slow
def test_on_slurm_a_preempted_job_goes_on_to_the_same_numbers_and_one_that_fails_says_why(
    jobs, tmp_path, capsys, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(FAILING)
    several = ("compare", "--methods", "code-cl,mine:Failing", "--tasks", "2", "--epochs", "4")
    several += ("--set", "batch_size=20")
    code, out, _ = codecl(capsys, *several, "--prepare", "--out", "here")
    assert code == 0
    assert "--trust" in out.splitlines()[1]
    assert go_on("here/code-cl-seed0", "data", str(tmp_path), (), (), "{}") == ""
    log, preempted = tmp_path / "there/code-cl-seed0/log.jsonl", []

    def preempt():
        wait_until(lambda: log.exists() and log.read_text().count('"event": "epoch"') >= 3)
        printed = tmp_path / "there/slurm/101_1.log"
        batch = int((jobs / "101_1.pid").read_text())
        os.kill(batch, signal.SIGTERM)  # to the script alone, as --signal=B: has it
        wait_until(lambda: "stopped. What was computed is kept" in printed.read_text())
        preempted.append((jobs / "101_1.state").read_text())
        os.killpg(batch, signal.SIGKILL)

    other = threading.Thread(target=preempt)
    other.start()
    code, out, err = codecl(capsys, *several, "--on", "slurm", "--jobs", "1", "--out", "there")
    other.join()
    assert preempted == ["RUNNING"]  # it waited to be taken off
    assert code == 1
    assert f"codecl: submitted to SLURM as job 101, 2 runs, which print to {tmp_path}/there/slurm/101_N.log." in err
    assert "codecl: mine.Failing-seed0 failed: SLURM job 101_2 failed: RuntimeError: out of luck" in err
    assert "code-cl-seed0 task 2/2  epoch 4/4" in out
    assert len(calls(jobs, "sbatch")) == 1
    assert " --array=1-2%1 --cpus-per-task=1 " in calls(jobs, "sbatch")[0]
    assert [event for event in log_of(log.parent) if event["event"] == "resume"]
    assert epochs_of(log.parent) == epochs_of("here/code-cl-seed0")
    assert result_of(log.parent)["accuracy"] == result_of("here/code-cl-seed0")["accuracy"]


def test_a_place_without_sbatch_and_an_sbatch_that_refuses(tmp_path, jobs, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (jobs / "sbatch.refuses").write_text("sbatch: error: Batch job submission failed: Invalid account")
    asked = ("compare", "--methods", "gpm", "--tasks", "2", "--epochs", "1", "--on", "slurm", "--out", "a")
    refused = (
        2, "", "codecl: sbatch does not take the jobs: sbatch: error: Batch job submission failed: Invalid account\n"
    )  # fmt: skip
    assert codecl(capsys, *asked) == refused
    assert codecl(capsys, *asked) == refused  # nothing is taken for submitted
    monkeypatch.setenv("PATH", str(tmp_path))
    code, _, err = codecl(capsys, *asked)
    assert code == 2
    assert err.startswith("codecl: --on slurm needs the command sbatch, which is not found here: ")


def test_events_come_from_the_logs_and_threads_are_cpus(tmp_path, stub):
    runs = make_runs(tmp_path / "100% mine", "a", "b b")
    events = [NoticeEvent(text) for text in "xyz"]
    for path in runs:
        (path / "events").write_text("".join(event.to_line() for event in events))
        (path / "go").touch()
    array, seen = started(told := []), []
    array.begin(tmp_path / "100% mine", runs, 2)
    assert [array.run(path, threads, seen.append) for path, threads in runs.items()] == ["", ""]
    assert seen == 2 * events
    assert [(path / "threads").read_text() for path in runs] == ["1\n", "2\n"]
    assert "--array=1-2 --cpus-per-task=2 " in calls(stub, "sbatch")[0]  # as many as the widest run has threads
    assert told == [
        f"submitted to SLURM as job 101, 2 runs, which print to {tmp_path}/100% mine/slurm/101_N.log. "
        "Ctrl-C cancels them."
    ]
    assert (tmp_path / "100% mine/slurm/101_2.log").read_text() == ""


def test_silence_of_slurm_is_no_death_and_accounting_knows_what_the_queue_forgot(tmp_path, stub, monkeypatch):
    [path] = make_runs(tmp_path / "out", "a")
    (path / "fails").touch()
    array = started()
    (stub / "squeue.down").write_text("slurm_load_jobs error: Unable to contact slurm controller")
    array.begin(tmp_path / "out", {path: 1}, 1)
    ends, other = [], threading.Thread(target=lambda: ends.append(array.run(path, 1, print)))
    other.start()
    wait_until(lambda: (stub / "101_1.state").read_text() == "FAILED")
    wait_until(lambda: len(calls(stub, "squeue")) >= 4)
    assert not ends
    (stub / "101_1.state").rename(stub / "101_1.state.forgotten")
    (stub / "squeue.down").unlink()
    other.join()
    assert ends == ["SLURM job 101_1 failed: no such luck"]
    (stub / "sacct.down").write_text("accounting is off")
    (tmp_path / "out/slurm/101_1.log").unlink()
    assert array._why("101_1", "COMPLETED") == (
        f"SLURM job 101_1 ended: it says nothing in {tmp_path}/out/slurm/101_1.log"
    )


def test_jobs_of_a_command_that_was_cut_off_are_followed_and_a_stop_cancels_them(tmp_path, stub):
    out = tmp_path / "out"
    runs = make_runs(out, "a", "b", "c")
    first = dict(list(runs.items())[:2])
    (out / "a/go").touch()
    started().begin(out, first, 2)
    wait_until(lambda: (stub / "101_1.state").read_text() == "COMPLETED")
    wait_until(lambda: (stub / "101_2.state").read_text() == "RUNNING")
    array = started(told := [])
    array.begin(out, {path: 1 for path in runs if path.name != "a"}, 2)
    assert told[0] == "1 runs are SLURM's already and are followed. Ctrl-C cancels them."
    assert told[1].startswith("submitted to SLURM as job 102, 1 runs, ")
    assert "1) " in (out / "slurm/array.sbatch").read_text()
    assert str(out / "b") not in (out / "slurm/array.sbatch").read_text()
    wait_until(lambda: (stub / "102_1.state").read_text() == "RUNNING")
    ends, other = [], threading.Thread(target=lambda: ends.append(array.run(out / "b", 1, print)))
    other.start()
    array.stop()
    other.join()
    assert ends == ["SLURM job 101_2 was cancelled"]
    assert calls(stub, "scancel") == ["scancel 101_2 102_1"]
    for job in ("101_2", "102_1"):
        wait_until(lambda job=job: (stub / f"{job}.state").read_text() == "CANCELLED")
    again = started(told := [])
    again.begin(out, {out / "a": 1}, 1)  # nothing is under way any more, and what told of it is removed
    assert [file.name for file in (out / "slurm").glob("*.runs")] == ["103.runs"]
    assert told[0].startswith("submitted to SLURM as job 103, 1 runs, ")
    (stub / "squeue.down").write_text("no answer")
    with pytest.raises(UsageError, match="squeue does not say which jobs are under way"):
        started().begin(out, runs, 1)

"""Runs that are killed, for real, and go on to the numbers of a run that never was."""

import itertools
import os
import random
import signal
import subprocess
import sys
import time

import pytest

from tests.runs.running import difference_of_runs, epochs_logged, launching, log_of, result_of

pytestmark = pytest.mark.slow

RECIPE = ("--method", "code-cl", "--tasks", "3", "--epochs", "3", "--set", "overlap=0.0", "--set", "batch_size=60")
TINY = ("--method", "code-cl", "--tasks", "2", "--epochs", "2", "--set", "overlap=0.0", "--set", "batch_size=400")


@pytest.fixture(scope="module")
def launcher(tmp_path_factory):
    with launching(tmp_path_factory.mktemp("launcher")) as launcher:
        yield launcher


@pytest.fixture(scope="module")
def whole(launcher, tmp_path_factory):
    """Runs that nobody disturbed, by recipe."""
    made = {}
    for recipe in (RECIPE, TINY):
        made[recipe] = tmp_path_factory.mktemp("whole") / "run"
        assert launcher.run("run", *recipe, "--out", made[recipe]) == 0
    return made


def assert_same_run(path, whole):
    assert difference_of_runs(path, whole) == ""


def again(path, recipe, number):
    """Both ways to go on, in turn; without a recipe on disk only the same command can."""
    if number % 2 and (path / "recipe.toml").exists():
        return ("run", "--resume", path)
    return ("run", *recipe, "--out", path)


@pytest.mark.parametrize("what", ["fsync", "replace", "half"])
def test_killed_at_every_step_of_writing(what, launcher, whole, tmp_path):
    """Before each file is synced, before each is renamed, and in the middle of each checkpoint."""
    for n in itertools.count(1):
        path = tmp_path / f"{what}-{n}"
        if launcher.run("run", *TINY, "--out", path, die=(what, n)) == 0:
            break
        before = epochs_logged(path)
        if (path / "result.json").exists():  # killed when all was done but removing the checkpoints
            assert result_of(path)["accuracy"] == result_of(whole[TINY])["accuracy"]
            continue
        assert launcher.run(*again(path, TINY, n)) == 0
        assert_same_run(path, whole[TINY])
        resumed = [e for e in log_of(path) if e["event"] == "resume"]
        kept = sum(resumed[0]["epochs"]) + resumed[0]["epoch"] if resumed else 0
        assert kept >= before - 1, f"{before - kept} epochs lost"
    assert n > {"fsync": 15, "replace": 8, "half": 6}[what]


def test_killed_again_and_again_at_drawn_moments(launcher, whole, tmp_path):
    draw, path, kills, number = random.Random(7), tmp_path / "run", 0, 0
    while not (path / "result.json").exists():
        process = launcher.start(*again(path, RECIPE, number))
        time.sleep(draw.uniform(0.0, 0.35) if kills < 12 else 0)
        if kills < 12:
            process.kill()
        kills += process.wait() == -signal.SIGKILL
        number += 1
    assert kills >= 3
    assert_same_run(path, whole[RECIPE])


def test_killed_between_two_tasks(launcher, whole, tmp_path):
    path = tmp_path / "run"
    process = launcher.start("run", *RECIPE, "--out", path)
    while '"event": "task"' not in ((path / "log.jsonl").read_text() if (path / "log.jsonl").exists() else ""):
        pass
    process.kill()
    assert process.wait() == -signal.SIGKILL
    assert launcher.run("run", "--resume", path) == 0
    assert_same_run(path, whole[RECIPE])


def test_a_finished_run_says_so_and_is_left_alone(launcher, whole):
    path = whole[TINY]
    before = {file: file.stat().st_mtime_ns for file in path.iterdir()}
    for command in (("run", "--resume", path), ("run", *TINY, "--out", path)):
        process = launcher.start(*command)
        assert process.wait() == 0
        assert process.out.read_text().startswith("this run was finished already")
    assert {file: file.stat().st_mtime_ns for file in path.iterdir()} == before


# The command as a person types it: a Python of its own each time.


def command(*arguments):
    line = [sys.executable, "-m", "codecl", *map(str, arguments)]
    return subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_python_m_codecl_killed_in_the_first_second_and_while_a_checkpoint_is_written(whole, launcher, tmp_path):
    path = tmp_path / "run"
    with command("run", *RECIPE, "--out", path) as process:
        time.sleep(0.5)  # importing
        process.send_signal(signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL
    assert not path.exists()
    with command("run", *RECIPE, "--out", path) as process:
        while not any(path.glob("*.ckpt.new")) and process.poll() is None:
            pass
        process.send_signal(signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL
    assert (path / "recipe.toml").exists()
    assert launcher.run("run", "--resume", path) == 0
    assert_same_run(path, whole[RECIPE])


def test_ctrl_c_says_that_the_same_command_goes_on(whole, launcher, tmp_path):
    for attempt in range(5):  # on a busy machine the run may end before it is interrupted
        path = tmp_path / f"run{attempt}"
        process = launcher.start("run", *RECIPE, "--out", path)
        process.until(lambda: epochs_logged(path) >= 2 and "epoch 2/3" in process.out.read_text())  # noqa: B023
        process.kill(signal.SIGINT)
        if (code := process.wait()) != 0:
            break
    assert code == 130
    said = "codecl: stopped. What was computed is kept; the same command again goes on.\n"
    assert process.err.read_text() == said
    assert "epoch 2/3" in process.out.read_text()
    assert launcher.run("run", *RECIPE, "--out", path) == 0
    assert_same_run(path, whole[RECIPE])
    assert sum(e["event"] == "resume" for e in log_of(path)) == 1


def test_ctrl_c_stops_a_comparison_and_its_runs(whole, launcher, tmp_path):
    """The run under way is stopped with it, the next is not begun, and the same command finishes both."""
    asked = ("compare", "--methods", "code-cl", "--seeds", "0,1", "--out", tmp_path, *RECIPE[2:])
    process = launcher.start(*asked)
    process.until(lambda: epochs_logged(tmp_path / "code-cl-seed0") >= 2)
    process.kill(signal.SIGINT)
    assert process.wait() == 130
    said = "codecl: stopped. What was computed is kept; the same command again goes on.\n"
    assert process.err.read_text().endswith(said)
    assert "Traceback" not in process.err.read_text()
    before = [epochs_logged(tmp_path / f"code-cl-seed{seed}") for seed in (0, 1)]
    assert before[1] == 0
    time.sleep(0.5)
    assert [epochs_logged(tmp_path / f"code-cl-seed{seed}") for seed in (0, 1)] == before  # nobody goes on
    assert launcher.run(*asked) == 0
    assert_same_run(tmp_path / "code-cl-seed0", whole[RECIPE])
    assert result_of(tmp_path / "code-cl-seed1")["seed"] == 1


def test_a_reader_that_goes_away_is_no_error():
    read, write = os.pipe()
    os.close(read)
    line = [sys.executable, "-m", "codecl", "methods"]
    with os.fdopen(write, "w") as stdout:
        environment = os.environ | {"PYTHONUNBUFFERED": ""}  # the error comes when the buffer is flushed
        process = subprocess.run(line, stdout=stdout, stderr=subprocess.PIPE, text=True, env=environment)
    assert process.stderr == ""
    assert process.returncode == 1

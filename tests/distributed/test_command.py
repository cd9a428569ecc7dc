"""``codecl run`` on two processes: the numbers of one, also after a process was killed."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

RUN = ["run", "--preset", "fast", "--tasks", "2", "--set", "batch_size=64"]


def start(arguments: Sequence[str]) -> list[subprocess.Popen[str]]:
    """Two processes of one run, as torchrun starts them."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2", "OMP_NUM_THREADS": "1"}
    shared |= {"PYTHONPATH": os.pathsep.join(sys.path), "TORCH_CPP_LOG_LEVEL": "ERROR"}
    command = [sys.executable, "-m", "codecl", *arguments]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return [subprocess.Popen(command, env=os.environ | shared | {"RANK": rank}, **pipes) for rank in "01"]  # type: ignore[call-overload]


def accuracy(run: Path) -> list[list[float | None]]:
    return json.loads((run / "result.json").read_text())["accuracy"]  # type: ignore[no-any-return]


LOSING = """
import atexit, sys
from codecl.__main__ import main
from codecl.cli import run
from codecl.runs.processes import ProcessLost

def lose(_):
    raise ProcessLost("another process has ended")

atexit.register(print, "the interpreter shuts down")
run.run_one = lose
print("learning")
sys.exit(main())
"""


def test_a_process_that_lost_another_is_left_before_its_threads_can_ask_for_an_interpreter_that_ends() -> None:
    command = [sys.executable, "-c", LOSING, "run"]
    ended = subprocess.run(
        command, capture_output=True, text=True, env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (2, "learning\n", "codecl: another process has ended\n")


def test_a_killed_process_ends_the_run_with_a_message_and_it_resumes(tmp_path: Path) -> None:
    epochs = ["--epochs", "16"]
    first, second = start([*RUN, *epochs, "--out", str(tmp_path / "two")])
    log = tmp_path / "two" / "log.jsonl"
    deadline = time.monotonic() + 120
    while not (log.exists() and log.read_text().count('"epoch"') >= 3):
        assert time.monotonic() < deadline
        assert first.poll() is None, first.communicate()[1]
        time.sleep(0.05)
    second.kill()
    out, err = first.communicate(timeout=120)
    assert first.returncode == 2, (out, err)
    assert err.strip().splitlines()[-1].startswith("codecl: another process of this run has ended.")
    assert "Traceback" not in err
    assert not (tmp_path / "two" / "result.json").exists()
    second.communicate()

    resumed = start(["run", "--resume", str(tmp_path / "two")])
    outputs = [process.communicate(timeout=240) for process in resumed]
    assert [process.returncode for process in resumed] == [0, 0], outputs
    assert "ACC" in outputs[0][0]
    assert outputs[1][0] == ""

    alone = [sys.executable, "-m", "codecl", *RUN, *epochs, "--quiet", "--out", str(tmp_path / "one")]
    subprocess.run(alone, check=True, capture_output=True, env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)})
    for two, one in zip(accuracy(tmp_path / "two"), accuracy(tmp_path / "one"), strict=True):
        for a, b in zip(two, one, strict=True):
            assert a == pytest.approx(b, abs=0.51), "two of 397 test inputs, by rounding"

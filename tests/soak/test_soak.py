"""A small fixed part of the soak, and that it finds what is wrong."""

import subprocess
import sys

import pytest

HALF_WRITTEN = """
import runpy, sys
from codecl.training import checkpoint
checkpoint.write_atomically = lambda path, content: path.write_bytes(content)
checkpoint.load = lambda path: checkpoint.torch.load(path, weights_only=True)
sys.argv = ["soak", *sys.argv[1:]]
runpy.run_module("tests.soak", run_name="__main__")
"""


def soak(*arguments, code=("-m", "tests.soak")):
    line = [sys.executable, *code, *arguments, "--seed", "0"]
    return subprocess.run(line, capture_output=True, text=True)


@pytest.mark.slow
def test_no_difference_after_kills_and_faults():
    done = soak("--methods", "code-cl,hat,er", "--trials", "4")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("soak: seed 0\n")
    assert " 4 runs finished, 0 differences; first faults at 4 of the " in done.stdout.splitlines()[-1]


@pytest.mark.slow
def test_checkpoints_that_are_written_in_place_are_found_out_and_the_trial_is_named():
    done = soak("--methods", "finetune", "--trials", "4", code=("-c", HALF_WRITTEN))
    assert done.returncode == 1, done.stdout + done.stderr
    assert "again: python -m tests.soak --seed 0 --first " in done.stdout

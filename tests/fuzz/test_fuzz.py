"""A few fixed cases of every target, past findings included; and that the fuzzer finds what is wrong."""

import random
import subprocess
import sys

import pytest

from tests.fuzz.mutate import HOSTILE, mutate

pytestmark = pytest.mark.slow

RAW_ERROR = """
import runpy
from codecl.benchmarks.data import mnist
def read_idx(path, shape, most):
    raise KeyError("an error that no reader may raise")
mnist._read_idx = read_idx
runpy.run_module("tests.fuzz", run_name="__main__")
"""


def fuzz(*arguments, code=("-m", "tests.fuzz")):
    line = [sys.executable, *code, "--seed", "0", "--seconds", "300", *arguments]
    return subprocess.run(line, capture_output=True, text=True)


def test_nothing_escapes_from_past_findings_and_a_few_mutations():
    done = fuzz("--cases", "6")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1].endswith(" 21 targets, 0 findings")


def test_an_error_that_escapes_is_found_and_its_case_kept():
    done = fuzz("--cases", "1", "--target", "idx.gz", code=("-c", RAW_ERROR))
    assert done.returncode == 1, done.stdout + done.stderr
    assert "idx.gz: KeyError: 'an error that no reader may raise'" in done.stdout
    assert "again: python -m tests.fuzz --target 'idx.gz' --case " in done.stdout


@pytest.mark.parametrize(
    ("kind", "data"),
    [
        ("binary", bytes(50)),
        ("json", b'{"a": [1, {"b": 2}]}'),
        ("jsonl", b'{"a": 1}\n{"b": 2}\n'),
        ("toml", b"a = 1\nb = 2\n"),
    ],
)
def test_the_same_seed_draws_the_same_mutations_and_others_draw_others(kind, data):
    first, again = ([mutate(random.Random(seed), data, kind) for seed in range(200)] for _ in range(2))
    assert first == again
    assert len(set(first)) > 60
    if kind != "binary":
        assert any(value.encode() in case for case in first for value in HOSTILE[6:])

"""Faults of a benchmark of the user's own: each is one line that names what is wrong, and exit code 2."""

import sys

import pytest

from codecl.cli.main import main

SOUND = """
import math

import torch
from torch import nn
from torch.utils.data import Dataset

from codecl import MultiHead
from codecl.benchmarks.registry import Benchmark
from codecl.training.stream import Stream, Task


class Items(Dataset):
    def __init__(self, at=None, value=None):
        self.x, self.at, self.value = torch.arange(240.0).sin().reshape(40, 6), at, value

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        if i == self.at and self.value is None:
            raise ValueError("the file is cut off")
        return (torch.full((6,), self.value) if i == self.at else self.x[i]), i % 2


class Classes(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 2)

    def forward(self, x):
        return self.layer(x).argmax(1)


def stream(root, seed, first=None):
    sound = Items()
    train = [first or sound, sound, sound]
    return Stream("items", [Task(f"part {t}", 2, train[t], sound, sound) for t in range(3)])


def failing(*_):
    raise RuntimeError("no such disk")


def network(stream, classes=2):
    return MultiHead(nn.Sequential(nn.Linear(6, 8), nn.ReLU()), 8, classes)


def with_stream(function):
    return Benchmark("one's own", 3, function, network)


def with_network(function):
    return Benchmark("one's own", 3, stream, function)


ONE_OUTPUT = with_network(lambda stream: network(stream, 1))
ONE_HEAD = with_network(lambda stream: network(stream, [2]))
LIST = with_stream(lambda root, seed: list(stream(root, seed).tasks))
RAISING = with_stream(failing)
UNBUILT = with_network(failing)
TEXT = with_network(lambda stream: "a network")
CLASSES = with_network(lambda stream: Classes())
CUT = with_stream(lambda root, seed: stream(root, seed, Items(17)))
NOT_A_NUMBER = with_stream(lambda root, seed: stream(root, seed, Items(17, math.nan)))
INFINITE = with_stream(lambda root, seed: stream(root, seed, Items(0, math.inf)))
GOOD = with_network(network)
"""
FAULTS = {
    "ONE_OUTPUT": "task 'part 0' has 2 classes, and the network's output for it 1: the cross entropy needs",
    "ONE_HEAD": "the stream has 3 tasks, and the network names the heads of 1: classes=[2]. Name those of all tasks",
    "LIST": "faulty:LIST: its function stream must return a codecl.training.stream.Stream; got list. Return Stream(",
    "RAISING": "faulty:RAISING: its function stream failed: RuntimeError: no such disk.",
    "UNBUILT": "faulty:UNBUILT: its function network failed: RuntimeError: no such disk.",
    "TEXT": "faulty:TEXT: its function network must return a torch.nn.Module; got str. Return the network itself",
    "CLASSES": "task 'part 0': for 2 inputs the network puts out [2] of torch.int64; the cross entropy needs [2, 2]",
    "CUT": "task 'part 0', train part: its item 17 cannot be read (ValueError: the file is cut off). Repair it",
    "NOT_A_NUMBER": "task 'part 0', train part: its item 17 holds NaN or infinite values. Remove or replace them.",
    "INFINITE": "task 'part 0', train part: its item 0 holds NaN or infinite values.",
}


@pytest.fixture
def faulty(tmp_path, monkeypatch):
    (tmp_path / "faulty.py").write_text(SOUND)
    monkeypatch.syspath_prepend(tmp_path)
    yield lambda name, *more: main(
        ["run", "--method", "gpm", "--benchmark", f"faulty:{name}", "--out", str(tmp_path / "run"), "--quiet",
         "--epochs", "1", *more]
    )  # fmt: skip
    sys.modules.pop("faulty", None)


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_of_a_benchmark_is_one_line(faulty, name, capsys):
    assert faulty(name) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert FAULTS[name] in err


def test_an_item_that_cannot_be_read_is_one_line_from_another_process_too(faulty, capsys):
    assert faulty("CUT", "--set", "workers=1") == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert FAULTS["CUT"] in err


def test_the_sound_one_runs(faulty):
    assert faulty("GOOD") == 0

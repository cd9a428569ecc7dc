"""Layers of width 4096: a training step over plain SGD, and the work between two tasks over an epoch of plain SGD."""

import statistics
from collections.abc import Callable
from functools import partial

import torch
from torch import nn

from codecl import MultiHead
from codecl.methods import METHODS, Method
from perf.methods import TASKS, Batch, plain_step, step
from perf.timing import cpu_seconds, in_turn, ratio

WIDTH, SAMPLES, EPOCH = 4096, 125, 100
NAMES = ("code-cl", "gpm")


def measure(repeat: int) -> list[dict[str, object]]:
    """An epoch has 100 steps; it, and the work between tasks, are given in CPU seconds on one thread."""
    cases: dict[str, Callable[[], object]] = {"plain SGD": plain_step(network(), rows)}
    between, ranks = {}, {}
    for name in NAMES:
        method = METHODS[name](network())
        between[name] = _learn(method)
        ranks[name] = [round(weight["rank"]) for weight in method.memory_summary().values()]
        cases[name] = step(method, rows)
    epoch = EPOCH * statistics.median(cpu_seconds(cases["plain SGD"]) for _ in range(5))
    seconds = in_turn(cases, repeat)
    return [
        {
            "step": name,
            "ms": round(1e3 * statistics.median(seconds[name]), 1),
            "ratio": ratio(seconds, name, "plain SGD"),
            "ranks": "/".join(map(str, ranks[name])),
            "between tasks, s": round(between[name], 2),
            "over an epoch": between[name] / epoch,
        }
        for name in NAMES
    ]


def network() -> nn.Module:
    """Two Linear layers of width 4096, without biases, each followed by ReLU."""
    layers = [layer for _ in range(2) for layer in (nn.Linear(WIDTH, WIDTH, bias=False), nn.ReLU())]
    return MultiHead(nn.Sequential(*layers), WIDTH, 10)


def rows(count: int, seed: int) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, WIDTH, generator=generator), torch.randint(0, 10, (count,), generator=generator)


def _learn(method: Method) -> float:
    """Remember four tasks and begin the fifth; the seconds from the end of the fourth on."""
    for t in range(TASKS):
        loader = [rows(SAMPLES, t)]
        method.begin_task(t, loader)
        end = cpu_seconds(partial(method.end_task, loader))
    return end + cpu_seconds(partial(method.begin_task, TASKS, [rows(SAMPLES, TASKS)]))

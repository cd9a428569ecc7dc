"""A benchmark of which a run takes a tenth of a second: what is under test is what it writes, not what it computes."""

import torch
from torch import nn

from codecl.benchmarks.registry import Benchmark
from codecl.networks import MultiHead
from codecl.randomness import seeded
from codecl.training.stream import Stream, Task, Tensors

INPUTS, FEATURES, CLASSES, TASKS = 6, 4, 2, 3


def stream(root, seed):
    """Tasks of random numbers whose class is a linear function of them, another one for every task."""
    tasks = []
    for t in range(TASKS):
        with seeded(seed, "soak", t):
            teacher = torch.randn(INPUTS, CLASSES)
            parts = [torch.randn(count, INPUTS) for count in (16, 8, 8)]
        tasks.append(Task(f"task {t}", CLASSES, *(Tensors(x, (x @ teacher).argmax(1)) for x in parts)))
    return Stream("soak", tasks)


def network(stream):
    """Two layers, and a norm whose statistics belong to the state."""
    layers = nn.Linear(INPUTS, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, FEATURES, bias=False), nn.ReLU()
    return MultiHead(nn.Sequential(*layers), FEATURES, CLASSES)


TINY = Benchmark("three tasks of random numbers", TASKS, stream, network)

"""Permuted MNIST, as GPM's loader makes it: ten tasks, each with the pixels in another order, one head for all."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from codecl.benchmarks.data.mnist import mnist
from codecl.benchmarks.splits import Normalise
from codecl.networks import MLP
from codecl.training.stream import Stream, Task, Tensors

TASKS, PIXELS, VALIDATION = 10, 784, 0.10
NORMALISE = Normalise((0.1307,), (0.3081,))


@dataclass(frozen=True, eq=False)
class Permuted:
    """Normalised images as rows of pixels in a given order."""

    order: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        return NORMALISE(x).flatten(1)[:, self.order]


def stream(root: Path, seed: int, *, list_seed: str = "run") -> Stream:
    """Even the first task is permuted; the first 10 % of the training images are held out, unshuffled."""
    data = mnist(root)
    held = int(VALIDATION * len(data.train))
    tasks = []
    for t, r in enumerate(_shuffled(TASKS, seed if list_seed == "run" else int(list_seed)).tolist()):
        prepare = Permuted(_shuffled(PIXELS, 100 * r + t))
        validation = Tensors(data.train.x[:held], data.train.y[:held], prepare)
        train = Tensors(data.train.x[held:], data.train.y[held:], prepare)
        tasks.append(Task(f"permutation {r}", 10, train, validation, Tensors(data.test.x, data.test.y, prepare)))
    return Stream("permuted-mnist", tasks, data=data.status)


def network(stream: Stream, **_: Any) -> nn.Module:
    return MLP(output=10)


def _shuffled(count: int, seed: int) -> Tensor:
    """``0 … count − 1`` in numpy's legacy shuffle."""
    import numpy

    order = numpy.arange(count)
    numpy.random.RandomState(seed).shuffle(order)
    return torch.from_numpy(order)

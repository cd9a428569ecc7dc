"""Permuted MNIST, as GPM's loader makes it: ten tasks, each with the pixels in another order, one head for all."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from codecl.benchmarks.data.mnist import mnist
from codecl.benchmarks.splits import Normalise, fixed_or_run, shuffled
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
    cut = int(VALIDATION * len(data.train))
    tasks = []
    for t, number in enumerate(shuffled(TASKS, fixed_or_run(list_seed, seed)).tolist()):
        prepare = Permuted(shuffled(PIXELS, 100 * number + t))
        parts = ((data.train, slice(cut, None)), (data.train, slice(cut)), (data.test, slice(None)))
        tensors = [Tensors(images.x[chosen], images.y[chosen], prepare) for images, chosen in parts]
        tasks.append(Task(f"permutation {number}", 10, *tensors))
    return Stream("permuted-mnist", tasks, data=data.status)


def network(stream: Stream, **_: Any) -> nn.Module:
    return MLP(output=10)

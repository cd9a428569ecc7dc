"""5-Datasets (Ebrahimi et al., 2020), as GPM's loader prepares it and the papers of its family run it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch.nn.functional as F

from codecl.benchmarks.data.cifar import cifar10
from codecl.benchmarks.data.images import DataSet, Images, Status
from codecl.benchmarks.data.mnist import fashion_mnist, mnist
from codecl.benchmarks.data.notmnist import notmnist
from codecl.benchmarks.data.svhn import svhn
from codecl.benchmarks.splits import CIFAR, Normalise, make_task
from codecl.training.stream import Stream

VALIDATION, SPLIT_SEED, SIDE = 0.05, 1, 32  # the seed is the loader's own, not that of the run

READERS: dict[str, tuple[Callable[[Path], DataSet], Normalise]] = {
    "CIFAR-10": (cifar10, CIFAR),
    "MNIST": (mnist, Normalise((0.1,), (0.2752,), repeat=3)),
    "SVHN": (svhn, Normalise((0.4377, 0.4438, 0.4728), (0.198, 0.201, 0.197))),
    "Fashion-MNIST": (fashion_mnist, Normalise((0.2190,), (0.3318,), repeat=3)),
    "notMNIST": (notmnist, Normalise((0.4254,), (0.4501,), repeat=3)),
}
ORDERS = {
    "loader": ("CIFAR-10", "MNIST", "SVHN", "Fashion-MNIST", "notMNIST"),
    "text": ("CIFAR-10", "MNIST", "SVHN", "notMNIST", "Fashion-MNIST"),
}
"""The order of the published loader and of the paper's table of statistics, and that of the paper's section 4.1."""


def stream(root: Path, seed: int, *, fashion: str = "true", order: str = "loader") -> Stream:
    """Five tasks of ten classes.

    ``fashion="mnist"`` shows the digits of MNIST in the place of Fashion-MNIST, normalised as Fashion-MNIST: with a
    recent torchvision that is what the published loader does, and published numbers may be on it.
    """
    tasks, statuses = [], []
    for name in ORDERS[order]:
        read, normalise = READERS[name]
        data = mnist(root) if name == "Fashion-MNIST" and fashion == "mnist" else read(root)
        train, test = _padded(data.train), _padded(data.test)
        tasks.append(make_task(name, 10, train, test, normalise, VALIDATION, SPLIT_SEED))
        statuses.append(data.status)
    return Stream("5-datasets", tasks, data=worst(statuses))


def worst(statuses: list[Status]) -> Status:
    """A stream is only as complete as its least complete data set."""
    return max(statuses, key=("official", "whole", "subset").index)


def _padded(images: Images) -> Images:
    """Images of 28 × 28 get a black border of two pixels."""
    border = (SIDE - images.x.shape[-1]) // 2
    return Images(F.pad(images.x, (border,) * 4), images.y) if border else images

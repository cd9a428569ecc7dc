"""CIFAR-100 as a stream: split in ten, with overlapping classes, and by superclass."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from codecl.benchmarks.data.cifar import cifar100, superclasses
from codecl.benchmarks.data.images import DataSet, Images
from codecl.benchmarks.splits import CIFAR, Normalise, fixed_or_run, make_task, select_classes
from codecl.training.stream import Stream

VALIDATION = 0.05
OVERLAPPING = (0, 5, 10, 20, 25, 30, 40)
"""The first class of each of the seven tasks of OL-CIFAR100, ten classes each (CUBER, and section 4 of the paper)."""

ORDERS = (
    tuple(range(20)),
    (15, 12, 5, 9, 7, 16, 18, 17, 1, 0, 3, 8, 11, 14, 10, 6, 2, 4, 13, 19),
    (17, 1, 19, 18, 12, 7, 6, 0, 11, 15, 10, 5, 13, 3, 9, 16, 4, 14, 2, 8),
    (11, 9, 6, 5, 12, 4, 0, 10, 13, 7, 14, 3, 15, 16, 8, 1, 2, 19, 18, 17),
    (6, 14, 0, 11, 12, 17, 13, 4, 9, 1, 7, 19, 8, 10, 3, 15, 18, 5, 2, 16),
)
"""The task orders of the superclass benchmark; the last four are from APD (Yoon et al., 2020)."""


def split(root: Path, seed: int, *, split_seed: str = "0") -> Stream:
    """Ten tasks of ten classes in their natural order."""
    groups = [range(first, first + 10) for first in range(0, 100, 10)]
    return _stream("split-cifar100", cifar100(root), groups, fixed_or_run(split_seed, seed), CIFAR)


def overlapping(root: Path, seed: int, *, split_seed: str = "0") -> Stream:
    """Seven tasks over the first 50 classes, some of which are in two tasks."""
    groups = [range(first, first + 10) for first in OVERLAPPING]
    return _stream("ol-cifar100", cifar100(root), groups, fixed_or_run(split_seed, seed), CIFAR)


def superclass(root: Path, seed: int, *, pixels: str = "true", order: str = "0") -> Stream:
    """Twenty tasks, one for each coarse class, of its five fine classes in ascending order.

    ``pixels="scrambled"`` is what the published loaders feed the network: they read the planes of an image as if they
    were interleaved. Published numbers of this benchmark are on such images.
    """
    data, coarse = superclasses(root)
    if pixels == "scrambled":
        data = DataSet(_scrambled(data.train), _scrambled(data.test), data.status)
    groups = [torch.nonzero(coarse == c).flatten().tolist() for c in ORDERS[int(order)]]
    plain = Normalise((0.0, 0.0, 0.0), (1.0, 1.0, 1.0))  # scaled to [0, 1] and no further
    return _stream("cifar100-superclass", data, groups, 0, plain)


def _stream(name: str, data: DataSet, groups: Sequence[Sequence[int]], seed: int, normalise: Normalise) -> Stream:
    tasks = []
    for group in groups:
        train, test = (select_classes(part, torch.tensor(list(group))) for part in (data.train, data.test))
        label = f"classes {group[0]}–{group[-1]}"
        tasks.append(make_task(label, len(group), train, test, normalise, VALIDATION, seed))
    return Stream(name, tasks, data=data.status)


def _scrambled(images: Images) -> Images:
    """``x[c, h, w] = raw[96 h + 3 w + c]``."""
    raw = images.x.flatten(1)
    return Images(raw.reshape(-1, 32, 32, 3).permute(0, 3, 1, 2).contiguous(), images.y)

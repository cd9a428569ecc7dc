"""Split miniImageNet, 20 tasks of 5 classes, in the two protocols that the literature mixes.

``avalanche``, which CODE-CL runs: all images in one seeded split that does not look at classes, classes shuffled once
for all runs, the CIFAR normalisation, an adaptive pool at the end of the network. ``gpm``, which the GPM family runs:
500 + 100 images of every class, classes drawn by seed, 2 % of the training images held out, the ImageNet
normalisation, a plain average pool.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from codecl.benchmarks.data.miniimagenet import ByClass, miniimagenet
from codecl.benchmarks.splits import CIFAR, Normalise, fixed_or_run, labels_among, shuffled, with_heads
from codecl.networks import MultiHead, ReducedResNet18
from codecl.randomness import generator
from codecl.training.stream import Stream, Task, Tensors

TASKS, CLASSES, SIDE = 20, 5, 84
IMAGENET = Normalise((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


def stream(root: Path, seed: int, *, protocol: str = "avalanche", class_seed: str = "37") -> Stream:
    data = miniimagenet(root)
    if protocol == "avalanche":
        split, normalise = _avalanche(data), CIFAR
        order = torch.randperm(100, generator=torch.Generator().manual_seed(1234))
    else:
        split, normalise = _gpm(data, seed), IMAGENET
        order = shuffled(100, fixed_or_run(class_seed, seed))
    tasks = []
    for classes in order.reshape(TASKS, CLASSES):
        parts = []
        for indices in split:
            labels = labels_among(classes, data.y[indices])
            parts.append(Tensors(data.x[indices[labels >= 0]], labels[labels >= 0], normalise))
        tasks.append(Task(f"classes {' '.join(map(str, classes.tolist()))}", CLASSES, *parts))
    return Stream("split-miniimagenet", tasks, data=data.status)


def network(stream: Stream, protocol: str = "avalanche", **_: str) -> MultiHead:
    pool: Literal["adaptive", "average"] = "adaptive" if protocol == "avalanche" else "average"
    return with_heads(lambda: ReducedResNet18(image_size=SIDE, stride=2, pool=pool))(stream)


def _avalanche(data: ByClass) -> tuple[Tensor, Tensor, Tensor]:
    """2375, 125 and 500 of every 3000 images, drawn over all classes at once with seed 42."""
    n = len(data)
    order = torch.randperm(n, generator=torch.Generator().manual_seed(42))
    train, validation = n * 2375 // 3000, n * 125 // 3000
    return order[:train], order[train : train + validation], order[train + validation :]


def _gpm(data: ByClass, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Of each class, shuffled with seed 1234, five sixths to train and the rest to test; 2 % of the former held out."""
    train, test = [], []
    for c in range(len(data.classes)):
        indices = data.indices_of(c)
        indices, cut = indices[shuffled(len(indices), 1234)], len(indices) * 5 // 6
        train.append(indices[:cut])
        test.append(indices[cut:])
    learn = torch.cat(train)
    learn = learn[torch.randperm(len(learn), generator=generator(seed, "split-miniimagenet", "validation"))]
    validation = int(0.02 * len(learn))
    return learn[validation:], learn[:validation], torch.cat(test)

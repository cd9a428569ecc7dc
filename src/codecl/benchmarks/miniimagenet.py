"""Split miniImageNet, 20 tasks of 5 classes, in the two protocols that the literature mixes.

``avalanche``, which CODE-CL runs: all images in one seeded split that does not look at classes, classes shuffled once
for all runs, the CIFAR normalisation, an adaptive pool at the end of the network. ``gpm``, which the GPM family runs:
500 + 100 images of every class, classes drawn by seed, 2 % of the training images held out, the ImageNet
normalisation, a plain average pool.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from codecl.benchmarks.data.miniimagenet import ByClass, miniimagenet
from codecl.benchmarks.splits import CIFAR_MEAN, CIFAR_STD, Normalise, shuffled
from codecl.networks import MultiHead, ReducedResNet18
from codecl.randomness import generator
from codecl.training.stream import Stream, Task, Tensors

TASKS, CLASSES, SIDE = 20, 5, 84
IMAGENET = Normalise((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


def stream(root: Path, seed: int, *, protocol: str = "avalanche", class_seed: str = "37") -> Stream:
    data = miniimagenet(root)
    if protocol == "avalanche":
        split, normalise = _avalanche(data), Normalise(CIFAR_MEAN, CIFAR_STD)
        order = torch.randperm(100, generator=torch.Generator().manual_seed(1234))
    else:
        split, normalise = _gpm(data, seed), IMAGENET
        order = shuffled(100, seed if class_seed == "run" else int(class_seed))
    tasks = []
    for classes in order.reshape(TASKS, CLASSES):
        train, validation, test = (_select(data, indices, classes, normalise) for indices in split)
        tasks.append(Task(f"classes {' '.join(map(str, classes.tolist()))}", CLASSES, train, validation, test))
    return Stream("split-miniimagenet", tasks, data=data.status)


def network(stream: Stream, protocol: str = "avalanche", **_: Any) -> nn.Module:
    backbone = ReducedResNet18(image_size=SIDE, stride=2, pool="adaptive" if protocol == "avalanche" else "average")
    return MultiHead(backbone, backbone.features, [task.classes for task in stream.tasks])


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
        indices = indices[shuffled(len(indices), 1234)]
        cut = len(indices) * 5 // 6
        train.append(indices[:cut])
        test.append(indices[cut:])
    learn = torch.cat(train)
    learn = learn[torch.randperm(len(learn), generator=generator(seed, "split-miniimagenet", "validation"))]
    validation = int(0.02 * len(learn))
    return learn[validation:], learn[:validation], torch.cat(test)


def _select(data: ByClass, indices: Tensor, classes: Tensor, normalise: Normalise) -> Tensors:
    place = torch.full((len(data.classes),), -1)
    place[classes] = torch.arange(len(classes))
    labels = place[data.y[indices]]
    chosen = indices[labels >= 0]
    return Tensors(data.x[chosen], labels[labels >= 0], normalise)

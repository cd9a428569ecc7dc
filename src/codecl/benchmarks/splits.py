"""What the benchmarks have in common: normalising on the fly, and the validation split that the field shares."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from codecl.benchmarks.data.images import Images, library
from codecl.training.stream import Task, Tensors

CIFAR_MEAN = (125.3 / 255, 123.0 / 255, 113.9 / 255)
CIFAR_STD = (63.0 / 255, 62.1 / 255, 66.7 / 255)


@dataclass(frozen=True)
class Normalise:
    """uint8 images as float32, ``(x / 255 − mean) / std`` for each channel; grey ones become ``repeat`` channels."""

    mean: tuple[float, ...]
    std: tuple[float, ...]
    repeat: int = 1

    def __call__(self, x: Tensor) -> Tensor:
        shape = (1, -1, 1, 1)
        scale = torch.tensor([1 / (255 * s) for s in self.std], device=x.device).reshape(shape)
        shift = torch.tensor([-m / s for m, s in zip(self.mean, self.std, strict=True)], device=x.device).reshape(shape)
        return x.to(torch.float32).mul_(scale).add_(shift).repeat(1, self.repeat, 1, 1)


def shuffled(count: int, seed: int) -> Tensor:
    """``0 … count − 1`` in numpy's legacy shuffle, which the published loaders use (scikit-learn's is the same)."""
    return torch.from_numpy(library("numpy", "NumPy").random.RandomState(seed).permutation(count))


def split_indices(count: int, validation: float, seed: int) -> tuple[Tensor, Tensor]:
    """Training and validation indices as GPM's loaders draw them: the first share of a seeded shuffle is validation."""
    indices = shuffled(count, seed)
    cut = int(validation * count)
    return indices[cut:], indices[:cut]


def select_classes(images: Images, classes: Tensor) -> Images:
    """The images of ``classes``, in their order in the file, with the place in ``classes`` as their label."""
    place = torch.full((int(images.y.max()) + 1,), -1)
    place[classes] = torch.arange(len(classes))
    labels = place[images.y]
    chosen = labels >= 0
    return Images(images.x[chosen], labels[chosen])


def make_task(
    name: str, classes: int, train: Images, test: Images, normalise: Normalise, share: float, seed: int
) -> Task:
    """A task with the share of its training images held out for validation."""
    learn, validation = split_indices(len(train), share, seed)
    return Task(
        name,
        classes,
        train=Tensors(train.x[learn], train.y[learn], normalise),
        validation=Tensors(train.x[validation], train.y[validation], normalise),
        test=Tensors(test.x, test.y, normalise),
    )

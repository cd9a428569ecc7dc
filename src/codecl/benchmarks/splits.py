"""What the benchmarks have in common: normalising on the fly, the validation split that the field shares, and heads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from codecl.benchmarks.data.images import Images, library
from codecl.networks import MultiHead
from codecl.training.stream import Stream, Task, Tensors


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


CIFAR = Normalise((125.3 / 255, 123.0 / 255, 113.9 / 255), (63.0 / 255, 62.1 / 255, 66.7 / 255))


def fixed_or_run(switch: str, seed: int) -> int:
    """The seed that a switch asks for: a fixed one, or ``run``, that of the run."""
    return seed if switch == "run" else int(switch)


def shuffled(count: int, seed: int) -> Tensor:
    """``0 … count − 1`` in numpy's legacy shuffle, which the published loaders use (scikit-learn's is the same)."""
    return torch.from_numpy(library("numpy", "NumPy").random.RandomState(seed).permutation(count))


def labels_among(classes: Tensor, y: Tensor) -> Tensor:
    """The place of each class of ``y`` in ``classes``, −1 where it is none of them."""
    place = torch.full((int(torch.cat([y, classes]).max()) + 1,), -1)
    place[classes] = torch.arange(len(classes))
    return place[y]


def select_classes(images: Images, classes: Tensor) -> Images:
    """The images of ``classes``, in their order in the file, with the place in ``classes`` as their label."""
    labels = labels_among(classes, images.y)
    return Images(images.x[labels >= 0], labels[labels >= 0])


def make_task(
    name: str, classes: int, train: Images, test: Images, normalise: Normalise, share: float, seed: int
) -> Task:
    """A task with the share of its training images held out, the first of a seeded shuffle, as GPM's loaders do it."""
    indices, cut = shuffled(len(train), seed), int(share * len(train))
    learn, held = (Tensors(train.x[part], train.y[part], normalise) for part in (indices[cut:], indices[:cut]))
    return Task(name, classes, train=learn, validation=held, test=Tensors(test.x, test.y, normalise))


def with_heads(backbone: Callable[[], nn.Module], **options: Any) -> Callable[..., MultiHead]:
    """A function that builds the backbone for a stream, with a head for each task; ``options`` are ``MultiHead``'s."""

    def network(stream: Stream, **_: str) -> MultiHead:
        body: Any = backbone()
        return MultiHead(body, body.features, [task.classes for task in stream.tasks], **options)

    return network

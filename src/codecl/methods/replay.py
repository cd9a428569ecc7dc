"""Keeping samples of past tasks, and learning from them again: what A-GEM and ER share.

Samples are kept as the stream stores them, uint8 images where it has such (``batch.raw``), and made into inputs as they
are drawn (``method.decode``, which the trainer sets). In a loop of one's own they are kept as batches bring them: to
keep small ones, let batches be uint8 and normalise in ``forward=``. They stay on the CPU.

A task's samples are taken in during its first epoch. The published codes see every sample once; with more epochs the
task being learned would be counted over and over.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from codecl.methods.method import Method
from codecl.methods.mixed import check_heads


class Sample(NamedTuple):
    """An input as it is stored, its label, and the position of its task."""

    x: Tensor
    y: Tensor
    task: int


class Replay(Method):
    """A method that keeps samples: ``insert`` takes one in, ``samples_kept`` and ``restore`` are its memory as a list.

    Heads of earlier tasks go on training, each with the samples of its own task. One optimizer must train everything,
    by one step for each batch.
    """

    holds_heads: ClassVar[bool] = False
    every_epoch: bool = False
    """Whether samples are taken in again in later epochs."""

    def __init__(self, model: nn.Module, **common: Any) -> None:
        check_heads(self.name, common.get("heads", ()))
        super().__init__(model, **common)
        self._first_epoch = True

    # What a method overrides.

    def insert(self, sample: Sample) -> None:
        """Take in a sample, or not."""
        raise NotImplementedError

    def samples_kept(self) -> list[Sample]:
        """All samples, in an order that ``restore`` understands."""
        raise NotImplementedError

    def restore(self, samples: list[Sample]) -> None:
        """The inverse of ``samples_kept``."""
        raise NotImplementedError

    # What a method uses.

    def draw(self, samples: Sequence[Sample], count: int) -> list[Sample]:
        """``count`` of ``samples`` without repetition, or all if there are no more."""
        if len(samples) <= count:
            return list(samples)
        return [samples[i] for i in torch.randperm(len(samples))[:count].tolist()]

    def batch_of(self, samples: Sequence[Sample]) -> tuple[Tensor, Tensor, Tensor]:
        """Inputs as the model takes them, labels, and positions of tasks."""
        inputs, labels, tasks = [], [], []
        for t, of_task in _by_task(samples):
            x = torch.stack([sample.x for sample in of_task])
            inputs.append(x if self.decode is None else self.decode(t, x))
            labels += [sample.y for sample in of_task]
            tasks += [t] * len(of_task)
        return torch.cat(inputs), torch.stack(labels), torch.tensor(tasks)

    def check_optimizer(self, parameters: Sequence[nn.Parameter]) -> None:
        """Refuse an optimizer that trains a part of the model."""
        given = set(parameters)
        if missing := [name for name, p in self.model.named_parameters() if p.requires_grad and p not in given]:
            more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
            raise ValueError(
                f"{self.name} makes one step of all that trains, and this optimizer lacks {missing[:3]}{more}. Give "
                "all parameters to one optimizer, or turn requires_grad off where nothing is to be learned."
            )

    # Memory.

    def after_step(self) -> None:
        if self._first_epoch or self.every_epoch:
            for sample in self._samples_of(self.batch):
                self.insert(sample)

    def end_epoch(self) -> None:
        self._first_epoch = False

    def remember(self, loader: Iterable[Any] | None) -> None:
        self._first_epoch = True

    def memory_state(self) -> Any:
        return {"samples": pack(self.samples_kept()), "first_epoch": self._first_epoch}

    def load_memory(self, state: Any) -> None:
        self.restore(unpack(state["samples"]))
        self._first_epoch = bool(state["first_epoch"])

    def kept_state(self) -> Any:
        return self.memory_state()

    def load_kept(self, state: Any) -> None:
        self.load_memory(state)

    def _samples_of(self, batch: Any) -> Iterator[Sample]:
        x, y = pair(self.name, batch)
        x = getattr(batch, "raw", x) if self.decode is not None else x
        for i in range(len(y)):
            yield Sample(x[i].detach().to("cpu", copy=True), y[i].detach().to("cpu", copy=True), len(self.tasks) - 1)


def pair(method: str, batch: Any) -> tuple[Tensor, Tensor]:
    """The inputs and labels of ``batch``."""
    values = list(batch[:2]) if isinstance(batch, (tuple, list)) else []
    if len(values) == 2 and all(isinstance(v, Tensor) and v.ndim for v in values) and len(values[0]) == len(values[1]):
        return values[0], values[1]
    raise TypeError(
        f"{method} keeps single samples: a batch must begin with a tensor of inputs and one of as many labels; "
        f"got {type(batch).__name__}."
    )


def pack(samples: Sequence[Sample]) -> dict[str, list[Any]]:
    """Samples as one tensor for each task; inputs of different tasks may have different shapes."""
    places = {id(sample): i for i, sample in enumerate(samples)}
    groups = list(_by_task(samples))
    return {
        "task": [t for t, _ in groups],
        "x": [torch.stack([sample.x for sample in of]) for _, of in groups],
        "y": [torch.stack([sample.y for sample in of]) for _, of in groups],
        "place": [torch.tensor([places[id(sample)] for sample in of]) for _, of in groups],
    }


def unpack(packed: dict[str, list[Any]]) -> list[Sample]:
    """The inverse of ``pack``."""
    found: dict[int, Sample] = {}
    for t, xs, ys, places in zip(packed["task"], packed["x"], packed["y"], packed["place"], strict=True):
        for x, y, place in zip(xs, ys, places.tolist(), strict=True):
            found[place] = Sample(x.to("cpu", copy=True), y.to("cpu", copy=True), t)
    return [found[place] for place in sorted(found)]


def _by_task(samples: Sequence[Sample]) -> Iterator[tuple[int, list[Sample]]]:
    for t, of_task in groupby(sorted(samples, key=lambda sample: sample.task), lambda sample: sample.task):
        yield t, list(of_task)

"""Streams of tasks: what is learned, independent of any method.

A part of a task (train, validation, test) has a length and gives batches by index: tensors in memory, or any map-style
dataset.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset, default_collate

Batch = tuple[Tensor, ...]
"""Inputs and labels; in joint training, the position of the task of each as well."""


class Prepared(Batch):
    """A batch that also has its inputs as they are stored, ``raw``: uint8 images, say, a quarter of the size."""

    raw: Tensor

    @classmethod
    def with_raw(cls, batch: Batch, raw: Tensor) -> Prepared:
        made = cls(batch)
        made.raw = raw
        return made


class Part(Protocol):
    """Some labelled inputs."""

    def __len__(self) -> int: ...

    def take(self, indices: Tensor) -> Batch:
        """The inputs and labels at ``indices``, as one batch."""


@dataclass(frozen=True, eq=False)
class Tensors:
    """Inputs and labels in memory; ``prepare`` turns a batch of inputs, uint8 images say, into a network's input."""

    inputs: Tensor
    labels: Tensor
    prepare: Callable[[Tensor], Tensor] | None = None

    def __post_init__(self) -> None:
        if len(self.inputs) != len(self.labels):
            raise ValueError(f"as many labels as inputs are needed; got {len(self.labels)} and {len(self.inputs)}.")

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, indices: Tensor) -> Batch:
        x, y = self.inputs[indices], self.labels[indices]
        if self.prepare is None:
            return x, y
        raw = x.clone()  # prepare may work in place
        return Prepared.with_raw((self.prepare(x), y), raw)


@dataclass(frozen=True, eq=False)
class FromDataset:
    """Any map-style dataset of ``(input, label)``, read as it is needed."""

    dataset: Dataset[Any]
    collate: Callable[[list[Any]], Any] = default_collate

    def __len__(self) -> int:
        return len(self.dataset)  # type: ignore[arg-type]

    def take(self, indices: Tensor) -> Batch:
        x, y = self.collate([self.dataset[i] for i in indices.tolist()])
        return x, torch.as_tensor(y)


def as_part(data: Any) -> Part:
    """A part from a ``Part``, a pair of tensors, a map-style dataset, or a DataLoader over one.

    >>> len(as_part((torch.zeros(5, 2), torch.zeros(5))))
    5
    """
    if isinstance(data, (Tensors, FromDataset)):
        return data
    if isinstance(data, (tuple, list)) and len(data) == 2 and all(isinstance(t, Tensor) for t in data):
        return Tensors(*data)
    if isinstance(data, torch.utils.data.DataLoader) and not isinstance(data.dataset, IterableDataset):
        return FromDataset(data.dataset, data.collate_fn)
    if hasattr(data, "take") and hasattr(data, "__len__"):
        part: Part = data
        return part
    if hasattr(data, "__getitem__") and hasattr(data, "__len__") and not isinstance(data, IterableDataset):
        return FromDataset(data)
    raise TypeError(
        "a part of a task is a pair of tensors, a map-style dataset or a DataLoader over one; "
        f"got {type(data).__name__}."
    )


@dataclass(frozen=True, eq=False)
class JointPart:
    """The same part of several tasks as one, for methods that learn all tasks at once.

    Batches are ``(x, y, tasks)``; ``tasks`` has the position of the task of each input.
    """

    parts: Sequence[Part]

    def __len__(self) -> int:
        return sum(len(part) for part in self.parts)

    def take(self, indices: Tensor) -> Batch:
        ends = torch.tensor([len(part) for part in self.parts]).cumsum(0)
        tasks = torch.bucketize(indices, ends, right=True)
        taken, rows = [], []
        for t in sorted(set(tasks.tolist())):
            rows.append(torch.nonzero(tasks == t).flatten())
            taken.append(self.parts[t].take(indices[rows[-1]] - ends[t] + len(self.parts[t])))
        back = torch.cat(rows).argsort()
        x, y = (torch.cat(values)[back] for values in zip(*taken, strict=True))
        return x, y, tasks


@dataclass(frozen=True, eq=False)
class Task:
    """What is learned at one time."""

    name: str
    classes: int
    train: Part
    validation: Part
    test: Part


@dataclass(frozen=True, eq=False)
class Stream:
    """Tasks in their order. ``data`` says which data they hold: ``official``, ``whole`` or a ``subset``."""

    name: str
    tasks: Sequence[Task]
    data: str = "official"

    def __len__(self) -> int:
        return len(self.tasks)

    def first(self, tasks: int | None) -> Stream:
        """The stream cut to its first tasks."""
        if tasks is None:
            return self
        if not 1 <= tasks <= len(self.tasks):
            raise ValueError(f"{self.name} has {len(self.tasks)} tasks; got tasks = {tasks}.")
        return Stream(self.name, self.tasks[:tasks], self.data)

    def decode(self, task: int, raw: Tensor) -> Tensor:
        """The inputs of a task from what its training part stores, which its batches have as ``raw``."""
        part = self.tasks[task].train
        return part.prepare(raw) if isinstance(part, Tensors) and part.prepare is not None else raw


def sizes(inputs: int, size: int) -> list[int]:
    """How ``inputs`` are cut into batches of ``size``, the last one smaller.

    A single input that would be left over joins the batch before: norms with batch statistics need two.

    >>> sizes(10, 4), sizes(9, 4)
    ([4, 4, 2], [4, 5])
    """
    whole, rest = divmod(inputs, size)
    if rest == 1 and whole and size > 1:
        return [size] * (whole - 1) + [size + 1]
    return [size] * whole + [rest] * bool(rest)


@dataclass(frozen=True, eq=False)
class BatchLoader:
    """Batches of a part on a device, read from the part only as they are asked for.

    ``order`` says which inputs, in which order; ``inputs`` is their number.
    """

    part: Part
    size: int
    device: str = "cpu"
    order: Tensor | None = None

    @property
    def inputs(self) -> int:
        return len(self.part) if self.order is None else len(self.order)

    def __len__(self) -> int:
        return len(sizes(self.inputs, self.size))

    def __iter__(self) -> Iterator[Batch]:
        order = torch.arange(len(self.part)) if self.order is None else self.order
        for chosen in order.split(sizes(len(order), self.size)):  # type: ignore[no-untyped-call]
            batch = self.part.take(chosen)
            moved = tuple(value.to(self.device) for value in batch)
            yield Prepared.with_raw(moved, batch.raw) if isinstance(batch, Prepared) else moved

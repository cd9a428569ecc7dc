"""Streams of tasks: what is learned, independent of any method.

A part of a task (train, validation, test) has a length and gives batches by index: tensors in memory, or any map-style
dataset.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    Subset,
    SubsetRandomSampler,
    default_collate,
)

from codecl.errors import UsageError
from codecl.randomness import untouched_randomness
from codecl.text import in_a_line

Batch = tuple[Tensor, ...]
"""Inputs and labels; in joint training, the position of the task of each as well."""
PARTS = ("train", "validation", "test")
WHOLE = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


class UnfitItem(UsageError):
    """An item of a dataset that cannot be learned from; its task, part and index are named."""


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
    """A part from a ``Part``, a pair of tensors or arrays, a map-style dataset, or a DataLoader over one.

    Whole numbers of any width become int64 labels. Of a DataLoader the dataset is taken; the trainer draws its batches.

    >>> len(as_part((torch.zeros(5, 2), torch.zeros(5))))
    5
    """
    if isinstance(data, (tuple, list)) and len(data) == 2 and all(hasattr(values, "shape") for values in data):
        data = Tensors(torch.as_tensor(data[0]), torch.as_tensor(data[1]))
    if isinstance(data, Tensors):
        narrow = data.labels.dtype in WHOLE and data.labels.dtype != torch.int64
        return replace(data, labels=data.labels.long()) if narrow else data
    if isinstance(data, DataLoader) and not isinstance(data.dataset, IterableDataset):
        return FromDataset(_drawn_from(data), data.collate_fn)
    if hasattr(data, "take") and hasattr(data, "__len__"):
        part: Part = data
        return part
    if hasattr(data, "__getitem__") and hasattr(data, "__len__") and not isinstance(data, IterableDataset):
        return FromDataset(data)
    raise TypeError(
        "a part of a task is a pair of tensors, a map-style dataset or a DataLoader over one; "
        f"got {type(data).__name__}."
    )


def _drawn_from(loader: DataLoader[Any]) -> Dataset[Any]:
    """What a DataLoader draws from; refused where it does not draw each of its inputs once an epoch."""
    sampler, dataset = loader.sampler, loader.dataset
    if isinstance(sampler, SubsetRandomSampler):
        return Subset(dataset, list(sampler.indices))
    shuffled = (
        isinstance(sampler, RandomSampler) and not sampler.replacement and len(sampler) == len(sampler.data_source)
    )
    if type(loader.batch_sampler) in (BatchSampler, type(None)) and (
        shuffled or isinstance(sampler, SequentialSampler)
    ):
        return dataset
    odd = sampler if type(loader.batch_sampler) in (BatchSampler, type(None)) else loader.batch_sampler
    raise TypeError(
        f"this DataLoader draws by a {type(odd).__name__}, which would be ignored: the trainer draws batches itself. "
        "Give its dataset, or torch.utils.data.Subset(dataset, indices)."
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
        present = sorted(set(tasks.tolist()))
        taken = [self.parts[t].take(indices[tasks == t] - ends[t] + len(self.parts[t])) for t in present]
        back = tasks.argsort(stable=True).argsort()
        x, y = (torch.cat(values)[back] for values in zip(*taken, strict=True))
        return x, y, tasks


@dataclass(frozen=True, eq=False)
class Task:
    """What is learned at one time. Its parts are anything that ``as_part`` takes, and are checked when it is made.

    Of parts that read files, one input is looked at; the labels of the others when they are read.
    """

    name: str
    classes: int
    train: Part
    validation: Part
    test: Part

    def __post_init__(self) -> None:
        if type(self.classes) is not int or self.classes < 1:
            raise ValueError(f"task {self.name!r}: classes must be a whole number above 0; got {self.classes!r}.")
        for name in PARTS:
            where = f"task {self.name!r}, {name} part"
            try:
                part = as_part(getattr(self, name))
            except (TypeError, ValueError) as error:
                raise type(error)(f"{where}: {error}") from None
            if len(part) == 0:
                raise ValueError(
                    f"{where}: it is empty; every part needs inputs. Hold some of the training inputs out."
                )
            if isinstance(part, Tensors):
                check_inputs(where, part.inputs)
            check_labels(where, part.labels if isinstance(part, Tensors) else _first(where, part)[1], self.classes)
            if isinstance(part, FromDataset):
                part = CheckedDataset(part.dataset, part.collate, where, self.classes)
            object.__setattr__(self, name, part)
        shapes = {name: _shape(getattr(self, name)) for name in PARTS}
        if other := next((name for name in PARTS if shapes[name] != shapes["train"]), None):
            raise ValueError(
                f"task {self.name!r}: its {other} inputs are {shapes[other]}, its train inputs {shapes['train']}. "
                "All parts of a task need inputs of one shape and dtype."
            )


@dataclass(frozen=True, eq=False)
class CheckedDataset(FromDataset):
    """The dataset of a task, whose items are checked as they are read."""

    where: str = ""
    classes: int = 0

    def take(self, indices: Tensor) -> Batch:
        items = [self._item(i) for i in indices.tolist()]
        try:
            x, labels = self.collate(items)
            y = torch.as_tensor(labels)
        except Exception as error:  # whatever the user's collate raises
            raise UnfitItem(
                f"{self.where}: its items {_listed(indices)} cannot be made a batch ({in_a_line(error)}). All items "
                "must be an input of one shape and a label."
            ) from error
        check_labels(self.where, y, self.classes)
        if not _finite(x):
            odd = next((i for i, one in zip(indices.tolist(), x, strict=False) if not _finite(one)), None)
            raise UnfitItem(f"{self.where}: its item {odd} holds NaN or infinite values. Remove or replace them.")
        return x, y

    def _item(self, index: int) -> Any:
        try:
            return self.dataset[index]
        except UsageError:
            raise
        except Exception as error:  # whatever the user's dataset raises
            raise UnfitItem(
                f"{self.where}: its item {index} cannot be read ({in_a_line(error)}). Repair it, or leave it out."
            ) from error


def check_inputs(where: str, inputs: Tensor) -> None:
    """Refuse inputs in memory that are not there, or not finite; ``where`` names the part."""
    if inputs.layout is not torch.strided or inputs.is_meta:
        raise ValueError(f"{where}: inputs must be a dense tensor with values; got {inputs.layout}, {inputs.device}.")
    if not _finite(inputs):
        raise ValueError(f"{where}: its inputs hold NaN or infinite values. Remove or replace them.")


def _finite(inputs: Any) -> bool:
    """Whether no value is NaN or infinite; what are no numbers of a tensor is not looked at."""
    if not (isinstance(inputs, Tensor) and inputs.is_floating_point() and inputs.numel()):
        return True
    return all(map(math.isfinite, torch.aminmax(inputs)))


def _listed(indices: Tensor) -> str:
    some = ", ".join(map(str, indices[:5].tolist()))
    return f"{some}, …" if len(indices) > 5 else some


def check_labels(where: str, labels: Tensor, classes: int) -> None:
    """Refuse labels that are not ``0 … classes − 1``, one for each input; ``where`` names the part."""
    if labels.dtype not in WHOLE:
        raise ValueError(f"{where}: labels must be whole numbers, int64; got {labels.dtype}. Use labels.long().")
    if labels.ndim != 1:
        raise ValueError(f"{where}: labels must be one class for each input, [n]; got {list(labels.shape)}.")
    low, high = int(labels.min()), int(labels.max())
    if low < 0 or high >= classes:
        shift = f" Subtract {low}." if low > 0 and high - low < classes else ""
        raise ValueError(
            f"{where}: labels must count from 0 within the task, here 0 to {classes - 1}; got {low} to {high}.{shift}"
        )


def one_input(part: Part) -> Batch:
    """The first input of a part and its label, as a batch; no random number is drawn."""
    if isinstance(part, Tensors) and part.prepare is None:
        return part.inputs[:1], part.labels[:1]
    with untouched_randomness():
        return part.take(torch.tensor([0]))


def _first(where: str, part: Part) -> Batch:
    """The first input of a part that reads files; what its dataset raises is told with ``where``."""
    try:
        x, y, *_ = one_input(part)
        return x, torch.as_tensor(y)
    except Exception as error:
        raise ValueError(
            f"{where}: its first item cannot be read as an input and a label ({type(error).__name__}: {error})."
        ) from error


def _shape(part: Part) -> str:
    """Shape and dtype of an input."""
    x = part.inputs[:1] if isinstance(part, Tensors) else one_input(part)[0]
    return f"{list(x.shape[1:])} of {x.dtype}" if isinstance(x, Tensor) else type(x).__name__


@dataclass(frozen=True, eq=False)
class Stream:
    """Tasks in their order. ``data`` says which data they hold: ``official``, ``whole`` or a ``subset``."""

    name: str
    tasks: Sequence[Task]
    data: str = "official"

    def __post_init__(self) -> None:
        if not self.tasks or not all(isinstance(task, Task) for task in self.tasks):
            found = sorted({type(task).__name__ for task in self.tasks}) or "none"
            raise ValueError(f"stream {self.name!r}: expected a list of Task, at least one; got {found}.")

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

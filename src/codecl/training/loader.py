"""Batches of a part, in an order and on a device."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from codecl.errors import UsageError
from codecl.training.stream import Batch, JointPart, Part, Prepared, Tensors


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

    Args:
        order: Which inputs, in which order; all as they are stored where there is none.
        workers: Processes that read ahead, where the part reads files.
        seed: Of what a dataset draws in these processes; without them, it draws from the global generators.
        transform: Applied to the inputs of every batch; what ``Prepared`` batches have as ``raw`` stays as it is.
    """

    same_on_all: ClassVar[bool] = True
    """Under ``torch.distributed`` every process reads the same batches, and takes its share of them in a step."""

    part: Part
    size: int
    device: str = "cpu"
    order: Tensor | None = None
    workers: int = 0
    seed: int = 0
    transform: Callable[[Tensor], Tensor] | None = None

    @property
    def inputs(self) -> int:
        """The number of inputs."""
        return len(self.part) if self.order is None else len(self.order)

    def __len__(self) -> int:
        return len(sizes(self.inputs, self.size))

    def __iter__(self) -> Iterator[Batch]:
        for batch in self._read():
            x, *rest = (value.to(self.device) for value in batch)
            moved = (x if self.transform is None else self.transform(x), *rest)
            yield Prepared.with_raw(moved, batch.raw) if isinstance(batch, Prepared) else moved

    def _read(self) -> Iterable[Batch]:
        order = torch.arange(len(self.part)) if self.order is None else self.order
        chosen = order.split(sizes(len(order), self.size))  # type: ignore[no-untyped-call]
        if self.workers == 0 or _in_memory(self.part):
            return map(self.part.take, chosen)
        generator = torch.Generator().manual_seed(self.seed)
        batches = _Batches(self.part, chosen)
        return map(_told, DataLoader(batches, None, num_workers=self.workers, collate_fn=_same, generator=generator))


@dataclass(frozen=True, eq=False)
class _Batches(Dataset[Batch | UsageError]):
    """Whole batches as the items of a dataset, so that a process reads one at a time.

    What is wrong with an item is handed on as it is: raised, it would come with the traceback of the process.
    """

    part: Part
    chosen: Sequence[Tensor]

    def __len__(self) -> int:
        return len(self.chosen)

    def __getitem__(self, index: int) -> Batch | UsageError:
        try:
            return self.part.take(self.chosen[index])
        except UsageError as error:
            return error


def _told(batch: Batch | UsageError) -> Batch:
    if isinstance(batch, UsageError):
        raise batch
    return batch


def _same(batch: Any) -> Any:
    return batch


def _in_memory(part: Part) -> bool:
    return all(map(_in_memory, part.parts)) if isinstance(part, JointPart) else isinstance(part, Tensors)

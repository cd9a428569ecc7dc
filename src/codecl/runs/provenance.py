"""What numbers depend on besides the recipe: the data themselves, and the versions of what computes."""

from __future__ import annotations

import ctypes
import hashlib
import json
import zlib

import torch
from torch import Tensor

import codecl
from codecl.training.stream import Part, Stream, Tensors

ACCEPTABLE = ("data", "torch", "codecl")
"""What may have changed since a checkpoint was made, if a user accepts it by name."""
LOOKED_AT = 64
"""The labels of a part that is read from files, whose inputs may be augmented anew each time."""


def made_with(stream: Stream) -> dict[str, str]:
    """A digest of the data of ``stream``, and the versions of torch and codecl."""
    return {"data": data_digest(stream), "torch": str(torch.__version__), "codecl": codecl.__version__}


def data_digest(stream: Stream) -> str:
    """A digest of all tensors in memory; of what is read from files, of its length and some of its labels."""
    sums: dict[int, int] = {}  # the same images may serve several tasks
    parts = [[_digest(part, sums) for part in (task.train, task.validation, task.test)] for task in stream.tasks]
    return hashlib.sha256(json.dumps([stream.data, parts]).encode()).hexdigest()[:16]


def _digest(part: Part, sums: dict[int, int]) -> list[int]:
    if not isinstance(part, Tensors):
        some = torch.arange(0, len(part), max(1, len(part) // LOOKED_AT))
        return [len(part), _crc(part.take(some)[1])]
    if id(part.inputs) not in sums:
        sums[id(part.inputs)] = _crc(part.inputs)
    return [len(part), sums[id(part.inputs)], _crc(part.labels)]


def _crc(values: Tensor) -> int:
    dense = values.detach().cpu().contiguous()
    if not dense.nbytes:
        return 0
    return zlib.crc32(memoryview((ctypes.c_char * dense.nbytes).from_address(dense.data_ptr())))

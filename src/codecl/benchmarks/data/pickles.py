"""Reading pickles that others wrote: arrays, numbers, text, lists, tuples and dicts, and nothing else.

A pickle is a program. It is run here by a machine of our own (``machine``, ``opcodes``) that cannot import, call or
make anything but these.

Python's own ``Unpickler`` with a strict ``find_class`` is not enough: it makes room up to any index that a file names
(``LONG_BINPUT``), hashes nested tuples until the stack overflows, and numpy's array, once admitted, takes any shape.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from codecl.benchmarks.data.images import DamagedData, read
from codecl.benchmarks.data.machine import Array, Refused
from codecl.benchmarks.data.opcodes import run

GARBLED = (IndexError, KeyError, ValueError, TypeError, OverflowError, RuntimeError, struct.error)


def load_pickle(path: Path) -> Any:
    """What the pickle at ``path`` holds; text that Python 2 wrote comes as bytes, an array as an :class:`Array`."""
    data = read(path)
    try:
        return run(data)
    except (Refused, *GARBLED) as error:
        why = str(error) if isinstance(error, Refused) else f"it ends early or is garbled ({type(error).__name__})"
        raise DamagedData(f"{path} cannot be read as a pickle of arrays, numbers, text and lists: {why}.") from None


def load_table(path: Path) -> dict[str, Any]:
    """The dict that the pickle at ``path`` holds, its keys as text."""
    table = load_pickle(path)
    if not isinstance(table, dict):
        raise DamagedData(f"{path}: expected a dict; found {type(table).__name__}.")
    return {key.decode("latin1") if isinstance(key, bytes) else str(key): value for key, value in table.items()}


def array_of(path: Path, table: dict[str, Any], key: str) -> Tensor:
    """The array at ``key``; a list of whole numbers counts as one."""
    if key not in table:
        found = ", ".join(sorted(name[:40] for name in table)[:10])
        raise DamagedData(f"{path}: expected an entry {key!r}; found {found or 'none'}.")
    value = table[key]
    if isinstance(value, Array) and value.tensor is not None and value.tensor.ndim > 0:
        return value.tensor
    if isinstance(value, list) and all(type(item) is int and abs(item) < 2**62 for item in value):
        return torch.tensor(value, dtype=torch.int64)
    raise DamagedData(f"{path}: expected an array or a list of whole numbers as {key!r}; found {type(value).__name__}.")

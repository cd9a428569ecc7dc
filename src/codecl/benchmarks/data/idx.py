"""The idx files of MNIST: a magic number, the extents, and the bytes; plain or gzipped."""

from __future__ import annotations

import gzip
import io
import math
import struct
import zlib
from pathlib import Path

import torch
from torch import Tensor

from codecl.benchmarks.data.images import SLACK, DamagedData, read

UNSIGNED_BYTE = 0x08


def read_idx(path: Path, extents: tuple[int, ...], most: int) -> tuple[Tensor, bytes]:
    """At most ``most`` items of ``extents`` bytes each, ``[n, *extents]``, and the file as it is when unpacked."""
    limit = 4 + 4 * (1 + len(extents)) + most * math.prod(extents)
    data = _unpacked(path, limit)
    header = 4 + 4 * (1 + len(extents))
    if len(data) < header:
        raise DamagedData(
            f"{path} has {len(data)} bytes, which is less than the {header} of its header: it is cut off."
        )
    magic, n, *found = struct.unpack(f">{2 + len(extents)}I", data[:header])
    if magic != (UNSIGNED_BYTE << 8) + 1 + len(extents):
        raise DamagedData(
            f"{path}: expected the magic number {(UNSIGNED_BYTE << 8) + 1 + len(extents)}; found {magic}."
        )
    if tuple(found) != extents:
        raise DamagedData(f"{path}: expected items of {list(extents)}; its header says {found}.")
    if not 0 < n <= most:
        raise DamagedData(f"{path}: expected {most:,} items, or fewer in a subset; its header says {n:,}.")
    if len(data) != (expected := header + n * math.prod(extents)):
        what = "it is cut off" if len(data) < expected else "something follows its data"
        raise DamagedData(
            f"{path}: expected {expected:,} bytes for {n:,} items; found {_count(len(data), limit)}: {what}."
        )
    return torch.frombuffer(bytearray(data[header:]), dtype=torch.uint8).reshape(n, *extents), data


def _unpacked(path: Path, limit: int) -> bytes:
    """The bytes of the file, one more than ``limit`` at most: a small gz can hold far more than memory does."""
    data = read(path, "the file", limit + SLACK)
    if path.suffix != ".gz":
        return data
    try:
        with gzip.open(io.BytesIO(data)) as file:
            return file.read(limit + 1)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DamagedData(f"{path} cannot be unpacked: it is damaged or cut off ({error}).") from None


def _count(n: int, limit: int) -> str:
    return f"more than {limit:,}" if n > limit else f"{n:,}"

"""Numeric arrays from MAT-files of version 5, which MATLAB 5 to 7.2 write (``save -v7`` and older), compressed or not.

A file is a header of 128 bytes and elements: a tag of type and length, then data. An array is an element (type 14) of
elements: flags, extents, name, values. Values may be stored in a smaller type than the array has. A compressed element
(type 15) is another one, deflated.
"""

from __future__ import annotations

import math
import struct
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from codecl.benchmarks.data.images import DamagedData

MATRIX, COMPRESSED, INT8, INT32, UINT32 = 14, 15, 1, 5, 6
STORED = {
    1: torch.int8, 2: torch.uint8, 3: torch.int16, 4: torch.uint16, 5: torch.int32, 6: torch.uint32,
    7: torch.float32, 9: torch.float64,
}  # fmt: skip
CLASSES = {
    6: torch.float64, 7: torch.float32, 8: torch.int8, 9: torch.uint8, 10: torch.int16, 11: torch.uint16,
    12: torch.int32, 13: torch.uint32,
}  # fmt: skip
COMPLEX = 0x08
MAX_DIMENSIONS = 8


def read_mat(path: Path, data: bytes, wanted: set[str], limit: int) -> dict[str, Tensor]:
    """The arrays named ``wanted``, none of more than ``limit`` bytes, in MATLAB's extents."""
    if data[:10] == b"MATLAB 7.3" or data[:8] == b"\x89HDF\r\n\x1a\n":
        raise DamagedData(f"{path} is a MAT-file of version 7.3; expected version 5 (save -v7), as published.")
    order = {b"IM": "<", b"MI": ">"}.get(data[126:128])
    if order is None or struct.unpack(f"{order}H", data[124:126])[0] != 0x0100:
        raise DamagedData(f"{path} is no MAT-file of version 5, or is cut off within its header.")
    found: dict[str, Tensor] = {}
    try:
        for kind, body in _elements(data, 128, order):
            if kind == COMPRESSED:
                kind, body = next(_elements(_inflated(body, limit), 0, order))
            if kind == MATRIX and (named := _matrix(body, order, wanted, limit)):
                found[named[0]] = named[1]
    except (struct.error, zlib.error, StopIteration, ValueError, UnicodeDecodeError) as error:
        why = str(error) or type(error).__name__
        raise DamagedData(f"{path} is damaged or cut off: {why}.") from None
    if missing := wanted - found.keys():
        raise DamagedData(f"{path}: expected arrays named {', '.join(sorted(wanted))}; there is no {min(missing)}.")
    return found


def _elements(data: bytes | memoryview, at: int, order: str) -> Iterator[tuple[int, memoryview]]:
    """Type and data of each element; data of up to four bytes may stand in the tag."""
    view = memoryview(data)
    while at < len(view):
        kind, length = struct.unpack_from(f"{order}II", view, at)
        if kind >> 16:
            kind, length, start, after = kind & 0xFFFF, kind >> 16, at + 4, at + 8
            if length > 4:
                raise ValueError(f"a small element of {length} bytes")
        else:
            start = at + 8
            after = start + length + (0 if kind == COMPRESSED else -length % 8)
        if start + length > len(view):
            raise ValueError(f"{length:,} bytes are announced, {len(view) - start:,} are left")
        yield kind, view[start : start + length]
        at = after


def _inflated(body: memoryview, limit: int) -> bytes:
    inflate = zlib.decompressobj()
    data = inflate.decompress(body, limit + 4096)  # the values, and tags, flags, extents and name
    if len(data) >= limit + 4096:
        raise ValueError(f"a compressed array has more than {limit:,} bytes")
    if not inflate.eof:
        raise ValueError("a compressed array ends early")
    return data


def _matrix(body: memoryview, order: str, wanted: set[str], limit: int) -> tuple[str, Tensor] | None:
    elements = _elements(body, 0, order)
    (flags_kind, flags), (extents_kind, extents), (name_kind, name) = next(elements), next(elements), next(elements)
    if (flags_kind, extents_kind, name_kind) != (UINT32, INT32, INT8) or len(flags) != 8 or len(extents) % 4:
        raise ValueError("an array without flags, extents and name")
    title = bytes(name).decode("ascii")
    if title not in wanted:
        return None
    word = struct.unpack(f"{order}I", flags[:4])[0]
    shape = struct.unpack(f"{order}{len(extents) // 4}i", extents)
    if word & 0xFF not in CLASSES or (word >> 8) & COMPLEX:
        raise ValueError(f"{title} is no array of real numbers")
    kind, values = next(elements)
    if kind not in STORED or len(shape) > MAX_DIMENSIONS or min(shape, default=-1) < 0:
        raise ValueError(f"{title} has values of type {kind} and the extents {list(shape)}")
    stored = STORED[kind]
    if math.prod(shape) * CLASSES[word & 0xFF].itemsize > limit:
        raise ValueError(f"{title} has the extents {list(shape)}, more than {limit:,} bytes")
    if len(values) != math.prod(shape) * stored.itemsize:
        raise ValueError(f"{title} has the extents {list(shape)} and {len(values):,} bytes")
    if len(values) == 0:
        raise ValueError(f"{title} is empty")
    return title, _tensor(values, stored, order, shape).to(CLASSES[word & 0xFF])


def _tensor(values: memoryview, stored: torch.dtype, order: str, shape: tuple[int, ...]) -> Tensor:
    """MATLAB counts the first extent fastest."""
    raw = torch.frombuffer(bytearray(values), dtype=torch.uint8)
    if (order == ">") != (sys.byteorder == "big"):
        raw = raw.reshape(-1, stored.itemsize).flip(1).flatten()
    return raw.view(stored).reshape(shape[::-1]).permute(*reversed(range(len(shape))))

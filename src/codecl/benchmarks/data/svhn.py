"""SVHN, the cropped digits (Netzer et al., 2011): ``SVHN/{train,test}_32x32.mat``, or the two files by themselves.

In each, ``X`` is uint8 ``[32, 32, 3, n]`` and ``y`` ``[n, 1]``, where 10 stands for the digit 0. *extra* is not read.

They are MAT-files of version 5, which MATLAB 5 to 7.2 write (``save -v7`` and older), compressed or not: a header of
128 bytes and elements, each a tag of type and length, then data. An array is an element (type 14) of elements: flags,
extents, name, values. Values may be stored in a smaller type than the array has. A compressed element (type 15) is
another one, deflated. ``scipy.io.loadmat`` is not used: it crashes the process over one changed byte (an array whose
values have an unknown type).
"""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from codecl.benchmarks.data.images import DamagedData, DataSet, checked, expect, library, locate, md5, read

SIDE, CLASSES = 32, 10
PUBLISHED = (73_257, 26_032)
FILES = ("train_32x32.mat", "test_32x32.mat")
MD5 = ("e26dedcc434d2e4c54c9b2d4a06d8373", "eb5a983be6a315427106f1b164d9cef3")

MATRIX, COMPRESSED, INT8, INT32, UINT32 = 14, 15, 1, 5, 6
STORED = {1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 9: "f8"}
ARRAYS = {6: "f8", 7: "f4", 8: "i1", 9: "u1", 10: "i2", 11: "u2", 12: "i4", 13: "u4"}
HEADER, COMPLEX, MAX_DIMENSIONS = 128, 0x0800, 8


def svhn(root: Path) -> DataSet:
    """House numbers, one digit each, ten classes; 73,257 training and 26,032 test images."""
    parts, found = [], []
    paths = [locate("SVHN", root / "SVHN" / name, root / name) for name in FILES]
    for path, most in zip(paths, PUBLISHED, strict=True):
        size = most * 3 * SIDE * SIDE
        data = read(path, "SVHN", size)
        arrays = read_mat(path, data, {"X", "y"}, limit=size)
        x, y = arrays["X"], arrays["y"].double().flatten()
        x = x[..., None] if x.ndim == 3 else x  # MATLAB drops the last extent when it is 1
        right = x.dtype == torch.uint8 and x.shape[:3] == (SIDE, SIDE, 3)
        expect(right, path, "X as uint8 [32, 32, 3, n]", f"{list(x.shape)} of {x.dtype}")
        right = bool(((y >= 1) & (y <= 10) & (y == y.floor())).all())
        expect(right, path, "whole labels from 1 to 10, 10 for the digit 0", "others")
        parts.append(checked(path, x.permute(3, 2, 0, 1), y.long() % 10, CLASSES, most))
        found.append(md5(data))
    return DataSet.of(parts, PUBLISHED, tuple(found) == MD5)


def read_mat(path: Path, data: bytes, wanted: set[str], limit: int) -> dict[str, Tensor]:
    """The arrays named ``wanted``, none of more than ``limit`` bytes, in MATLAB's extents."""
    order = {b"\0\1IM": "<", b"\1\0MI": ">"}.get(data[HEADER - 4 : HEADER])
    if order is None:
        raise DamagedData(f"{path} is no MAT-file of version 5 (save -v7), as published, or is cut off in its header.")
    found: dict[str, Tensor] = {}
    try:
        for kind, body in _elements(memoryview(data)[HEADER:], order):
            if kind == COMPRESSED:
                kind, body = next(_elements(_inflated(body, limit), order))
            if kind == MATRIX:
                found |= _matrix(body, order, wanted, limit)
    except (struct.error, zlib.error, StopIteration, ValueError) as error:
        raise DamagedData(f"{path} is damaged or cut off: {str(error) or type(error).__name__}.") from None
    if missing := wanted - found.keys():
        raise DamagedData(f"{path}: expected arrays named {', '.join(sorted(wanted))}; there is no {min(missing)}.")
    return found


def _elements(view: memoryview, order: str) -> Iterator[tuple[int, memoryview]]:
    """Type and data of each element; data of up to four bytes may stand in the tag."""
    at = 0
    while at < len(view):
        kind, length = struct.unpack_from(f"{order}II", view, at)
        start, padding = at + 8, 0 if kind == COMPRESSED else -length % 8
        if kind >> 16:
            kind, length, start, padding = kind & 0xFFFF, kind >> 16, at + 4, -(kind >> 16) % 4
            if length > 4:
                raise ValueError(f"a small element of {length} bytes")
        if start + length > len(view):
            raise ValueError(f"{length:,} bytes are announced, {len(view) - start:,} are left")
        yield kind, view[start : start + length]
        at = start + length + padding


def _inflated(body: memoryview, limit: int) -> memoryview:
    inflate = zlib.decompressobj()
    data = inflate.decompress(body, limit + 4096)  # the values, and tags, flags, extents and name
    if len(data) >= limit + 4096:
        raise ValueError(f"a compressed array has more than {limit:,} bytes")
    if not inflate.eof:
        raise ValueError("a compressed array ends early")
    return memoryview(data)


def _matrix(body: memoryview, order: str, wanted: set[str], limit: int) -> dict[str, Tensor]:
    elements = _elements(body, order)
    (flags_kind, flags), (extents_kind, extents), (name_kind, name) = next(elements), next(elements), next(elements)
    if (flags_kind, extents_kind, name_kind) != (UINT32, INT32, INT8) or len(flags) != 8:
        raise ValueError("an array without flags, extents and name")
    if (title := str(name, "latin1")) not in wanted:
        return {}
    word, shape = struct.unpack(f"{order}I", flags[:4])[0], struct.unpack(f"{order}{len(extents) // 4}i", extents)
    if word & 0xFF not in ARRAYS or word & COMPLEX:
        raise ValueError(f"{title} is no array of real numbers")
    kind, values = next(elements)
    if kind not in STORED or len(shape) > MAX_DIMENSIONS or min(shape, default=-1) < 0:
        raise ValueError(f"{title} has values of type {kind} and the extents {list(shape)}")
    if math.prod(shape) * int(ARRAYS[word & 0xFF][1]) > limit:
        raise ValueError(f"{title} has the extents {list(shape)}, more than {limit:,} bytes")
    if len(values) != math.prod(shape) * int(STORED[kind][1]) or len(values) == 0:
        raise ValueError(f"{title} has the extents {list(shape)} and {len(values):,} bytes")
    array = library("numpy", "NumPy").frombuffer(values, order + STORED[kind]).reshape(shape, order="F")
    return {title: torch.from_numpy(array.astype(ARRAYS[word & 0xFF]))}

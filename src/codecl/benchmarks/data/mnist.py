"""MNIST (LeCun et al., 1998) and Fashion-MNIST (Xiao et al., 2017): four idx files, gzipped or plain.

- ``MNIST/raw/{train,t10k}-images-idx3-ubyte[.gz]`` and ``MNIST/raw/{train,t10k}-labels-idx1-ubyte[.gz]``
- ``FashionMNIST/raw/…``, by the same names

They may also be in ``MNIST/`` itself, and be named ``train-images.idx3-ubyte``. An idx file is a magic number, the
extents, and the bytes.
"""

from __future__ import annotations

import gzip
import io
import math
import struct
import zlib
from pathlib import Path

import torch
from torch import Tensor

from codecl.benchmarks.data.images import DamagedData, DataSet, checked, expect, locate, md5, read

SIDE, CLASSES = 28, 10
PUBLISHED = (60_000, 10_000)
MAGIC = 0x0800  # of unsigned bytes, plus the number of extents

# Of the files unpacked, so that it does not matter who packed them: training images, labels, test images, labels.
MD5 = {
    "MNIST": (
        "6bbc9ace898e44ae57da46a324031adb", "a25bea736e30d166cdddb491f175f624",
        "2646ac647ad5339dbf082846283269ea", "27ae3e4e09519cfbb04c329615203637",
    ),
    "Fashion-MNIST": (
        "f4a8712d7a061bf5bd6d2ca38dc4d50a", "9018921c3c673c538a1fc5bad174d6f9",
        "8181f5470baa50b63fa0f6fddb340f0a", "15d484375f8d13e6eb1aabb0c3f46965",
    ),
}  # fmt: skip


def mnist(root: Path) -> DataSet:
    """Handwritten digits, ten classes; 60,000 training and 10,000 test images of 28×28."""
    return _read("MNIST", root / "MNIST")


def fashion_mnist(root: Path) -> DataSet:
    """Pieces of clothing, ten classes; 60,000 training and 10,000 test images of 28×28."""
    return _read("Fashion-MNIST", root / "FashionMNIST")


def _read(title: str, home: Path) -> DataSet:
    locate(title, home)
    parts, found = [], []
    for stem, most in zip(("train", "t10k"), PUBLISHED, strict=True):
        path = _find(home, f"{stem}-images-idx3", title)
        x, all_x = _read_idx(path, (SIDE, SIDE), most)
        y, all_y = _read_idx(_find(home, f"{stem}-labels-idx1", title), (), most)
        parts.append(checked(path, x[:, None], y, CLASSES, most))
        found += [md5(all_x), md5(all_y)]
    if title != "MNIST" and (found[0] == MD5["MNIST"][0] or found[2] == MD5["MNIST"][2]):
        raise DamagedData(f"The files in {home} are the digits of MNIST; expected {title}.")
    return DataSet.of(parts, PUBLISHED, tuple(found) == MD5[title])


def _find(home: Path, stem: str, title: str) -> Path:
    names = [f"{stem}-ubyte.gz", f"{stem}-ubyte"]
    names += [name.replace("-idx", ".idx") for name in names]
    return locate(title, *(folder / name for folder in (home / "raw", home) for name in names))


def _read_idx(path: Path, extents: tuple[int, ...], most: int) -> tuple[Tensor, bytes]:
    """At most ``most`` items of ``extents`` bytes each, ``[n, *extents]``, and the file as it is when unpacked."""
    header, item = 8 + 4 * len(extents), math.prod(extents)
    data = _unpacked(path, limit := header + most * item)
    if len(data) < header:
        raise DamagedData(f"{path} has {len(data)} bytes, less than the {header} of its header: it is cut off.")
    magic, n, *shape = struct.unpack(f">{2 + len(extents)}I", data[:header])
    expect(magic == MAGIC + 1 + len(extents), path, f"the magic number {MAGIC + 1 + len(extents)}", magic)
    if tuple(shape) != extents:
        raise DamagedData(f"{path}: expected items of {list(extents)}; its header says {shape}.")
    if not 0 < n <= most:
        raise DamagedData(f"{path}: expected {most:,} items, or fewer in a subset; its header says {n:,}.")
    what = "it is cut off" if len(data) < header + n * item else "something follows its data"
    count = f"more than {limit:,}" if len(data) > limit else f"{len(data):,}"
    expected = f"{header + n * item:,} bytes for {n:,} items"
    expect(len(data) == header + n * item, path, expected, f"{count}: {what}")
    return torch.frombuffer(bytearray(data[header:]), dtype=torch.uint8).reshape(n, *extents), data


def _unpacked(path: Path, limit: int) -> bytes:
    """The bytes of the file, one more than ``limit`` at most: a small gz can hold far more than memory does."""
    data = read(path, "the file", limit)
    if path.suffix != ".gz":
        return data
    try:
        with gzip.open(io.BytesIO(data)) as file:
            return file.read(limit + 1)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DamagedData(f"{path} cannot be unpacked: it is damaged or cut off ({error}).") from None

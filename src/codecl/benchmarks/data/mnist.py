"""MNIST (LeCun et al., 1998) and Fashion-MNIST (Xiao et al., 2017): four idx files, gzipped or plain.

- ``MNIST/raw/{train,t10k}-images-idx3-ubyte[.gz]`` and ``MNIST/raw/{train,t10k}-labels-idx1-ubyte[.gz]``
- ``FashionMNIST/raw/…``, by the same names

They may also be in ``MNIST/`` itself, and be named ``train-images.idx3-ubyte``.
"""

from __future__ import annotations

from pathlib import Path

from codecl.benchmarks.data.idx import read_idx
from codecl.benchmarks.data.images import (
    DamagedData,
    DataSet,
    Images,
    checked,
    existing,
    first_existing,
    md5,
    status_of,
)

SIDE, CLASSES = 28, 10
PUBLISHED = (60_000, 10_000)

# Of the files unpacked, so that it does not matter who packed them: training images, labels, test images, labels.
MD5 = {
    "mnist": (
        "6bbc9ace898e44ae57da46a324031adb",
        "a25bea736e30d166cdddb491f175f624",
        "2646ac647ad5339dbf082846283269ea",
        "27ae3e4e09519cfbb04c329615203637",
    ),
    "fashion-mnist": (
        "f4a8712d7a061bf5bd6d2ca38dc4d50a",
        "9018921c3c673c538a1fc5bad174d6f9",
        "8181f5470baa50b63fa0f6fddb340f0a",
        "15d484375f8d13e6eb1aabb0c3f46965",
    ),
}


def mnist(root: Path) -> DataSet:
    """Handwritten digits, ten classes; 60,000 training and 10,000 test images of 28×28."""
    return _read("mnist", "MNIST", root / "MNIST")


def fashion_mnist(root: Path) -> DataSet:
    """Pieces of clothing, ten classes; 60,000 training and 10,000 test images of 28×28."""
    return _read("fashion-mnist", "Fashion-MNIST", root / "FashionMNIST")


def _read(name: str, title: str, home: Path) -> DataSet:
    existing(home, title)
    parts: list[Images] = []
    unpacked: list[str] = []
    for stem, most in zip(("train", "t10k"), PUBLISHED, strict=True):
        images, labels = (_find(home, f"{stem}-{what}", title) for what in ("images-idx3", "labels-idx1"))
        x, all_x = read_idx(images, (SIDE, SIDE), most)
        y, all_y = read_idx(labels, (), most)
        parts.append(checked(images, x[:, None], y, CLASSES, most))
        unpacked += [md5(all_x), md5(all_y)]
    if name != "mnist" and (unpacked[0] == MD5["mnist"][0] or unpacked[2] == MD5["mnist"][2]):
        raise DamagedData(f"The files in {home} are the digits of MNIST; expected {title}.")
    return DataSet(name, parts[0], parts[1], status_of(parts[0], parts[1], PUBLISHED, tuple(unpacked) == MD5[name]))


def _find(home: Path, stem: str, title: str) -> Path:
    names = [f"{stem}-ubyte.gz", f"{stem}-ubyte"]
    names += [name.replace("-idx", ".idx") for name in names]
    return first_existing([folder / name for folder in (home / "raw", home) for name in names], title)

"""SVHN, the cropped digits (Netzer et al., 2011): ``SVHN/{train,test}_32x32.mat``, or the two files by themselves.

In each, ``X`` is uint8 ``[32, 32, 3, n]`` and ``y`` ``[n, 1]``, where 10 stands for the digit 0. *extra* is not read.
"""

from __future__ import annotations

from pathlib import Path

import torch

from codecl.benchmarks.data.images import (
    SLACK,
    DamagedData,
    DataSet,
    Images,
    checked,
    first_existing,
    md5,
    read,
    status_of,
)
from codecl.benchmarks.data.matlab import read_mat

SIDE, CLASSES = 32, 10
PUBLISHED = (73_257, 26_032)
MD5 = ("e26dedcc434d2e4c54c9b2d4a06d8373", "eb5a983be6a315427106f1b164d9cef3")


def svhn(root: Path) -> DataSet:
    """House numbers, one digit each, ten classes; 73,257 training and 26,032 test images."""
    paths = [
        first_existing([root / "SVHN" / name, root / name], "SVHN") for name in ("train_32x32.mat", "test_32x32.mat")
    ]
    (train, a), (test, b) = (_read(path, most) for path, most in zip(paths, PUBLISHED, strict=True))
    return DataSet("svhn", train, test, status_of(train, test, PUBLISHED, official=(a, b) == MD5))


def _read(path: Path, most: int) -> tuple[Images, str]:
    """At most ``most`` images, and the checksum of the file."""
    size = most * 3 * SIDE * SIDE
    data = read(path, "SVHN", size + SLACK)
    arrays = read_mat(path, data, {"X", "y"}, limit=size)
    x, y = arrays["X"], arrays["y"].double().flatten()
    if x.ndim == 3:  # MATLAB drops the last extent when it is 1
        x = x[..., None]
    if x.dtype != torch.uint8 or x.shape[:3] != (SIDE, SIDE, 3):
        raise DamagedData(f"{path}: expected X as uint8 [32, 32, 3, n]; found {list(x.shape)} of {x.dtype}.")
    if not bool(((y >= 1) & (y <= 10) & (y == y.floor())).all()):
        raise DamagedData(f"{path}: expected whole labels from 1 to 10, 10 for the digit 0; found others.")
    return checked(path, x.permute(3, 2, 0, 1), y.long() % 10, CLASSES, most), md5(data)

"""CIFAR-10 and CIFAR-100 (Krizhevsky, 2009), in the python version and in the binary version.

- ``cifar-100-python/{train,test}`` or ``cifar-100-binary/{train,test}.bin``
- ``cifar-10-batches-py/{data_batch_1..5,test_batch}`` or ``cifar-10-batches-bin/{data_batch_1..5,test_batch}.bin``
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from codecl.benchmarks.data.images import DamagedData, DataSet, checked, expect, locate, md5, read
from codecl.benchmarks.data.pickles import array_of, load_table

SIDE, PIXELS = 32, 3 * 32 * 32
PUBLISHED = (50_000, 10_000)
BATCHES = [f"data_batch_{i}" for i in range(1, 6)]

# As torchvision checks them. The archives they come from have the checksums printed at https://www.cs.toronto.edu/~kriz/cifar.html.
MD5 = {
    "cifar-100-python": {"train": "16019d7e3df5f24257cddd939b257f8d", "test": "f0ef6b0ae62326f3e7ffdfab6717acfc"},
    "cifar-10-batches-py": {
        "data_batch_1": "c99cafc152244af753f735de768cd75f",
        "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
        "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
        "data_batch_4": "634d18415352ddfa80567beed471001a",
        "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
        "test_batch": "40351d587109b95175f43aff81a1287e",
    },
}


class Layout(NamedTuple):
    """Where a data set is in its two versions, and what its files hold; the last of the ``labels`` is the class."""

    title: str
    python: str
    binary: str
    labels: tuple[str, ...]
    classes: int
    train: Sequence[str]
    test: str


class Batch(NamedTuple):
    """What one file holds: rows of pixels, their classes, and a way to read their coarse classes."""

    path: Path
    x: Tensor
    y: Tensor
    coarse: Callable[[], Tensor]
    official: bool


CIFAR10 = Layout("CIFAR-10", "cifar-10-batches-py", "cifar-10-batches-bin", ("labels",), 10, BATCHES, "test_batch")
CIFAR100 = Layout(
    "CIFAR-100", "cifar-100-python", "cifar-100-binary", ("coarse_labels", "fine_labels"), 100, ["train"], "test"
)


def cifar100(root: Path) -> DataSet:
    """The 100 fine classes; 50,000 training and 10,000 test images."""
    return _read(root, CIFAR100)[0]


def cifar10(root: Path) -> DataSet:
    """Ten classes; 50,000 training and 10,000 test images."""
    return _read(root, CIFAR10)[0]


def superclasses(root: Path) -> tuple[DataSet, Tensor]:
    """CIFAR-100 and the coarse class of each of its fine classes, ``[100]``, as the training file pairs them."""
    data, batch = _read(root, CIFAR100)
    fine, coarse = batch.y, batch.coarse()
    pairs = torch.unique(torch.stack([fine, coarse]), dim=1) if fine.shape == coarse.shape else torch.empty(2, 0)
    if not torch.equal(pairs[0], torch.arange(100)) or not bool(((pairs[1] >= 0) & (pairs[1] < 20)).all()):
        raise DamagedData(f"{batch.path}: expected one of 20 coarse classes for each of the 100 fine ones.")
    return data, pairs[1]


def _read(root: Path, layout: Layout) -> tuple[DataSet, Batch]:
    """A data set, and the first of its training files."""
    parts, batches = [], []
    for names, most in zip((layout.train, [layout.test]), PUBLISHED, strict=True):
        part = [_read_file(root, layout, name, -(-most // len(names))) for name in names]
        x, y = torch.cat([batch.x for batch in part]), torch.cat([batch.y for batch in part])
        parts.append(checked(part[0].path, x.reshape(-1, 3, SIDE, SIDE), y, layout.classes, most))
        batches += part
    return DataSet.of(parts, PUBLISHED, all(batch.official for batch in batches)), batches[0]


def _read_file(root: Path, layout: Layout, name: str, most: int) -> Batch:
    """A file of at most ``most`` images from the folder that is there."""
    python, binary, labels = root / layout.python, root / layout.binary, layout.labels
    if binary.exists() and not python.exists():
        return _read_binary(binary / f"{name}.bin", layout.title, len(labels), most)
    path = locate(layout.title, python) / name
    data = read(path, layout.title, 2 * most * PIXELS)
    table = load_table(path, data)
    x, y = array_of(path, table, "data"), array_of(path, table, labels[-1])
    right = x.dtype == torch.uint8 and x.ndim == 2 and x.shape[1] == PIXELS and y.ndim == 1 and len(x) == len(y)
    found = f"{list(x.shape)} of {x.dtype} and {list(y.shape)} labels"
    expect(right, path, f"rows of {PIXELS} bytes with a label each", found)
    official = md5(data) == MD5[layout.python].get(name)
    return Batch(path, x, y.long(), lambda: array_of(path, table, labels[0]).long(), official)


def _read_binary(path: Path, title: str, labels: int, most: int) -> Batch:
    width = labels + PIXELS
    data = read(path, title, most * width)
    if len(data) == 0 or len(data) % width:
        raise DamagedData(f"{path} has {len(data):,} bytes; expected a number of rows of {width:,}: it is cut off.")
    rows = torch.frombuffer(bytearray(data), dtype=torch.uint8).reshape(-1, width)
    return Batch(path, rows[:, labels:], rows[:, labels - 1].long(), lambda: rows[:, 0].long(), official=False)

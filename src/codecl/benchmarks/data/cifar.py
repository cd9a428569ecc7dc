"""CIFAR-10 and CIFAR-100 (Krizhevsky, 2009), in the python version and in the binary version.

- ``cifar-100-python/{train,test,meta}`` or ``cifar-100-binary/{train,test}.bin``
- ``cifar-10-batches-py/{data_batch_1..5,test_batch}`` or ``cifar-10-batches-bin/{data_batch_1..5,test_batch}.bin``
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from codecl.benchmarks.data.images import DamagedData, DataSet, Images, checked, existing, md5, read, status_of
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


def cifar100(root: Path) -> DataSet:
    """The 100 fine classes; 50,000 training and 10,000 test images."""
    return _cifar("CIFAR-100", "cifar100", root / "cifar-100-python", root / "cifar-100-binary", ["train"], "test", 100)


def cifar10(root: Path) -> DataSet:
    """Ten classes; 50,000 training and 10,000 test images."""
    python, binary = root / "cifar-10-batches-py", root / "cifar-10-batches-bin"
    return _cifar("CIFAR-10", "cifar10", python, binary, BATCHES, "test_batch", 10)


def superclasses(root: Path) -> Tensor:
    """The coarse class of every fine class of CIFAR-100, ``[100]``, as the training file pairs them."""
    python, binary = root / "cifar-100-python", root / "cifar-100-binary"
    if binary.exists() and not python.exists():
        table = _rows(binary / "train.bin", "CIFAR-100", labels=2)
        path, coarse, fine = binary / "train.bin", table[:, 0].long(), table[:, 1].long()
    else:
        path = existing(python, "CIFAR-100") / "train"
        entries = load_table(existing(path, "CIFAR-100"))
        fine, coarse = (array_of(path, entries, key).long() for key in ("fine_labels", "coarse_labels"))
    pairs = torch.unique(torch.stack([fine, coarse]), dim=1) if fine.shape == coarse.shape else torch.empty(2, 0)
    if not torch.equal(pairs[0], torch.arange(100)) or not bool(((pairs[1] >= 0) & (pairs[1] < 20)).all()):
        raise DamagedData(f"{path}: expected one of 20 coarse classes for each of the 100 fine ones.")
    return pairs[1]


def _cifar(title: str, name: str, python: Path, binary: Path, train: Sequence[str], test: str, classes: int) -> DataSet:
    if binary.exists() and not python.exists():
        labels = 1 if classes == 10 else 2
        parts = [
            _part([_rows(binary / f"{file}.bin", title, labels) for file in files], labels, binary, classes, most)
            for files, most in zip((train, [test]), PUBLISHED, strict=True)
        ]
        return DataSet(name, parts[0], parts[1], status_of(parts[0], parts[1], PUBLISHED))
    existing(python, title)
    key = "labels" if classes == 10 else "fine_labels"
    parts = []
    for files, most in zip((train, [test]), PUBLISHED, strict=True):
        batches = [_batch(python / file, title, key) for file in files]
        x, y = torch.cat([batch[0] for batch in batches]), torch.cat([batch[1] for batch in batches])
        parts.append(_images(python / files[0], x, y, classes, most))
    whole = status_of(parts[0], parts[1], PUBLISHED) == "whole"
    official = whole and all(md5(read(python / file)) == checksum for file, checksum in MD5[python.name].items())
    return DataSet(name, parts[0], parts[1], status_of(parts[0], parts[1], PUBLISHED, official))


def _batch(path: Path, title: str, key: str) -> tuple[Tensor, Tensor]:
    table = load_table(existing(path, title))
    x, y = array_of(path, table, "data"), array_of(path, table, key)
    if x.dtype != torch.uint8 or x.ndim != 2 or x.shape[1] != PIXELS or y.ndim != 1 or len(x) != len(y):
        raise DamagedData(
            f"{path}: expected rows of {PIXELS} bytes with a label each; "
            f"found {list(x.shape)} of {x.dtype} and {list(y.shape)} labels."
        )
    return x, y.long()


def _rows(path: Path, title: str, labels: int) -> Tensor:
    """Rows of the label bytes, the last of which counts, and the pixels."""
    data, width = read(path, title), labels + PIXELS
    if len(data) == 0 or len(data) % width:
        raise DamagedData(f"{path} has {len(data):,} bytes; expected a number of rows of {width:,}: it is cut off.")
    return torch.frombuffer(bytearray(data), dtype=torch.uint8).reshape(-1, width)


def _part(rows: Sequence[Tensor], labels: int, where: Path, classes: int, most: int) -> Images:
    table = torch.cat(list(rows))
    return _images(where, table[:, labels:], table[:, labels - 1].long(), classes, most)


def _images(where: Path, x: Tensor, y: Tensor, classes: int, most: int) -> Images:
    return checked(where, x.reshape(-1, 3, SIDE, SIDE), y, classes, most)

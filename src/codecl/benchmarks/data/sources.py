"""The data sets: how each is read, and where its publisher offers it.

A checksum stands here only where it is certain: printed by the publisher, or used by torchvision for years. Where there
is none, a file is never called official, and what is downloaded is verified by its size and by reading it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from codecl.benchmarks.data.cifar import cifar10, cifar100
from codecl.benchmarks.data.images import DataSet
from codecl.benchmarks.data.miniimagenet import ByClass, miniimagenet
from codecl.benchmarks.data.mnist import fashion_mnist, mnist
from codecl.benchmarks.data.notmnist import notmnist
from codecl.benchmarks.data.svhn import FILES, MD5, svhn


@dataclass(frozen=True)
class File:
    """A file that may be downloaded, from the first address that has it, to ``target`` below the root."""

    urls: tuple[str, ...]
    target: str
    checksum: str | None
    size: int | None = None
    unpack: bool = False


@dataclass(frozen=True)
class Source:
    """A data set; without ``files`` it is for the user to get, and ``how`` says how."""

    name: str
    read: Callable[[Path], DataSet | ByClass]
    published: str
    files: tuple[File, ...] = ()
    how: str = ""


def find_root(option: str | Path | None) -> Path:
    """Where the data sets are: ``--data-dir``, else the environment's ``CODECL_DATA``, else ``./data``."""
    return Path(option or os.environ.get("CODECL_DATA") or "data").expanduser()


TORONTO = "https://www.cs.toronto.edu/~kriz/"
ZALANDO = "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/"
STANFORD = "http://ufldl.stanford.edu/housenumbers/"
IDX = [f"{part}-{kind}-ubyte.gz" for part in ("train", "t10k") for kind in ("images-idx3", "labels-idx1")]


def _files(
    home: str, folder: str, names: Iterable[str], checksums: Iterable[str], unpack: bool = False
) -> tuple[File, ...]:
    pairs = zip(names, checksums, strict=True)
    return tuple(File((home + name,), folder + name, f"md5:{md5}", unpack=unpack) for name, md5 in pairs)


SOURCES = {
    source.name: source
    for source in (
        Source(
            "cifar100", cifar100, "50,000 + 10,000",
            _files(TORONTO, "", ["cifar-100-python.tar.gz"], ["eb9058c3a382ffc7106e4002c42a8d85"], unpack=True),
        ),
        Source(
            "cifar10", cifar10, "50,000 + 10,000",
            _files(TORONTO, "", ["cifar-10-python.tar.gz"], ["c58f30108f718f92721af3b95e74349a"], unpack=True),
        ),
        Source(
            "mnist", mnist, "60,000 + 10,000",
            _files("https://ossci-datasets.s3.amazonaws.com/mnist/", "MNIST/raw/", IDX, (
                "f68b3c2dcbeaaa9fbdd348bbdeb94873", "d53e105ee54ea40749a09fcbcd1e9432",
                "9fb629c4189551a2d022fa330f9573f3", "ec29112dd5afa0611ce80d1b7f02629c",
            )),
        ),
        Source(
            "fashion-mnist", fashion_mnist, "60,000 + 10,000",
            _files(ZALANDO, "FashionMNIST/raw/", IDX, (
                "8d4fb7e6c68d591d4c3dfef9ec88bf0d", "25c81989df183df01b3e8a0aad5dffbe",
                "bef4ecab320f06d8554ea6380940ec79", "bb300cfdad3c16e7a12a480ee83cd310",
            )),
        ),
        Source("svhn", svhn, "73,257 + 26,032", _files(STANFORD, "SVHN/", FILES, MD5)),
        Source(
            "notmnist", notmnist, "18,724, no split",
            (File(("https://commondatastorage.googleapis.com/books1000/notMNIST_small.tar.gz",
                   "http://yaroslavvb.com/upload/notMNIST/notMNIST_small.tar.gz"),
                  "notMNIST_small.tar.gz", None, size=8_458_043, unpack=True),),
        ),
        Source(
            "miniimagenet", miniimagenet, "60,000, no split",
            how="its images are ImageNet's, whose licence every user accepts at https://image-net.org/download.php. "
            "Put the 100 classes into {root}/miniimagenet/<wnid>/*.jpg, or the three mini-imagenet-cache-*.pkl, or "
            "images/ with train.csv, val.csv and test.csv, into {root}/miniimagenet",
        ),
    )
}  # fmt: skip

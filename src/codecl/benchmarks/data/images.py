"""What every reader returns, and what it says when a file is missing or not what it should be."""

from __future__ import annotations

import hashlib
import importlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from torch import Tensor

from codecl.errors import UsageError

Status = Literal["official", "whole", "subset"]
"""``official``: the published files, checksums verified; ``whole``: as many images as published; else a ``subset``."""

SLACK = 1 << 20  # bytes that a file may have beside its images


class MissingData(UsageError):
    """A data set that is not where it was looked for."""

    def __init__(self, name: str, path: Path) -> None:
        super().__init__(
            f"{name} is not at {path}. Put it there, or say where it is with --data-dir or CODECL_DATA; "
            "'codecl data check' lists what is found, 'codecl data get' downloads what may be downloaded."
        )
        self.path = path


class DamagedData(UsageError):
    """A file that does not hold what its publisher put there."""


@dataclass(frozen=True, eq=False)
class Images:
    """Images as uint8 ``[n, channels, height, width]``, and their classes as int64 ``[n]``."""

    x: Tensor
    y: Tensor

    def __len__(self) -> int:
        return len(self.y)


@dataclass(frozen=True, eq=False)
class DataSet:
    """The training and the test part of a data set; ``notes`` say what a person should know about these files."""

    name: str
    train: Images
    test: Images
    status: Status
    notes: tuple[str, ...] = ()


def existing(path: Path, name: str) -> Path:
    """``path``, if there is such a file or folder."""
    if not path.exists():
        raise MissingData(name, path)
    return path


def first_existing(paths: Iterable[Path], name: str) -> Path:
    """The first of the places that a data set may be at; where there is none, the first is named."""
    paths = list(paths)
    return next((path for path in paths if path.exists()), None) or existing(paths[0], name)


def listing(folder: Path, name: str) -> list[Path]:
    """What is in a folder, by name."""
    if not existing(folder, name).is_dir():
        raise DamagedData(f"{folder} is a file; expected a folder.")
    return sorted(folder.iterdir())


def read(path: Path, name: str, limit: int) -> bytes:
    """All of a regular file of at most ``limit`` bytes."""
    if not existing(path, name).is_file():
        raise DamagedData(f"{path} is {'a folder' if path.is_dir() else 'no regular file'}; expected a file.")
    if (size := path.stat().st_size) > limit:
        raise DamagedData(f"{path} has {size:,} bytes; expected at most {limit:,}.")
    return path.read_bytes()


def md5(data: bytes) -> str:
    """Tells published files from others; nothing's safety rests on it."""
    return hashlib.md5(data, usedforsecurity=False).hexdigest()


def checked(where: Path, x: Tensor, y: Tensor, classes: int, most: int) -> Images:
    """Images with a class each, of as many classes, and not more of them than were published."""
    if len(x) != len(y) or len(y) == 0:
        raise DamagedData(f"{where}: expected images with a label each; found {len(x):,} images and {len(y):,} labels.")
    if y.is_floating_point() or y.ndim != 1 or not bool(((y >= 0) & (y < classes)).all()):
        raise DamagedData(
            f"{where}: expected labels from 0 to {classes - 1}; found {y.min().item()} to {y.max().item()}."
        )
    if len(y) > most:
        raise DamagedData(f"{where}: expected {most:,} images, or fewer in a subset; found {len(y):,}.")
    return Images(x.contiguous(), y.long())


def status_of(train: Images, test: Images, published: tuple[int, int], official: bool = False) -> Status:
    if official:
        return "official"
    return "whole" if (len(train), len(test)) == published else "subset"


def library(module: str, title: str) -> Any:
    """A module of the extra ``data``, imported when it is used."""
    try:
        return importlib.import_module(module)
    except ImportError:
        raise ModuleNotFoundError(
            f"reading or downloading this data needs {title}, which is not installed: pip install 'codecl[data]', "
            "or pip install -e '.[data]' in a checkout."
        ) from None

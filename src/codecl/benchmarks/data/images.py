"""What every reader returns, how it reads files and pictures, and what it says when one is missing or damaged.

Pictures are decoded with Pillow: only the expected formats, and none of more pixels than a photograph has.
"""

from __future__ import annotations

import hashlib
import importlib
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from codecl.errors import UsageError
from codecl.text import installing

Status = Literal["official", "whole", "subset"]
"""``official``: the published files, checksums verified; ``whole``: as many images as published; else a ``subset``."""

SLACK = 1 << 20  # bytes that a file may have beside its images
MAX_PIXELS = 50_000_000  # of one picture, before it is resized; the largest of ImageNet has 19 million


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

    train: Images
    test: Images
    status: Status
    notes: tuple[str, ...] = ()

    @classmethod
    def of(cls, parts: Sequence[Images], published: tuple[int, int], official: bool, *notes: str) -> DataSet:
        """The two parts, and how complete they are."""
        whole = tuple(len(part) for part in parts) == published
        return cls(parts[0], parts[1], "official" if official else "whole" if whole else "subset", notes)


def expect(right: bool, where: Path | str, what: object, found: object) -> None:
    """Refuse data that is not right, by where it is, what was expected and what was found."""
    if not right:
        raise DamagedData(f"{where}: expected {what}; found {found}.")


def locate(name: str, *paths: Path) -> Path:
    """The first of the places that a file or folder may be at; where there is none, the first is named."""
    if found := next((path for path in paths if path.exists()), None):
        return found
    raise MissingData(name, paths[0])


def listing(folder: Path, name: str, suffixes: Iterable[str] = ()) -> list[Path]:
    """What is in a folder, by name; of files only those with one of the ``suffixes``."""
    if not locate(name, folder).is_dir():
        raise DamagedData(f"{folder} is a file; expected a folder.")
    return sorted(path for path in folder.iterdir() if not suffixes or path.suffix.lower() in suffixes)


def read(path: Path, name: str, limit: int) -> bytes:
    """All of a regular file of at most ``limit`` bytes of data, and what there may be beside it."""
    limit += SLACK
    if not locate(name, path).is_file():
        raise DamagedData(f"{path} is {'a folder' if path.is_dir() else 'no regular file'}; expected a file.")
    if (size := path.stat().st_size) > limit:
        raise DamagedData(f"{path} has {size:,} bytes; expected at most {limit:,}.")
    return path.read_bytes()


def md5(data: bytes) -> str:
    """Tells published files from others; nothing's safety rests on it."""
    return hashlib.md5(data, usedforsecurity=False).hexdigest()


def checked(where: Path, x: Tensor, y: Tensor, classes: int, most: int) -> Images:
    """Images with a class each, of as many classes, and not more of them than were published."""
    expect(len(x) == len(y) > 0, where, "images with a label each", f"{len(x):,} images and {len(y):,} labels")
    right = not y.is_floating_point() and y.ndim == 1 and bool(((y >= 0) & (y < classes)).all())
    expect(right, where, f"labels from 0 to {classes - 1}", f"{y.min().item()} to {y.max().item()}")
    expect(len(y) <= most, where, f"{most:,} images, or fewer in a subset", f"{len(y):,}")
    return Images(x.contiguous(), y.long())


def library(module: str, title: str) -> Any:
    """A module of the extra ``data``, imported when it is used."""
    try:
        return importlib.import_module(module)
    except ImportError:
        raise ModuleNotFoundError(
            f"reading or downloading this data needs {title}, which is not installed: {installing('data')}."
        ) from None


def read_picture(path: Path, formats: Sequence[str], mode: str | None = None, max_pixels: int | None = None) -> Any:
    """The picture at ``path``, decoded after the number of its pixels was checked.

    Args:
        formats: Pillow's names of the formats that are tried, whatever the file is called.
        mode: what the picture is converted to; None leaves it as it is.
        max_pixels: the bound on width × height (default ``MAX_PIXELS``).
    """
    image, limit = library("PIL.Image", "Pillow"), max_pixels or MAX_PIXELS
    try:
        if not path.is_file():
            raise ValueError("it is not a regular file")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", image.DecompressionBombWarning)  # the bound here is lower
            with image.open(path, formats=formats) as picture:
                width, height = picture.size
                if width * height > limit:
                    raise ValueError(f"it has {width:,}×{height:,} pixels, more than {limit:,}")
                picture.load()
                return picture.convert(mode) if mode else picture
    except Exception as error:  # whatever Pillow's decoders raise over a damaged file
        kinds, why = " or ".join(formats), str(error).rstrip(".") or type(error).__name__
        raise DamagedData(f"{path} cannot be read as an image ({kinds}): {why}.") from None


def read_square(path: Path, side: int, formats: Sequence[str]) -> Tensor:
    """The picture at ``path`` as uint8 ``[3, side, side]``, resized where it has another size."""
    rgb = read_picture(path, formats, "RGB")
    if rgb.size != (side, side):
        rgb = rgb.resize((side, side), library("PIL.Image", "Pillow").Resampling.BILINEAR)
    pixels = torch.frombuffer(bytearray(rgb.tobytes()), dtype=torch.uint8)
    return pixels.reshape(side, side, 3).permute(2, 0, 1)

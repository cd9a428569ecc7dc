"""miniImageNet (Vinyals et al., 2016): 100 classes of ImageNet, 600 images each, 84×84. It is read in three layouts:

- ``miniimagenet/<wnid>/*.jpg``: classes in the order of their names;
- ``miniimagenet/{train,val,test}.csv`` of ``filename,label``, files in ``images/`` or ``<wnid>/``: as listed;
- ``miniimagenet/mini-imagenet-cache-{train,val,test}.pkl``, each a dict of ``image_data``, uint8 ``[n, 84, 84, 3]``,
  and ``class_dict``, ``{wnid: indices}``: classes in the order of their names, over the three files.

The lists and the caches split the *classes* (64, 16 and 20), for few-shot learning. Continual learning takes all of
them and splits the *images*, by a protocol of its own, so that what is returned has no split: see :class:`ByClass`.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from codecl.benchmarks.data.images import (
    SLACK,
    DamagedData,
    Status,
    checked,
    existing,
    first_existing,
    listing,
    read,
)
from codecl.benchmarks.data.pickles import array_of, load_table
from codecl.benchmarks.data.pictures import read_square

TITLE, SIDE, CLASSES, PER_CLASS = "miniImageNet", 84, 100, 600
CLASS_GROUPS = ("train", "val", "test")
SUFFIXES, FORMATS = {".jpg", ".jpeg", ".png"}, ("JPEG", "PNG")
MAX_LIST = 16 << 20  # bytes of a list; the published ones have 2 million


@dataclass(frozen=True, eq=False)
class ByClass:
    """Images without a published split, class after class, and within a class in the order of their file names.

    ``x`` is uint8 ``[n, 3, 84, 84]`` and ``y`` int64 ``[n]``, ascending; ``classes`` names them.
    """

    name: str
    x: Tensor
    y: Tensor
    classes: tuple[str, ...]
    status: Status
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.y)

    def indices_of(self, c: int) -> Tensor:
        """Where the images of class ``c`` are, ascending."""
        return (self.y == c).nonzero().flatten()


def miniimagenet(root: Path) -> ByClass:
    """100 classes of 600 images, 84×84."""
    home = first_existing([root / name for name in ("miniimagenet", "mini-imagenet", "miniImageNet")], TITLE)
    caches = [home / f"mini-imagenet-cache-{group}.pkl" for group in CLASS_GROUPS]
    if any(path.exists() for path in caches):
        return _caches([existing(path, TITLE) for path in caches])
    lists = [home / f"{group}.csv" for group in CLASS_GROUPS]
    files = _listed(home, lists) if any(path.exists() for path in lists) else _folders(home)
    return _files(home, files)


def _folders(home: Path) -> dict[str, list[Path]]:
    folders = [path for path in listing(home, TITLE) if re.fullmatch(r"n\d{8}", path.name)]
    return {
        folder.name: [path for path in listing(folder, TITLE) if path.suffix.lower() in SUFFIXES] for folder in folders
    }


def _listed(home: Path, lists: Sequence[Path]) -> dict[str, list[Path]]:
    classes: dict[str, list[Path]] = {}
    seen: set[str] = set()
    for path in lists:
        try:
            rows = list(csv.reader(read(path, TITLE, MAX_LIST).decode("utf-8-sig").splitlines()))
        except (UnicodeDecodeError, csv.Error) as error:
            raise DamagedData(f"{path}: expected rows of filename,label: {error}.") from None
        if not rows or rows[0] != ["filename", "label"]:
            raise DamagedData(
                f"{path}: expected filename,label in its first line; found {rows[0] if rows else 'none'}."
            )
        for number, row in enumerate(rows[1:], 2):
            if len(row) != 2 or any(text != Path(text).name or "\\" in text or "\0" in text for text in row):
                raise DamagedData(f"{path}, line {number}: expected a file name and a class, no folders; found {row}.")
            file, label = row
            if file in seen:
                raise DamagedData(f"{path}, line {number}: {file} is listed twice.")
            seen.add(file)
            places = [home / "images" / file, home / label / file]
            classes.setdefault(label, []).append(first_existing(places, f"{path}, line {number}: {file}"))
    return {label: sorted(files) for label, files in classes.items()}


def _files(home: Path, classes: dict[str, list[Path]]) -> ByClass:
    files = [path for paths in classes.values() for path in paths]
    empty = [label for label, paths in classes.items() if not paths]
    if not files or empty:
        where = f" in {empty[0]}" if empty else ""
        raise DamagedData(f"{home}: expected JPEGs in folders named like n01532829; found none{where}.")
    y = torch.repeat_interleave(torch.tensor([len(paths) for paths in classes.values()]))
    _check_counts(home, y, tuple(classes))
    x = torch.empty(len(files), 3, SIDE, SIDE, dtype=torch.uint8)
    for i, path in enumerate(files):
        x[i] = read_square(path, SIDE, FORMATS)
    return _by_class(home, x, y, tuple(classes))


def _caches(paths: Sequence[Path]) -> ByClass:
    found: dict[str, Tensor] = {}
    limit = 2 * CLASSES * PER_CLASS * 3 * SIDE * SIDE + SLACK
    for path in paths:
        table = load_table(path, read(path, TITLE, limit))
        x, classes = array_of(path, table, "image_data"), table.get("class_dict")
        if x.dtype != torch.uint8 or x.ndim != 4 or tuple(x.shape[1:]) != (SIDE, SIDE, 3):
            raise DamagedData(f"{path}: expected images as uint8 [n, 84, 84, 3]; found {list(x.shape)} of {x.dtype}.")
        where = _class_indices(path, classes, len(x))
        if again := sorted(found.keys() & where.keys()):
            raise DamagedData(f"{path}: the class {again[0]} is in another of the three files too.")
        found |= {name: x[indices] for name, indices in where.items()}
    home, names_in_order = paths[0].parent, sorted(found)
    y = torch.repeat_interleave(torch.tensor([len(found[name]) for name in names_in_order]))
    _check_counts(home, y, tuple(names_in_order))
    x = torch.cat([found.pop(name).permute(0, 3, 1, 2) for name in names_in_order])
    return _by_class(home, x, y, tuple(names_in_order))


def _class_indices(path: Path, classes: Any, images: int) -> dict[str, Tensor]:
    """The indices of the images of each class, ascending; every image is in one class."""
    if not isinstance(classes, dict) or not 0 < len(classes) <= CLASSES:
        found = f"{len(classes):,} classes" if isinstance(classes, dict) else type(classes).__name__
        raise DamagedData(f"{path}: expected class_dict, a dict of up to {CLASSES} classes; found {found}.")
    where = {}
    for key, value in classes.items():
        name = key.decode("latin1") if isinstance(key, bytes) else str(key)
        indices = array_of(path, {name: value}, name).flatten()
        where[name] = indices[: images + 1].long().sort().values
    if not torch.equal(torch.cat(list(where.values())).sort().values, torch.arange(images)):
        raise DamagedData(f"{path}: expected one class in class_dict for each of the {images:,} images.")
    return where


def _check_counts(home: Path, y: Tensor, classes: tuple[str, ...]) -> None:
    if len(classes) > CLASSES or int(y.bincount().max()) > PER_CLASS:
        raise DamagedData(
            f"{home}: expected {CLASSES} classes of {PER_CLASS} images, or fewer in a subset; "
            f"found {len(classes)} classes of up to {int(y.bincount().max()):,}."
        )


def _by_class(home: Path, x: Tensor, y: Tensor, classes: tuple[str, ...]) -> ByClass:
    images = checked(home, x, y, len(classes), CLASSES * PER_CLASS)
    status: Status = "whole" if len(images) == CLASSES * PER_CLASS else "subset"
    return ByClass("miniimagenet", images.x, images.y, classes, status)

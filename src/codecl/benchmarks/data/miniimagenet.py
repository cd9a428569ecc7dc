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

from codecl.benchmarks.data.images import DamagedData, Images, checked, expect, listing, locate, read, read_square
from codecl.benchmarks.data.pickles import array_of, load_table

TITLE, SIDE, CLASSES, PER_CLASS = "miniImageNet", 84, 100, 600
CLASS_GROUPS = ("train", "val", "test")
SUFFIXES, FORMATS = {".jpg", ".jpeg", ".png"}, ("JPEG", "PNG")
MAX_LIST = 16 << 20  # bytes of a list; the published ones have 2 million


@dataclass(frozen=True, eq=False)
class ByClass(Images):
    """Images without a published split, class after class, and within a class in the order of their file names.

    ``x`` is uint8 ``[n, 3, 84, 84]`` and ``y`` int64 ``[n]``, ascending; ``classes`` names them.
    """

    classes: tuple[str, ...]
    status: str
    notes: tuple[str, ...] = ()

    def indices_of(self, c: int) -> Tensor:
        """Where the images of class ``c`` are, ascending."""
        return (self.y == c).nonzero().flatten()


def miniimagenet(root: Path) -> ByClass:
    """100 classes of 600 images, 84×84."""
    home = locate(TITLE, *(root / name for name in ("miniimagenet", "mini-imagenet", "miniImageNet")))
    caches = [home / f"mini-imagenet-cache-{group}.pkl" for group in CLASS_GROUPS]
    if any(path.exists() for path in caches):
        return _caches(home, [locate(TITLE, path) for path in caches])
    lists = [home / f"{group}.csv" for group in CLASS_GROUPS]
    return _files(home, _listed(home, lists) if any(path.exists() for path in lists) else _folders(home))


def _folders(home: Path) -> dict[str, list[Path]]:
    folders = [path for path in listing(home, TITLE) if re.fullmatch(r"n\d{8}", path.name)]
    return {folder.name: listing(folder, TITLE, SUFFIXES) for folder in folders}


def _listed(home: Path, lists: Sequence[Path]) -> dict[str, list[Path]]:
    files: dict[str, tuple[str, Path]] = {}
    for path in lists:
        try:
            rows = list(csv.reader(read(path, TITLE, MAX_LIST).decode("utf-8-sig").splitlines()))
        except (UnicodeDecodeError, csv.Error) as error:
            raise DamagedData(f"{path}: expected rows of filename,label: {error}.") from None
        head = rows[0] if rows else "none"
        expect(head == ["filename", "label"], path, "filename,label in its first line", head)
        for number, row in enumerate(rows[1:], 2):
            line = f"{path}, line {number}"
            right = len(row) == 2 and not any(text != Path(text).name or "\\" in text or "\0" in text for text in row)
            expect(right, line, "a file name and a class, no folders", row)
            file, label = row
            if file in files:
                raise DamagedData(f"{line}: {file} is listed twice.")
            files[file] = label, locate(f"{line}: {file}", home / "images" / file, home / label / file)
    labels = dict.fromkeys(label for label, _ in files.values())
    return {label: sorted(path for of, path in files.values() if of == label) for label in labels}


def _files(home: Path, classes: dict[str, list[Path]]) -> ByClass:
    files = [path for paths in classes.values() for path in paths]
    empty = [label for label, paths in classes.items() if not paths]
    where = f" in {empty[0]}" if empty else ""
    expect(bool(files) and not empty, home, "JPEGs in folders named like n01532829", f"none{where}")
    y = _labels(home, list(classes.values()))
    x = torch.empty(len(files), 3, SIDE, SIDE, dtype=torch.uint8)
    for i, path in enumerate(files):
        x[i] = read_square(path, SIDE, FORMATS)
    return _by_class(home, x, y, tuple(classes))


def _caches(home: Path, paths: Sequence[Path]) -> ByClass:
    found: dict[str, Tensor] = {}
    limit = 2 * CLASSES * PER_CLASS * 3 * SIDE * SIDE
    for path in paths:
        table = load_table(path, read(path, TITLE, limit))
        x = array_of(path, table, "image_data")
        right = x.dtype == torch.uint8 and x.ndim == 4 and x.shape[1:] == (SIDE, SIDE, 3)
        expect(right, path, "images as uint8 [n, 84, 84, 3]", f"{list(x.shape)} of {x.dtype}")
        where = _class_indices(path, table.get("class_dict"), len(x))
        if again := sorted(found.keys() & where.keys()):
            raise DamagedData(f"{path}: the class {again[0]} is in another of the three files too.")
        found |= {name: x[indices] for name, indices in where.items()}
    names = sorted(found)
    y = _labels(home, [found[name] for name in names])
    return _by_class(home, torch.cat([found.pop(name).permute(0, 3, 1, 2) for name in names]), y, tuple(names))


def _class_indices(path: Path, classes: Any, images: int) -> dict[str, Tensor]:
    """The indices of the images of each class, ascending; every image is in one class."""
    count = f"{len(classes):,} classes" if isinstance(classes, dict) else type(classes).__name__
    right = isinstance(classes, dict) and 0 < len(classes) <= CLASSES
    expect(right, path, f"class_dict, a dict of up to {CLASSES} classes", count)
    where = {}
    for key, value in classes.items():
        name = key.decode("latin1") if isinstance(key, bytes) else str(key)
        where[name] = array_of(path, {name: value}, name).flatten()[: images + 1].long().sort().values
    if not torch.equal(torch.cat(list(where.values())).sort().values, torch.arange(images)):
        raise DamagedData(f"{path}: expected one class in class_dict for each of the {images:,} images.")
    return where


def _labels(home: Path, classes: Sequence[Any]) -> Tensor:
    """The label of each image, class after class, if there are not too many of them."""
    sizes = torch.tensor([len(images) for images in classes])
    right = len(sizes) <= CLASSES and int(sizes.max()) <= PER_CLASS
    expected = f"{CLASSES} classes of {PER_CLASS} images, or fewer in a subset"
    expect(right, home, expected, f"{len(sizes)} classes of up to {int(sizes.max()):,}")
    return torch.repeat_interleave(sizes)


def _by_class(home: Path, x: Tensor, y: Tensor, classes: tuple[str, ...]) -> ByClass:
    images = checked(home, x, y, len(classes), CLASSES * PER_CLASS)
    return ByClass(images.x, images.y, classes, "whole" if len(images) == CLASSES * PER_CLASS else "subset")

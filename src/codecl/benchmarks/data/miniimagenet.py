"""miniImageNet (Vinyals et al., 2016): 100 classes of ImageNet, 600 images each, 84×84. It is read in three layouts:

- ``miniimagenet/<wnid>/*.jpg``: classes in the order of their names;
- ``miniimagenet/{train,val,test}.csv`` of ``filename,label``, files in ``images/`` or ``<wnid>/``: as listed;
- ``miniimagenet/mini-imagenet-cache-{train,val,test}.pkl``, each a dict of ``image_data``, uint8 ``[n, 84, 84, 3]``,
  and ``class_dict``, ``{wnid: indices}``: classes in the order of their names, over the three files.

The lists and the caches part the *classes* (64, 16 and 20), for few-shot learning. Continual learning takes all of them
and parts the *images*, by a protocol of its own, so that what is returned has no parts: see :class:`ByClass`.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from codecl.benchmarks.data.images import (
    DamagedData,
    DataSet,
    Images,
    Status,
    checked,
    existing,
    first_existing,
    listing,
    pillow,
    read,
)
from codecl.benchmarks.data.pickles import array_of, load_table

SIDE, CLASSES, OF_CLASS = 84, 100, 600
PARTS = ("train", "val", "test")
SUFFIXES = {".jpg", ".jpeg", ".png"}
MAX_PIXELS = 50_000_000  # of one image, before it is resized; the largest of ImageNet has 19 million
NAMED_PART = re.compile(r"(?:^|_)(train|test)_\d+\.")


@dataclass(frozen=True, eq=False)
class ByClass:
    """Images without a published split, class after class, and within a class in the order of their file names.

    ``x`` is uint8 ``[n, 3, 84, 84]`` and ``y`` int64 ``[n]``, ascending; ``classes`` names them. ``is_test``, bool
    ``[n]``, is there if every file name says train or test (``n01532829_test_00000.jpg``); the publisher's do not.
    """

    name: str
    x: Tensor
    y: Tensor
    classes: tuple[str, ...]
    is_test: Tensor | None
    status: Status
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.y)

    def of_class(self, c: int) -> Tensor:
        """Where the images of class ``c`` are, ascending."""
        return (self.y == c).nonzero().flatten()

    def by_name(self) -> DataSet:
        """The split that the file names say."""
        if self.is_test is None:
            raise DamagedData(f"{self.name}: the names of the files do not say which images are for testing.")
        train, test = (Images(self.x[part], self.y[part]) for part in (~self.is_test, self.is_test))
        return DataSet(self.name, train, test, self.status, self.notes)


def miniimagenet(root: Path) -> ByClass:
    """100 classes of 600 images, 84×84."""
    title = "miniImageNet"
    home = first_existing([root / name for name in ("miniimagenet", "mini-imagenet", "miniImageNet")], title)
    caches = [home / f"mini-imagenet-cache-{part}.pkl" for part in PARTS]
    if any(path.exists() for path in caches):
        return _caches([existing(path, title) for path in caches])
    lists = [home / f"{part}.csv" for part in PARTS]
    files = _listed(home, lists) if any(path.exists() for path in lists) else _folders(home)
    return _files(home, files)


def _folders(home: Path) -> dict[str, list[Path]]:
    title = "miniImageNet"
    folders = [path for path in listing(home, title) if re.fullmatch(r"n\d{8}", path.name)]
    return {
        folder.name: [path for path in listing(folder, title) if path.suffix.lower() in SUFFIXES] for folder in folders
    }


def _listed(home: Path, lists: Sequence[Path]) -> dict[str, list[Path]]:
    classes: dict[str, list[Path]] = {}
    seen: set[str] = set()
    for path in lists:
        try:
            rows = list(csv.reader(read(path, "miniImageNet").decode("utf-8-sig").splitlines()))
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
        x[i] = _picture(path)
    says = [NAMED_PART.search(path.name) for path in files]
    is_test = torch.tensor([match is not None and match[1] == "test" for match in says]) if all(says) else None
    return _by_class(home, x, y, tuple(classes), is_test)


def _picture(path: Path) -> Tensor:
    image = pillow()
    try:
        with image.open(path, formats=("JPEG", "PNG")) as picture:
            width, height = picture.size
            if width * height > MAX_PIXELS:
                raise ValueError(f"{width}×{height} pixels")
            rgb = picture.convert("RGB")
    except Exception as error:  # whatever Pillow's decoders raise over a damaged file
        raise DamagedData(f"{path}: expected an image (JPEG or PNG): {error}.") from None
    if rgb.size != (SIDE, SIDE):
        rgb = rgb.resize((SIDE, SIDE), image.Resampling.BILINEAR)
    return torch.frombuffer(bytearray(rgb.tobytes()), dtype=torch.uint8).reshape(SIDE, SIDE, 3).permute(2, 0, 1)


def _caches(paths: Sequence[Path]) -> ByClass:
    found: dict[str, Tensor] = {}
    for path in paths:
        table = load_table(path)
        x, classes = array_of(path, table, "image_data"), table.get("class_dict")
        if x.dtype != torch.uint8 or x.ndim != 4 or tuple(x.shape[1:]) != (SIDE, SIDE, 3):
            raise DamagedData(f"{path}: expected images as uint8 [n, 84, 84, 3]; found {list(x.shape)} of {x.dtype}.")
        if not isinstance(classes, dict) or not classes:
            raise DamagedData(f"{path}: expected class_dict, a dict of classes; found {type(classes).__name__}.")
        names = {key.decode("latin1") if isinstance(key, bytes) else str(key): key for key in classes}
        where = {name: array_of(path, {name: classes[key]}, name).flatten().double() for name, key in names.items()}
        where = {name: indices.sort().values.long() for name, indices in where.items()}
        if not torch.equal(torch.cat(list(where.values())).sort().values, torch.arange(len(x))):
            raise DamagedData(f"{path}: expected one class in class_dict for each of the {len(x):,} images.")
        if again := sorted(found.keys() & where.keys()):
            raise DamagedData(f"{path}: the class {again[0]} is in another of the three files too.")
        found |= {name: x[indices] for name, indices in where.items()}
    home, names_in_order = paths[0].parent, sorted(found)
    y = torch.repeat_interleave(torch.tensor([len(found[name]) for name in names_in_order]))
    _check_counts(home, y, tuple(names_in_order))
    x = torch.cat([found.pop(name).permute(0, 3, 1, 2) for name in names_in_order])
    return _by_class(home, x, y, tuple(names_in_order), None)


def _check_counts(home: Path, y: Tensor, classes: tuple[str, ...]) -> None:
    if len(classes) > CLASSES or int(y.bincount().max()) > OF_CLASS:
        raise DamagedData(
            f"{home}: expected {CLASSES} classes of {OF_CLASS} images, or fewer in a subset; "
            f"found {len(classes)} classes of up to {int(y.bincount().max()):,}."
        )


def _by_class(home: Path, x: Tensor, y: Tensor, classes: tuple[str, ...], is_test: Tensor | None) -> ByClass:
    images = checked(home, x, y, len(classes), CLASSES * OF_CLASS)
    status: Status = "whole" if len(images) == CLASSES * OF_CLASS else "subset"
    return ByClass("miniimagenet", images.x, images.y, classes, is_test, status)

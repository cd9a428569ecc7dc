"""notMNIST, the small set (Bulatov, 2011): letters A to J from fonts, as a folder of PNGs, or as the pickles of HAT.

Folder: ``notMNIST_small/{A..J}/*.png``, 28×28, grey. There is no published split. Where every file name begins with
``train_`` or ``test_``, that is the split. Otherwise a tenth, rounded up, is the test part: the files whose SHA-256
of ``letter/name`` comes first, so that the split depends on nothing but the names. Of the 18,724 readable images this
makes 16,851 and 1,873.

Pickles: ``notMNIST/notmnist_{train,test}.pkl`` (or in ``notMNIST_small`` or the root), each a dict of ``features``,
uint8 ``[n, 1, s, s]``, and ``labels``, whole numbers ``[n]``. Those of HAT (Serrà et al., 2018), which later papers
read, are a random 16,853 and 1,873 of 18,726 images *resized* to 32×32. The script that made them
(nkundiushuti/notmnist_convert) leaves a blank image labelled A at the end for each of the two files that cannot be
read.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import torch

from codecl.benchmarks.data.images import DamagedData, DataSet, checked, expect, listing, locate, read, read_picture
from codecl.benchmarks.data.pickles import array_of, load_table

SIDE, LETTERS = 28, "ABCDEFGHIJ"
READABLE, PICKLED = 18_724, (16_853, 1_873)
UNREADABLE = {
    "A/RGVtb2NyYXRpY2FCb2xkT2xkc3R5bGUgQm9sZC50dGY=.png",
    "F/Q3Jvc3NvdmVyIEJvbGRPYmxpcXVlLnR0Zg==.png",
}
"""Empty files in the archive as published."""


def notmnist(root: Path) -> DataSet:
    """Letters A to J, ten classes; 18,724 images of 28×28 in the folder, 18,726 of 32×32 in the pickles."""
    folder = root / "notMNIST_small"
    pickles = [home / "notmnist_train.pkl" for home in (root / "notMNIST", folder, root)]
    if (folder / "A").exists() or not any(path.exists() for path in pickles):
        return _folder(locate("notMNIST", folder))
    return _pickles(locate("notMNIST", *pickles).parent)


def _folder(folder: Path) -> DataSet:
    names = [f"{a}/{path.name}" for a in LETTERS for path in listing(folder / a, "notMNIST", [".png"])]
    most = READABLE + len(UNREADABLE)
    expect(len(names) <= most, folder, f"{READABLE:,} images, or fewer in a subset", f"{len(names):,}")
    decoded = {name: _pixels(folder / name) for name in names}
    images = {name: data for name, data in decoded.items() if data is not None}
    if not images:
        raise DamagedData(f"{folder}: expected grey PNGs of {SIDE}×{SIDE} in the folders A to J; none can be read.")
    if bad := [name for name in names if name not in images and name not in UNREADABLE]:
        raise DamagedData(
            f"{folder}: expected grey PNGs of {SIDE}×{SIDE}; {len(bad):,} of {len(names):,} files are not, beside the "
            f"{len(UNREADABLE)} published so: {', '.join(bad[:3])}{' and more' if len(bad) > 3 else ''}."
        )
    x = torch.frombuffer(bytearray().join(images.values()), dtype=torch.uint8).reshape(-1, 1, SIDE, SIDE)
    y = torch.tensor([LETTERS.index(name[0]) for name in images], dtype=torch.int64)
    is_test = torch.tensor(_test_part(folder, list(images)))
    train, test = (checked(folder, x[part], y[part], 10, READABLE) for part in (~is_test, is_test))
    skipped = len(names) - len(images)
    notes = (f"{skipped} files that cannot be read are skipped; they are published so",) if skipped else ()
    return DataSet(train, test, "whole" if len(images) == READABLE else "subset", notes)


def _pixels(path: Path) -> bytes | None:
    """The pixels of a picture that is as published."""
    try:
        picture = read_picture(path, ("PNG",), max_pixels=SIDE * SIDE)
    except DamagedData:
        return None
    data: bytes = picture.tobytes()
    return data if picture.size == (SIDE, SIDE) and picture.mode == "L" else None


def _test_part(folder: Path, names: list[str]) -> list[bool]:
    says = [next((w for w in ("train_", "test_") if name[2:].startswith(w)), None) for name in names]
    if all(says):
        return [word == "test_" for word in says]
    expect(not any(says), folder, "that all file names begin with train_ or test_, or none", "both")
    ranked = sorted(names, key=lambda name: hashlib.sha256(name.encode()).digest())
    chosen = set(ranked[: -(-len(names) // 10)])
    return [name in chosen for name in names]


def _pickles(home: Path) -> DataSet:
    parts = []
    for name, most in zip(("train", "test"), PICKLED, strict=True):
        path = home / f"notmnist_{name}.pkl"
        table = load_table(path, read(path, "notMNIST", 2 * most * 32 * 32))
        x, y = array_of(path, table, "features"), array_of(path, table, "labels")
        right = x.dtype == torch.uint8 and x.shape[1:] in ((1, 28, 28), (1, 32, 32)) and y.ndim == 1
        expected = "features as uint8 [n, 1, 32, 32] or [n, 1, 28, 28] and labels [n]"
        expect(right, path, expected, f"{list(x.shape)} of {x.dtype} and {list(y.shape)}")
        parts.append(checked(path, x, y, 10, most))
    sizes = [f"{part.x.shape[2]}×{part.x.shape[3]}" for part in parts]
    expect(sizes[0] == sizes[1], home, "images of one size", " and ".join(sizes))
    blank = sum(int((part.x.flatten(1).amax(1) == 0).sum()) for part in parts)
    notes = [f"{blank} images are blank, in place of files that could not be read"] if blank else []
    return DataSet.of(parts, PICKLED, False, *notes)

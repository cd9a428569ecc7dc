"""notMNIST as picture files and as HAT's pickles: how it is split, and what is said over files that do not fit."""

import hashlib
import pickle
import sys

import numpy as np
import pytest
import torch

from codecl.benchmarks.data import notmnist
from codecl.benchmarks.data.images import DamagedData, MissingData
from tests.benchmarks import files

pytest.importorskip("PIL")
UNREADABLE = sorted(notmnist.UNREADABLE)


def test_notmnist_splits_by_the_names_where_they_say_so(tmp_path):
    made = files.notmnist(tmp_path, ["test_00001.png", "train_00000.png", "train_00007.png"])
    found = notmnist.notmnist(tmp_path)
    assert (found.status, found.train.x.shape, found.test.x.shape) == ("subset", (20, 1, 28, 28), (10, 1, 28, 28))
    assert torch.equal(found.test.x[:, 0], torch.tensor(np.stack([made[f"{c}/test_00001.png"] for c in "ABCDEFGHIJ"])))
    assert found.train.y.tolist() == [c for c in range(10) for _ in range(2)]
    assert torch.equal(found.train.x[3, 0], torch.tensor(made["B/train_00007.png"]))
    assert found.notes == ()


def test_notmnist_splits_by_a_rule_otherwise(tmp_path):
    made = files.notmnist(tmp_path, ["bbb.png", "aaa.png", "c==.png"])
    found = notmnist.notmnist(tmp_path)
    assert (len(found.train), len(found.test)) == (27, 3)
    first = sorted(made, key=lambda name: hashlib.sha256(name.encode()).hexdigest())[:3]
    assert torch.equal(found.test.x[:, 0], torch.tensor(np.stack([made[name] for name in sorted(first)])))
    assert found.test.y.tolist() == ["ABCDEFGHIJ".index(name[0]) for name in sorted(first)]


def test_the_rule_makes_the_counts_that_are_documented(tmp_path):
    names = [f"{letter}/{i}.png" for letter in "ABCDEFGHIJ" for i in range(1873)][: notmnist.READABLE]
    assert sum(notmnist._test_part(tmp_path, names)) == 1873
    assert sum(notmnist._test_part(tmp_path, names[:10])) == 1
    assert sum(notmnist._test_part(tmp_path, names[:11])) == 2


def test_some_names_that_say_and_some_that_do_not_are_refused(tmp_path):
    files.notmnist(tmp_path, ["train_00000.png", "other.png"])
    with pytest.raises(DamagedData, match="begin with train_ or test_, or none; found both"):
        notmnist.notmnist(tmp_path)


def test_only_the_files_published_unreadable_are_skipped(tmp_path):
    files.notmnist(tmp_path, ["a.png", "b.png"])
    for name in UNREADABLE:
        files.write(tmp_path / "notMNIST_small" / name, b"")
    found = notmnist.notmnist(tmp_path)
    assert len(found.train) + len(found.test) == 20
    assert found.notes == ("2 files that cannot be read are skipped; they are published so",)
    for i in range(4):
        files.write(tmp_path / "notMNIST_small" / "C" / f"{i}.png", b"no picture")
    with pytest.raises(DamagedData, match=r"4 of 26 files are not, .*: C/0.png, C/1.png, C/2.png and more"):
        notmnist.notmnist(tmp_path)


@pytest.mark.parametrize("x", [files.pixels(28, 27), files.pixels(28, 28, 3), files.pixels(2000, 2000)])
def test_a_picture_of_another_size_or_mode_is_named(tmp_path, x):
    files.notmnist(tmp_path, ["a.png"])
    files.picture(tmp_path / "notMNIST_small" / "D" / "other.png", x)
    with pytest.raises(DamagedData, match=r"grey PNGs of 28×28; 1 of 11 files are not.*D/other\.png"):
        notmnist.notmnist(tmp_path)


def test_notmnist_counts(tmp_path, monkeypatch):
    files.notmnist(tmp_path, ["a.png", "b.png"])
    monkeypatch.setattr(notmnist, "READABLE", 20)
    assert notmnist.notmnist(tmp_path).status == "whole"
    monkeypatch.setattr(notmnist, "READABLE", 17)
    with pytest.raises(DamagedData, match="expected 17 images, or fewer in a subset; found 20"):
        notmnist.notmnist(tmp_path)


def test_notmnist_is_missing(tmp_path):
    with pytest.raises(MissingData, match=r"notMNIST is not at .*notMNIST_small"):
        notmnist.notmnist(tmp_path)
    files.notmnist(tmp_path, ["a.png"])
    (tmp_path / "notMNIST_small" / "J" / "a.png").unlink()
    (tmp_path / "notMNIST_small" / "J").rmdir()
    with pytest.raises(MissingData, match="notMNIST_small/J"):
        notmnist.notmnist(tmp_path)


def test_without_pillow_it_says_what_to_install(tmp_path, monkeypatch):
    files.notmnist(tmp_path, ["a.png"])
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'codecl\[data\]'"):
        notmnist.notmnist(tmp_path)


def hat(root, side=32, **changes):
    for name, n in (("train", 9), ("test", 3)):
        table = {"features": files.pixels(n, 1, side, side, seed=n), "labels": np.arange(n, dtype=np.uint8)} | changes
        files.write(root / f"notmnist_{name}.pkl", pickle.dumps(table, pickle.HIGHEST_PROTOCOL))


@pytest.mark.parametrize("home", ["notMNIST", "."])
@pytest.mark.parametrize("side", [28, 32])
def test_the_pickles_of_hat(tmp_path, home, side, monkeypatch):
    hat(tmp_path / home, side)
    found = notmnist.notmnist(tmp_path)
    assert (found.status, len(found.test), found.notes) == ("subset", 3, ())
    assert torch.equal(found.train.x, torch.tensor(files.pixels(9, 1, side, side, seed=9)))
    assert found.train.y.tolist() == [*range(9)]
    monkeypatch.setattr(notmnist, "PICKLED", (9, 3))
    assert notmnist.notmnist(tmp_path).status == "whole"


def test_blank_images_in_the_pickles_are_said(tmp_path):
    hat(tmp_path, features=np.zeros((3, 1, 32, 32), np.uint8), labels=[0, 0, 0])
    assert notmnist.notmnist(tmp_path).notes == ("6 images are blank, in place of files that could not be read",)


@pytest.mark.parametrize(("change", "words"), [
    ({"features": np.zeros((3, 32, 32, 1), np.uint8)}, r"expected features as uint8 .*found \[3, 32, 32, 1\]"),
    ({"features": np.zeros((3, 1, 32, 32))}, "float64"),
    ({"labels": [0, 1, 10]}, "images and 3 labels|expected labels from 0 to 9"),
    ({"labels": np.zeros(3)}, "images and 3 labels|expected labels"),
])  # fmt: skip
def test_the_pickles_say_what_was_expected(tmp_path, change, words):
    hat(tmp_path, **change)
    with pytest.raises(DamagedData, match=words):
        notmnist.notmnist(tmp_path)

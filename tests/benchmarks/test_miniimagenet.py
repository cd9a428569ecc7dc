"""miniImageNet as folders, lists and caches: which picture is which, and what is said over files that do not fit."""

import pickle

import numpy as np
import pytest
import torch

from codecl.benchmarks.data import images
from codecl.benchmarks.data import miniimagenet as mini
from codecl.benchmarks.data.images import DamagedData, MissingData
from tests.benchmarks import files

pytest.importorskip("PIL")


def miniature(root, names=("n00000003", "n00000001"), count=3, title="{wnid}{i:08d}.jpg"):
    for c, wnid in enumerate(names):
        for i in reversed(range(count)):
            x = np.full((84, 84, 3), 40 * c + 10 * i, np.uint8)
            files.picture(root / "miniimagenet" / wnid / title.format(wnid=wnid, i=i), x)


def test_miniimagenet_folders(tmp_path):
    miniature(tmp_path)
    found = mini.miniimagenet(tmp_path)
    assert (found.status, found.classes) == ("subset", ("n00000001", "n00000003"))
    assert (found.x.shape, found.x.dtype, found.y.tolist()) == ((6, 3, 84, 84), torch.uint8, [0, 0, 0, 1, 1, 1])
    assert (found.x.float().mean((1, 2, 3)) - torch.tensor([40, 50, 60, 0, 10, 20])).abs().max() < 2
    assert found.indices_of(1).tolist() == [3, 4, 5]


def test_pictures_are_resized_and_made_rgb(tmp_path):
    home = tmp_path / "miniimagenet" / "n00000001"
    x = files.pixels(40, 200, 3)
    files.picture(home / "a.png", x)
    files.picture(home / "b.png", files.pixels(84, 84))
    found = mini.miniimagenet(tmp_path)
    from PIL import Image

    resized = np.asarray(Image.fromarray(x).resize((84, 84), Image.Resampling.BILINEAR))
    assert torch.equal(found.x[0].permute(1, 2, 0), torch.tensor(resized))
    assert torch.equal(found.x[1], torch.tensor(files.pixels(84, 84)).expand(3, 84, 84))


def lists(root, rows):
    for part, lines in rows.items():
        files.write(root / "miniimagenet" / f"{part}.csv", "\n".join(["filename,label", *lines]).encode())


def test_miniimagenet_lists_order_the_classes_and_choose_the_files(tmp_path):
    miniature(tmp_path)
    row = "{0}{1:08d}.jpg,{0}".format
    lists(tmp_path, {
        "train": [row("n00000003", 2), row("n00000003", 0)], "val": [row("n00000001", 1)], "test": [],
    })  # fmt: skip
    found = mini.miniimagenet(tmp_path)
    assert (found.classes, found.y.tolist()) == (("n00000003", "n00000001"), [0, 0, 1])
    assert (found.x.float().mean((1, 2, 3)) - torch.tensor([0, 20, 50])).abs().max() < 2
    (tmp_path / "miniimagenet" / "images").mkdir()
    for path in (tmp_path / "miniimagenet").glob("n*/*.jpg"):
        path.rename(tmp_path / "miniimagenet" / "images" / path.name)
    assert torch.equal(mini.miniimagenet(tmp_path).x, found.x)


@pytest.mark.parametrize(("line", "words"), [
    ("../../secret.jpg,n00000001", "train.csv, line 2: expected a file name and a class, no folders"),
    ("a.jpg,../n1", "no folders"),
    ("/etc/passwd,n00000001", "no folders"),
    ("..,n00000001", r"cannot be read as an image|is not at|no folders"),
    ("a\\b.jpg,n00000001", "no folders"),
    ("a.jpg", "no folders"),
    ("a.jpg,n1,n2", "no folders"),
])  # fmt: skip
def test_lists_lead_nowhere_else(tmp_path, line, words):
    miniature(tmp_path)
    lists(tmp_path, {"train": [line], "val": [], "test": []})
    with pytest.raises(DamagedData, match=words):
        mini.miniimagenet(tmp_path)


def test_lists_name_the_file_that_is_not_there(tmp_path):
    miniature(tmp_path)
    lists(tmp_path, {"train": ["n000000030.jpg,n00000003"], "val": [], "test": []})
    with pytest.raises(MissingData, match=r"train\.csv, line 2: n000000030\.jpg is not at"):
        mini.miniimagenet(tmp_path)
    row = "n0000000300000000.jpg,n00000003"
    lists(tmp_path, {"train": [row], "val": [], "test": [row]})
    with pytest.raises(DamagedData, match=r"test\.csv, line 2: n0000000300000000\.jpg is listed twice"):
        mini.miniimagenet(tmp_path)
    lists(tmp_path, {"train": [], "val": []})
    (tmp_path / "miniimagenet" / "test.csv").write_text("a,b\n")
    with pytest.raises(DamagedData, match="expected filename,label in its first line"):
        mini.miniimagenet(tmp_path)


def caches(root, changes=None, protocol=2):
    tables = {
        "train": {"image_data": files.pixels(4, 84, 84, 3), "class_dict": {"n3": [1, 0], "n1": np.array([2, 3])}},
        "val": {"image_data": files.pixels(1, 84, 84, 3, seed=1), "class_dict": {"n2": [0]}},
        "test": {"image_data": files.pixels(1, 84, 84, 3, seed=2), "class_dict": {"n0": [0]}},
    }
    for part, table in tables.items():
        table |= (changes or {}).get(part, {})
        files.write(root / "miniimagenet" / f"mini-imagenet-cache-{part}.pkl", pickle.dumps(table, protocol))
    return tables


@pytest.mark.parametrize("protocol", [0, 2, 3, 4, 5])
def test_miniimagenet_caches(tmp_path, protocol):
    tables = caches(tmp_path, protocol=protocol)
    found = mini.miniimagenet(tmp_path)
    assert (found.classes, found.y.tolist()) == (("n0", "n1", "n2", "n3"), [0, 1, 1, 2, 3, 3])
    x = tables["train"]["image_data"]
    rows = [tables["test"]["image_data"][0], x[2], x[3], tables["val"]["image_data"][0], x[0], x[1]]
    assert torch.equal(found.x.permute(0, 2, 3, 1), torch.tensor(np.stack(rows)))


@pytest.mark.parametrize(("changes", "words"), [
    ({"val": {"class_dict": {"n2": [1]}}}, "cache-val.pkl: expected one class in class_dict for each of the 1 images"),
    ({"val": {"class_dict": {"n2": [0, 0]}}}, "expected one class"),
    ({"val": {"class_dict": {"n2": [-1]}}}, "expected one class"),
    ({"train": {"class_dict": {"n3": [0, 1, 2]}}}, "cache-train.pkl: expected one class"),
    ({"val": {"class_dict": {"n1": [0]}}}, "the class n1 is in another of the three files too"),
    ({"val": {"class_dict": [0]}}, "expected class_dict, a dict of up to 100 classes; found list"),
    ({"val": {"class_dict": {"n2": "0"}}}, "a list of whole numbers as 'n2'"),
    ({"val": {"image_data": np.zeros((1, 3, 84, 84), np.uint8)}}, r"as uint8 \[n, 84, 84, 3\]; found \[1, 3, 84, 84\]"),
    ({"val": {"image_data": np.zeros((1, 84, 84, 3))}}, "float64"),
])  # fmt: skip
def test_caches_say_what_was_expected(tmp_path, changes, words):
    caches(tmp_path, changes)
    with pytest.raises(DamagedData, match=words):
        mini.miniimagenet(tmp_path)


def test_a_cache_that_is_not_there_is_named(tmp_path):
    caches(tmp_path)
    (tmp_path / "miniimagenet" / "mini-imagenet-cache-val.pkl").unlink()
    with pytest.raises(MissingData, match="mini-imagenet-cache-val"):
        mini.miniimagenet(tmp_path)


def test_miniimagenet_counts(tmp_path, monkeypatch):
    miniature(tmp_path)
    monkeypatch.setattr(mini, "CLASSES", 2)
    monkeypatch.setattr(mini, "PER_CLASS", 3)
    assert mini.miniimagenet(tmp_path).status == "whole"
    for name, value in (("CLASSES", 1), ("PER_CLASS", 2)):
        with monkeypatch.context() as changed:
            changed.setattr(mini, name, value)
            with pytest.raises(DamagedData, match="found 2 classes of up to 3"):
                mini.miniimagenet(tmp_path)


def test_damage_in_miniimagenet_is_named(tmp_path, monkeypatch):
    with pytest.raises(MissingData, match=r"miniImageNet is not at .*miniimagenet"):
        mini.miniimagenet(tmp_path)
    (tmp_path / "miniimagenet" / "n00000009").mkdir(parents=True)
    with pytest.raises(DamagedData, match="found none in n00000009"):
        mini.miniimagenet(tmp_path)
    path = files.picture(tmp_path / "miniimagenet" / "n00000009" / "a.jpg", files.pixels(84, 84, 3))
    monkeypatch.setattr(images, "MAX_PIXELS", 7000)
    with pytest.raises(DamagedData, match=r"a\.jpg cannot be read as an image .*84×84 pixels, more than 7,000"):
        mini.miniimagenet(tmp_path)
    monkeypatch.undo()
    path.write_bytes(path.read_bytes()[:300])
    with pytest.raises(DamagedData, match=r"a\.jpg cannot be read as an image \(JPEG or PNG\): "):
        mini.miniimagenet(tmp_path)


def test_a_class_dict_of_more_classes_or_indices_than_there_are_is_refused(tmp_path):
    caches(tmp_path, {"val": {"class_dict": {str(i): [0] for i in range(101)}}})
    with pytest.raises(DamagedData, match="a dict of up to 100 classes; found 101 classes"):
        mini.miniimagenet(tmp_path)
    caches(tmp_path, {"val": {"class_dict": {"n2": np.zeros(10_000_000, np.uint8)}}})
    with pytest.raises(DamagedData, match="expected one class"):
        mini.miniimagenet(tmp_path)

"""Data sets of picture files, and the pickles made of them: notMNIST and miniImageNet."""

import contextlib
import hashlib
import pickle
import struct
import sys
import tracemalloc
import zlib

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from codecl.benchmarks.data import images, notmnist
from codecl.benchmarks.data import miniimagenet as mini
from codecl.benchmarks.data.folder import ImageFolder
from codecl.benchmarks.data.images import DamagedData, MissingData
from tests.benchmarks import files

pytest.importorskip("PIL")
drawn = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=25, deadline=None)
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


@drawn
@given(st.data())
def test_a_png_that_is_cut_off_is_named(tmp_path, data):
    if not (tmp_path / "notMNIST_small").exists():
        files.notmnist(tmp_path, ["a.png"])
    path = tmp_path / "notMNIST_small" / "F" / "cut.png"
    whole = files.picture(path, files.pixels(28, 28)).read_bytes()
    path.write_bytes(whole[: data.draw(st.integers(0, len(whole) - 20))])
    with pytest.raises(DamagedData, match=r"F/cut\.png"):
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


READERS = {
    "folder": (lambda root: ImageFolder(root / "folder", size=8)[0], "folder/cat/0.png"),
    "miniimagenet": (mini.miniimagenet, "miniimagenet/n00000001/0.png"),
    "notmnist": (notmnist.notmnist, "notMNIST_small/A/0.png"),
}
EPS = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 28 28\n%%EndComments\nshowpage\n%%EOF\n"


@pytest.fixture(params=READERS)
def read_picture_at(request, tmp_path):
    """Reads a data set of one kind whose only, or one, picture is put at the path."""
    read, name = READERS[request.param]
    if request.param == "notmnist":
        files.notmnist(tmp_path, ["1.png"])
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    return lambda: read(tmp_path), path


def test_no_reader_lets_pillow_try_other_formats(read_picture_at, monkeypatch):
    from PIL import EpsImagePlugin, Image

    read, path = read_picture_at
    Image.init()  # all formats, or the EPS would not be known
    monkeypatch.setattr(EpsImagePlugin, "Ghostscript", lambda *_, **__: pytest.fail("Ghostscript was started"))
    path.write_bytes(EPS)
    with pytest.raises(DamagedData, match=r"0\.png"):
        read()


def png_header(width, height):
    """A PNG whose header promises more than follows."""
    body = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + body + struct.pack(">I", zlib.crc32(body))


@pytest.mark.parametrize("side", [7_100, 13_300, 13_400, 60_000])
def test_a_picture_of_too_many_pixels_is_refused_from_its_header(read_picture_at, side):
    read, path = read_picture_at
    row = zlib.compress(bytes(200_000), 9)
    data = struct.pack(">I", len(row)) + b"IDAT" + row + struct.pack(">I", zlib.crc32(b"IDAT" + row))
    path.write_bytes(png_header(side, side) + data)
    tracemalloc.start()
    try:
        with pytest.raises(DamagedData, match=r"0\.png") as refused:
            read()
        assert "pixels" in str(refused.value) or "grey PNGs of 28×28" in str(refused.value)
        assert tracemalloc.get_traced_memory()[1] < 10_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("error", [NotImplementedError("a mode"), MemoryError(), SyntaxError("broken"), KeyError("x")])
def test_no_error_of_pillow_escapes(read_picture_at, monkeypatch, error):
    from PIL import Image

    read, path = read_picture_at
    files.picture(path, files.pixels(28, 28))

    def fail(*_, **__):
        raise error

    monkeypatch.setattr(Image, "open", fail)
    with pytest.raises(DamagedData, match=r"cannot be read as an image|none can be read"):
        read()


@drawn
@given(st.data())
def test_a_picture_changed_anywhere_is_read_or_refused(tmp_path, data):
    kind = data.draw(st.sampled_from(["PNG", "JPEG", "BMP", "GIF", "WEBP"]))
    path = tmp_path / "cat" / "0.png"
    whole = bytearray(files.picture(path, files.pixels(12, 12, 3), format=kind).read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(whole)
    with contextlib.suppress(DamagedData):
        image, _ = ImageFolder(tmp_path, size=8)[0]
        assert image.shape == (3, 8, 8)

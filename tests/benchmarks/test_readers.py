"""Each reader, by value, and what it says over files that are missing, damaged, cut off, or of wrong size or count."""

import gzip
import os
import pickle
import shutil
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from codecl.benchmarks.data import cifar, mnist, svhn
from codecl.benchmarks.data.images import DamagedData, MissingData
from tests.benchmarks import files

drawn = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40, deadline=None)
READERS = {"cifar10": cifar.cifar10, "cifar100": cifar.cifar100, "mnist": mnist.mnist, "svhn": svhn.svhn}


def make(name, root):
    {"mnist": lambda: files.mnist(root / "MNIST" / "raw")}.get(name, lambda: getattr(files, name)(root))()


@pytest.mark.parametrize("name", READERS)
def test_missing_says_where_and_what_to_do(tmp_path, name):
    with pytest.raises(MissingData, match=rf"is not at {tmp_path}.*CODECL_DATA.*codecl data get"):
        READERS[name](tmp_path)


@pytest.mark.parametrize("name", READERS)
def test_a_missing_file_among_others_is_named(tmp_path, name):
    make(name, tmp_path)
    for file in sorted(path for path in tmp_path.rglob("*") if path.is_file()):
        aside = file.rename(tmp_path / "aside")
        with pytest.raises(MissingData, match=file.name.split(".")[0]):
            READERS[name](tmp_path)
        aside.rename(file)


@pytest.mark.parametrize("name", READERS)
@drawn
@given(st.data())
def test_cut_off_anywhere_is_damage_and_the_file_is_named(tmp_path, name, data):
    shutil.rmtree(tmp_path)
    tmp_path.mkdir()
    make(name, tmp_path)
    file = data.draw(st.sampled_from(sorted(path for path in tmp_path.rglob("*") if path.is_file())))
    whole = file.read_bytes()
    file.write_bytes(whole[: data.draw(st.integers(0, len(whole) - 1))])
    with pytest.raises(DamagedData, match=file.name):
        READERS[name](tmp_path)


@pytest.mark.parametrize("name", READERS)
def test_a_folder_in_place_of_a_file_is_damage(tmp_path, name):
    make(name, tmp_path)
    file = min(path for path in tmp_path.rglob("*") if path.is_file())
    file.unlink()
    file.mkdir()
    with pytest.raises(DamagedData, match=f"{file.name} is a folder; expected a file"):
        READERS[name](tmp_path)


@pytest.mark.parametrize("protocol", range(6))
def test_cifar10_python(tmp_path, protocol):
    x, y = files.cifar10(tmp_path, protocol=protocol)
    found = cifar.cifar10(tmp_path)
    assert (found.status, found.train.x.shape, len(found.test)) == ("subset", (20, 3, 32, 32), 4)
    assert found.train.x.dtype == torch.uint8
    assert found.train.x[7, 2, 5, 9] == x[7, 2 * 1024 + 5 * 32 + 9]
    assert torch.equal(found.train.x.flatten(1), torch.tensor(x))
    assert found.train.y.tolist() == y.tolist()


def test_cifar10_binary(tmp_path):
    rows = files.pixels(12, 3073)
    rows[:, 0] %= 10
    for i, name in enumerate([*cifar.BATCHES, "test_batch"]):
        files.write(tmp_path / "cifar-10-batches-bin" / f"{name}.bin", rows[2 * i : 2 * i + 2].tobytes())
    found = cifar.cifar10(tmp_path)
    assert torch.equal(found.train.x.flatten(1), torch.tensor(rows[:10, 1:]))
    assert found.train.y.tolist() == rows[:10, 0].tolist()
    assert torch.equal(found.test.x.flatten(1), torch.tensor(rows[10:, 1:]))


def test_cifar100_binary_takes_the_fine_label(tmp_path):
    rows = files.pixels(200, 3074)
    rows[:, 1] = np.arange(200) % 100
    rows[:, 0] = rows[:, 1] // 5
    for name in ("train", "test"):
        files.write(tmp_path / "cifar-100-binary" / f"{name}.bin", rows.tobytes())
    found = cifar.cifar100(tmp_path)
    assert found.train.y.tolist() == rows[:, 1].tolist()
    assert torch.equal(found.test.x.flatten(1), torch.tensor(rows[:, 2:]))
    assert cifar.superclasses(tmp_path)[1].tolist() == [c // 5 for c in range(100)]


def test_cifar100_and_its_superclasses(tmp_path):
    x, y = files.cifar100(tmp_path)
    found = cifar.cifar100(tmp_path)
    assert found.train.y.tolist() == y.tolist()
    assert torch.equal(found.train.x.flatten(1), torch.tensor(x))
    assert cifar.superclasses(tmp_path)[1].tolist() == [c // 5 for c in range(100)]


@pytest.mark.parametrize(("change", "words"), [
    ({b"data": np.zeros((4, 3071), np.uint8)}, r"data_batch_2: expected rows of 3072 bytes.*\[4, 3071\]"),
    ({b"data": np.zeros((4, 3072), np.int64)}, "expected rows of 3072 bytes.*int64"),
    ({b"data": np.zeros((3, 3072), np.uint8)}, r"found \[3, 3072\] of torch.uint8 and \[4\] labels"),
    ({b"labels": [0, 1, 2, 10]}, "expected labels from 0 to 9; found 0 to 10"),
    ({b"labels": [0, 1, 2, -1]}, "expected labels from 0 to 9; found -1 to"),
    ({b"labels": [0, 1, 2, "3"]}, "expected an array or a list of whole numbers as 'labels'"),
    ({b"labels": [[0], [1], [2], [3]]}, "as 'labels'"),
])  # fmt: skip
def test_cifar_says_what_was_expected(tmp_path, change, words):
    files.cifar10(tmp_path)
    table = {b"data": files.pixels(4, 3072), b"labels": [0, 1, 2, 3]} | change
    files.write(tmp_path / "cifar-10-batches-py" / "data_batch_2", pickle.dumps(table))
    with pytest.raises(DamagedData, match=words):
        cifar.cifar10(tmp_path)


def test_superclasses_refuse_a_fine_class_with_two_coarse_ones(tmp_path):
    files.cifar100(tmp_path)
    table = {
        b"data": files.pixels(200, 3072),
        b"fine_labels": [*range(100)] * 2,
        b"coarse_labels": [c // 10 for c in range(200)],
    }
    files.write(tmp_path / "cifar-100-python" / "train", pickle.dumps(table))
    with pytest.raises(DamagedData, match="one of 20 coarse classes for each"):
        cifar.superclasses(tmp_path)


def test_counts_tell_whole_from_subset_and_checksums_official_from_whole(tmp_path, monkeypatch):
    files.cifar10(tmp_path)
    monkeypatch.setattr(cifar, "PUBLISHED", (20, 4))
    assert cifar.cifar10(tmp_path).status == "whole"
    folder = tmp_path / "cifar-10-batches-py"
    md5 = {path.name: __import__("hashlib").md5(path.read_bytes()).hexdigest() for path in folder.iterdir()}
    monkeypatch.setitem(cifar.MD5, "cifar-10-batches-py", md5)
    assert cifar.cifar10(tmp_path).status == "official"
    monkeypatch.setattr(cifar, "PUBLISHED", (19, 4))
    with pytest.raises(DamagedData, match="expected 19 images, or fewer in a subset; found 20"):
        cifar.cifar10(tmp_path)


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("dotted", [True, False])
@pytest.mark.parametrize("folder", ["raw", "."])
@pytest.mark.parametrize(("home", "read"), [("MNIST", mnist.mnist), ("FashionMNIST", mnist.fashion_mnist)])
def test_mnist(tmp_path, packed, dotted, folder, home, read):
    x, y = files.mnist(tmp_path / home / folder, packed=packed, dotted=dotted)
    found = read(tmp_path)
    assert (found.status, found.train.x.shape, found.test.x.dtype) == ("subset", (6, 1, 28, 28), torch.uint8)
    assert torch.equal(found.train.x[:, 0], torch.tensor(x))
    assert (found.test.y.tolist(), found.test.y.dtype) == (y.tolist(), torch.int64)


def header(magic, *extents):
    return struct.pack(f">{1 + len(extents)}I", magic, *extents)


@pytest.mark.parametrize(("data", "words"), [
    (header(2049, 6, 28, 28) + bytes(6 * 784), "expected the magic number 2051; found 2049"),
    (header(0x00000D03, 6, 28, 28) + bytes(6 * 784), "expected the magic number 2051"),
    (header(2051, 6, 28, 27) + bytes(6 * 756), r"expected items of \[28, 28\]; its header says \[28, 27\]"),
    (header(2051, 6, 28, 28) + bytes(6 * 784 - 1), "expected 4,720 bytes for 6 items; found 4,719: it is cut off"),
    (header(2051, 6, 28, 28) + bytes(6 * 784 + 1), "found 4,721: something follows its data"),
    (header(2051, 60_001, 28, 28), "expected 60,000 items, or fewer in a subset; its header says 60,001"),
    (header(2051, 2**32 - 1, 28, 28), "its header says 4,294,967,295"),
    (header(2051, 0, 28, 28), "its header says 0"),
    (header(2051, 5, 28, 28) + bytes(5 * 784), "found 5 images and 6 labels"),
    (b"\0\0\x08", "less than the 16 of its header"),
    (b"", "less than the 16 of its header"),
])  # fmt: skip
@pytest.mark.parametrize("packed", [True, False])
def test_idx_says_what_was_expected(tmp_path, data, words, packed):
    files.mnist(tmp_path / "MNIST" / "raw", packed=packed)
    path = tmp_path / "MNIST" / "raw" / f"train-images-idx3-ubyte{'.gz' if packed else ''}"
    path.write_bytes(gzip.compress(data) if packed else data)
    with pytest.raises(DamagedData, match=rf"{path.name}.*{words}"):
        mnist.mnist(tmp_path)


def test_a_label_beyond_nine_and_bytes_after_the_gz_are_damage(tmp_path):
    folder = tmp_path / "MNIST" / "raw"
    files.mnist(folder)
    path = folder / "t10k-labels-idx1-ubyte.gz"
    whole = path.read_bytes()
    path.write_bytes(whole + b"more")
    with pytest.raises(DamagedData, match=r"t10k-labels-idx1-ubyte\.gz cannot be unpacked"):
        mnist.mnist(tmp_path)
    path.write_bytes(gzip.compress(files.idx(np.array([0, 1, 2, 3, 4, 10], np.uint8))))
    with pytest.raises(DamagedData, match="expected labels from 0 to 9; found 0 to 10"):
        mnist.mnist(tmp_path)


def test_a_gz_that_unpacks_to_gigabytes_is_not_unpacked(tmp_path):
    import tracemalloc

    files.mnist(tmp_path / "MNIST" / "raw")
    path = tmp_path / "MNIST" / "raw" / "train-labels-idx1-ubyte.gz"
    path.write_bytes(gzip.compress(header(2049, 6) + bytes(200_000_000), 1))
    tracemalloc.start()
    try:
        with pytest.raises(DamagedData, match="found more than 60,008: something follows its data"):
            mnist.mnist(tmp_path)
        assert tracemalloc.get_traced_memory()[1] < 100_000_000
    finally:
        tracemalloc.stop()


def test_official_is_by_the_unpacked_files_and_digits_are_not_fashion(tmp_path, monkeypatch):
    import hashlib

    for home in ("MNIST", "FashionMNIST"):
        x, y = files.mnist(tmp_path / home / "raw")
    md5 = tuple(hashlib.md5(files.idx(a)).hexdigest() for a in (x, y, x, y))
    monkeypatch.setitem(mnist.MD5, "MNIST", md5)
    assert mnist.mnist(tmp_path).status == "official"
    with pytest.raises(DamagedData, match="are the digits of MNIST; expected Fashion-MNIST"):
        mnist.fashion_mnist(tmp_path)
    for stem in ("train", "t10k"):  # neither part may be digits
        files.mnist(tmp_path / "FashionMNIST" / "raw")
        path = tmp_path / "FashionMNIST" / "raw" / f"{stem}-images-idx3-ubyte.gz"
        path.write_bytes(gzip.compress(files.idx(files.pixels(6, 28, 28, seed=1))))
        with pytest.raises(DamagedData, match="are the digits of MNIST"):
            mnist.fashion_mnist(tmp_path)


@pytest.mark.parametrize("compressed", [True, False])
@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("n", [1, 5])
def test_svhn(tmp_path, compressed, order, n):
    x, y = files.svhn(tmp_path, n, compressed, order)
    found = svhn.svhn(tmp_path)
    assert (found.status, found.train.x.shape) == ("subset", (n, 3, 32, 32))
    assert found.train.x.is_contiguous()
    assert torch.equal(found.train.x, torch.tensor(x).permute(3, 2, 0, 1))
    assert found.train.x[n - 1, 2, 7, 30] == x[7, 30, 2, n - 1]
    assert found.test.y.tolist() == [*y[:-1], 0]
    assert found.test.y.dtype == torch.int64


@pytest.mark.parametrize("compressed", [True, False])
@pytest.mark.parametrize("labels", ["u1", "f8", "i4", "f4"])
def test_svhn_as_scipy_writes_it(tmp_path, compressed, labels):
    io = pytest.importorskip("scipy.io")
    x, y = files.pixels(32, 32, 3, 7), np.array([[1, 2, 3, 10, 9, 8, 1]]).T.astype(labels)
    for name in ("train", "test"):
        (tmp_path / "SVHN").mkdir(exist_ok=True)
        path = tmp_path / "SVHN" / f"{name}_32x32.mat"
        io.savemat(path, {"other": np.eye(3), "X": x, "y": y, "text": "abc"}, do_compression=compressed)
    there = io.loadmat(path)
    found = svhn.svhn(tmp_path)
    assert torch.equal(found.train.x, torch.tensor(there["X"].transpose(3, 2, 0, 1)))
    assert found.train.y.tolist() == [int(label) % 10 for label in there["y"][:, 0]] == [1, 2, 3, 0, 9, 8, 1]
    arrays = svhn.read_mat(path, path.read_bytes(), {"other", "y"}, 30_000)
    assert torch.equal(arrays["other"], torch.eye(3, dtype=torch.float64))
    assert arrays["y"].dtype == {"u1": torch.uint8, "f8": torch.float64, "i4": torch.int32, "f4": torch.float32}[labels]


CUT = zlib.compress(files.mat_array("y", np.ones((2, 1), np.uint8), 9, 2))[:-4]
EXTENTS = struct.pack("<2i", 2, 1)
X, Y = files.pixels(32, 32, 3, 2), np.array([[1], [10]], np.uint8)
GOOD_X, GOOD_Y = files.mat_array("X", X, 9, 2), files.mat_array("y", Y, 9, 2)


@pytest.mark.parametrize(("arrays", "words"), [
    ([GOOD_X], "expected arrays named X, y; there is no y"),
    ([GOOD_Y, files.mat_array("x", X, 9, 2)], "there is no X"),
    ([GOOD_Y, files.mat_array("X", X.astype("f8")[:, :, :, :1], 6, 9)], "expected X as uint8 .* found .*float64"),
    ([GOOD_Y, files.mat_array("X", X[:, :, :2], 9, 2)], r"expected X as uint8 .* found \[32, 32, 2, 2\]"),
    ([GOOD_X, files.mat_array("y", Y - 1, 9, 2)], "expected whole labels from 1 to 10"),
    ([GOOD_X, files.mat_array("y", Y + 1, 9, 2)], "expected whole labels from 1 to 10"),
    ([GOOD_X, files.mat_array("y", Y + 0.5, 6, 9)], "expected whole labels from 1 to 10"),
    ([GOOD_X, files.mat_array("y", np.array([[np.nan], [1]]), 6, 9)], "expected whole labels from 1 to 10"),
    ([GOOD_X, files.mat_array("y", Y[:1], 9, 2)], "found 2 images and 1 labels"),
    ([GOOD_X, files.mat_array("y", Y, 9, 2, flags=8)], "y is no array of real numbers"),
    ([GOOD_X, files.mat_array("y", Y, 4, 2)], "y is no array of real numbers"),
    ([GOOD_X, files.mat_array("y", Y, 9, 14)], r"y has values of type 14"),
    ([GOOD_X, GOOD_Y.replace(EXTENTS, struct.pack("<2i", 3, 1))], r"y has the extents \[3, 1\] and 2 bytes"),
    ([GOOD_X, GOOD_Y.replace(EXTENTS, struct.pack("<2i", -2, -1))], r"the extents \[-2, -1\]"),
    ([GOOD_X, GOOD_Y.replace(EXTENTS, struct.pack("<2i", 2**31 - 1, 2**31 - 1))], "more than 225,045,504 bytes"),
    ([GOOD_X, files.mat_element(14, b"")], "damaged or cut off"),
    ([GOOD_X, files.mat_array("y", np.zeros((0, 1), np.uint8), 9, 2)], r"y has the extents \[0, 1\] and 0 bytes"),
])  # fmt: skip
@pytest.mark.parametrize("compressed", [True, False])
def test_svhn_says_what_was_expected(tmp_path, arrays, words, compressed):
    files.svhn(tmp_path)
    (tmp_path / "SVHN" / "train_32x32.mat").write_bytes(files.mat_file(arrays, compressed))
    with pytest.raises(DamagedData, match=f"train_32x32.mat.*{words}"):
        svhn.svhn(tmp_path)


@pytest.mark.parametrize(("data", "words"), [
    (b"MATLAB 7.3 MAT-file".ljust(512), r"version 5 \(save -v7\), as published"),
    (b"\x89HDF\r\n\x1a\n".ljust(512), "no MAT-file of version 5"),
    (b"anything".ljust(512), "no MAT-file of version 5"),
    (files.mat_file([])[:-4] + b"\0\2IM", "no MAT-file of version 5"),
    (files.mat_file([]) + struct.pack("<II", 15, 8) + b"no zlib.", "damaged or cut off"),
    (files.mat_file([]) + struct.pack("<II", 15, len(CUT)) + CUT, "a compressed array ends early"),
    (files.mat_file([]) + struct.pack("<II", 14, 2**32 - 1) + bytes(64), "4,294,967,295 bytes are announced, 64"),
    (files.mat_file([]) + struct.pack("<II", 5 << 16 | 14, 0), "a small element of 5 bytes"),
])  # fmt: skip
def test_a_file_that_is_no_mat_5(tmp_path, data, words):
    files.svhn(tmp_path)
    (tmp_path / "SVHN" / "test_32x32.mat").write_bytes(data)
    with pytest.raises(DamagedData, match=f"test_32x32.mat.*{words}"):
        svhn.svhn(tmp_path)


def test_a_mat_that_inflates_to_gigabytes_is_not_inflated(tmp_path):
    import tracemalloc

    path = tmp_path / "a.mat"
    bomb = zlib.compress(GOOD_Y[:40] + bytes(300_000_000), 1)
    tracemalloc.start()
    try:
        with pytest.raises(DamagedData, match="a compressed array has more than 1,000 bytes"):
            svhn.read_mat(path, files.mat_file([], False) + struct.pack("<II", 15, len(bomb)) + bomb, {"y"}, 1000)
        assert tracemalloc.get_traced_memory()[1] < 5_000_000
    finally:
        tracemalloc.stop()


def test_svhn_status(tmp_path, monkeypatch):
    import hashlib

    files.svhn(tmp_path)
    monkeypatch.setattr(svhn, "PUBLISHED", (5, 5))
    assert svhn.svhn(tmp_path).status == "whole"
    md5 = hashlib.md5((tmp_path / "SVHN" / "test_32x32.mat").read_bytes()).hexdigest()
    monkeypatch.setattr(svhn, "MD5", (md5, md5))
    assert svhn.svhn(tmp_path).status == "official"
    monkeypatch.setattr(svhn, "PUBLISHED", (5, 4))
    with pytest.raises(DamagedData, match=r"test_32x32\.mat"):
        svhn.svhn(tmp_path)


def test_a_file_of_absurd_size_is_not_read(tmp_path):
    files.svhn(tmp_path)
    with open(tmp_path / "SVHN" / "train_32x32.mat", "rb+") as file:
        file.truncate(5 << 30)  # a sparse file takes no room
    with pytest.raises(DamagedData, match="5,368,709,120 bytes; expected at most 226,094,080"):
        svhn.svhn(tmp_path)


@pytest.mark.parametrize("name", READERS)
def test_every_file_is_read_once_and_a_fifo_is_not_opened(tmp_path, name, monkeypatch):
    make(name, tmp_path)
    opened, read_bytes = [], Path.read_bytes
    monkeypatch.setattr(Path, "read_bytes", lambda path: opened.append(path) or read_bytes(path))
    READERS[name](tmp_path)
    assert sorted(opened) == sorted(path for path in tmp_path.rglob("*") if path.is_file())
    opened[0].unlink()
    os.mkfifo(opened[0])
    with pytest.raises(DamagedData, match="is no regular file; expected a file"):
        READERS[name](tmp_path)


def test_the_superclasses_read_every_file_once(tmp_path, monkeypatch):
    files.cifar100(tmp_path)
    opened, read_bytes = [], Path.read_bytes
    monkeypatch.setattr(Path, "read_bytes", lambda path: opened.append(path.name) or read_bytes(path))
    cifar.superclasses(tmp_path)
    assert opened == ["train", "test"]

"""SVHN and MAT-files, by value, and what is said over damaged files."""

import struct
import zlib

import numpy as np
import pytest
import torch

from codecl.benchmarks.data import svhn
from codecl.benchmarks.data.images import DamagedData
from tests.benchmarks import files


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

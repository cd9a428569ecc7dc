"""MNIST and Fashion-MNIST, by value, and what is said over damaged files."""

import gzip
import struct

import numpy as np
import pytest
import torch

from codecl.benchmarks.data import mnist
from codecl.benchmarks.data.images import DamagedData
from tests.benchmarks import files


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

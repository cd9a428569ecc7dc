"""CIFAR-10, CIFAR-100 and its superclasses, by value, and what is said over damaged files."""

import pickle
from pathlib import Path

import numpy as np
import pytest
import torch

from codecl.benchmarks.data import cifar
from codecl.benchmarks.data.images import DamagedData
from tests.benchmarks import files


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


def test_the_superclasses_read_every_file_once(tmp_path, monkeypatch):
    files.cifar100(tmp_path)
    opened, read_bytes = [], Path.read_bytes
    monkeypatch.setattr(Path, "read_bytes", lambda path: opened.append(path.name) or read_bytes(path))
    cifar.superclasses(tmp_path)
    assert opened == ["train", "test"]

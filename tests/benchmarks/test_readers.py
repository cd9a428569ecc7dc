"""What each reader says over files that are missing, cut off or no files, and that it reads every file once."""

import os
import shutil
from pathlib import Path

import pytest
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

"""A forged checkpoint whose checksum is right is refused all the same, and no code in it runs."""

import io
import os
import struct
import zipfile

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from codecl.training.checkpoint import BrokenCheckpoint, load, save
from tests.training.checkpoints import COMPLEX_HALF, SMALL, identical, rezipped, saved, sealed

pytestmark = COMPLEX_HALF


class Evil:
    def __reduce__(self):
        return os.mkdir, ("evil",)


def itself():
    tree: list[object] = []
    tree.append(tree)
    return tree


def nested(tree, times, width=1):
    for _ in range(times):
        tree = [tree] * width
    return tree


def lengths(archive: bytes) -> bytes:
    """The zip of a tensor of four numbers, which says that it and its memory are of 65,535."""
    with zipfile.ZipFile(io.BytesIO(archive)) as old:
        pickled = old.read(next(name for name in old.namelist() if name.endswith("data.pkl")))
    assert pickled.count(b"K\x04") == 2
    return rezipped(archive, data=pickled.replace(b"K\x04", b"M\xff\xff"))


def crc(archive: bytes) -> bytes:
    """The zip with another byte in a tensor."""
    place = archive.index(struct.pack("<f", 39.0))
    return archive[:place] + b"\1" + archive[place + 1 :]


ARCHIVE = saved(SMALL | {"t": (1.5, torch.ones(2, 2, dtype=torch.bfloat16))})
HOSTILE = {
    "code": (saved({"x": Evil()}), "UnpicklingError"),
    "a wrong CRC": (crc(saved(SMALL)), "the CRC of .*data/0 does not match|Bad CRC-32"),
    "packed members": (rezipped(saved(torch.zeros(10**6)), zipfile.ZIP_DEFLATED), "unpack to more than the file has"),
    "no pickle": (rezipped(saved(1), data=b"\xff"), "Error"),
    "an empty pickle": (rezipped(saved(1), data=b""), "Error"),
    "another zip": (rezipped(saved(1), byteorder=b"middle", version=b"x" * 100), "Error"),
    "a deep tree": (saved(nested(1, 70)), "nested more than 64 deep"),
    "a tree that contains itself": (saved(itself()), "nested more than 64 deep"),
    "a tree that is larger than its file": (saved(nested(1, 12, 10)), "larger than the .* bytes"),
    "a set": (saved({1, 2}), "builtins.set"),
    "a device": (saved(torch.device("cpu")), "torch.device"),
    "an odd key": (saved({1.5: 0}), "has the key 1.5"),
    "a sparse tensor": (saved(torch.eye(2).to_sparse()), "sparse"),
    "a tensor larger than its memory": (lengths(saved(torch.zeros(4))), "resiz|out of bounds"),
    "a tensor larger than its file": (saved(torch.zeros(1).expand(10**12)), "larger than the .* bytes"),
    "the same memory again and again": (saved(list(torch.zeros(999, 1).expand(-1, 999))), "larger than the .* bytes"),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_a_forged_file_is_refused(tmp_path, monkeypatch, what):
    monkeypatch.chdir(tmp_path)
    archive, message = HOSTILE[what]
    (tmp_path / "file").write_bytes(sealed(archive))
    with pytest.raises(BrokenCheckpoint, match=rf"(?s)file does not hold a checkpoint.*({message})") as caught:
        load(tmp_path / "file")
    assert len(str(caught.value)) < 600
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_forged_file_that_makes_sense_is_loaded(tmp_path):
    """The refusals above are those of what was forged, not of forging."""
    for archive in (saved(SMALL), rezipped(saved(SMALL))):
        (tmp_path / "file").write_bytes(sealed(archive))
        assert identical(SMALL, load(tmp_path / "file"))


@given(st.data())
def test_a_forged_pickle_never_ends_in_anything_else(folder, data):
    """Bytes of the pickle are replaced, and every checksum is right."""
    with zipfile.ZipFile(io.BytesIO(ARCHIVE)) as old:
        pickled = bytearray(old.read(next(name for name in old.namelist() if name.endswith("data.pkl"))))
    for _ in range(data.draw(st.integers(1, 4))):
        pickled[data.draw(st.integers(0, len(pickled) - 1))] = data.draw(st.integers(0, 255))
    (folder / "forged").write_bytes(sealed(rezipped(ARCHIVE, data=bytes(pickled))))
    try:
        tree = load(folder / "forged")
    except BrokenCheckpoint:
        return
    save(folder / "again", tree)
    assert identical(tree, load(folder / "again"))

"""A file that is cut off, damaged or no checkpoint at all is refused with its name."""

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from codecl.training.checkpoint import BrokenCheckpoint, load, save
from tests.training.checkpoints import COMPLEX_HALF, SMALL, identical, saved, sealed

pytestmark = COMPLEX_HALF


@pytest.fixture(scope="module")
def whole(folder):
    save(folder / "small", SMALL)
    return (folder / "small").read_bytes()


@given(st.data())
def test_a_truncated_file_is_refused(folder, whole, data):
    length = data.draw(st.integers(0, len(whole) - 1))
    (folder / "cut").write_bytes(whole[:length])
    with pytest.raises(BrokenCheckpoint, match=rf"cut is cut off or damaged: {length} bytes.*earlier checkpoint"):
        load(folder / "cut")


def test_a_flipped_bit_is_refused_wherever_it_is(folder, whole):
    """In a member, its header, the gap between two, the directory, the checksum."""
    for place in range(len(whole)):
        flipped = bytearray(whole)
        flipped[place] ^= 1 << place % 8
        (folder / "flipped").write_bytes(flipped)
        with pytest.raises(BrokenCheckpoint, match=r"flipped is (cut off or damaged|not a codecl checkpoint)"):
            load(folder / "flipped")


@given(st.data())
def test_bytes_added_removed_or_moved_are_refused(folder, whole, data):
    places = st.integers(0, len(whole))
    a, b = sorted((data.draw(places), data.draw(places)))
    other = data.draw(st.sampled_from([b"", b"\0", whole[b : 2 * b - a], whole]))
    changed = whole[:a] + other + whole[b:]
    (folder / "changed").write_bytes(changed)
    if changed == whole:
        assert identical(SMALL, load(folder / "changed"))
    else:
        with pytest.raises(BrokenCheckpoint, match=r"changed is (cut off or damaged|not a codecl checkpoint)"):
            load(folder / "changed")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"x", r"file is not a codecl checkpoint: it begins with b'x', expected b'PK.*Name a file"),
        (b"", "file is cut off or damaged: 0 bytes.*earlier checkpoint"),
        (b"PK\3\4" + bytes(100), "file is cut off or damaged: 104 bytes"),
        (saved(SMALL), "file is cut off or damaged"),  # by torch.save alone
        (sealed(b"PK\3\4" + bytes(100)), r"file does not hold a checkpoint \(BadZipFile.*do not use it"),
    ],
    ids=["no zip", "empty", "no whole zip", "without a checksum", "no zip with a checksum"],
)
def test_what_is_not_a_whole_checkpoint_is_named(tmp_path, content, message):
    (tmp_path / "file").write_bytes(content)
    with pytest.raises(BrokenCheckpoint, match=message):
        load(tmp_path / "file")


@pytest.mark.skipif(os.name == "nt", reason="POSIX files")
def test_a_directory_and_a_pipe_are_refused(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "pipe"):
        with pytest.raises(BrokenCheckpoint, match=rf"{path.name} is no file"):
            load(path)

"""Checkpoints come back bit by bit, or are refused; the file that was there survives every failure."""

import errno
import json
import math
import os
import struct
import sys
import zlib
from collections import OrderedDict
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from codecl.training import checkpoint
from codecl.training.checkpoint import ALIGNMENT, DTYPES, FORMAT, MAGIC, PREAMBLE, BrokenCheckpoint, load, save

pytestmark = pytest.mark.filterwarnings("ignore:ComplexHalf support")  # torch's own, whoever touches one


def identical(a: object, b: object) -> bool:
    """Equality that tells 1 from True, 0.0 from −0.0, and one NaN from another."""
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return a.dtype == b.dtype and a.shape == b.shape and raw(a) == raw(b)
    if isinstance(a, dict) and isinstance(b, dict):
        pairs = zip(a.items(), b.items(), strict=True)
        return len(a) == len(b) and all(identical(j, k) and identical(x, y) for (j, x), (k, y) in pairs)
    if isinstance(a, list | tuple) and isinstance(b, list):
        return len(a) == len(b) and all(map(identical, a, b))
    if isinstance(a, float) and isinstance(b, float):
        return struct.pack("<d", a) == struct.pack("<d", b)
    return type(a) is type(b) and a == b


def raw(tensor: Tensor) -> bytes:
    dense = torch.empty(tensor.shape, dtype=tensor.dtype).copy_(tensor.detach())
    return dense.flatten().view(torch.uint8).numpy().tobytes()


@st.composite
def tensors(draw: st.DrawFn) -> Tensor:
    """Any bits of any dtype in any shape, plain, transposed, strided or expanded."""
    dtype = DTYPES[draw(st.sampled_from(sorted(DTYPES)))]
    shape = draw(st.lists(st.integers(0, 4), max_size=3))
    count = math.prod(shape) * dtype.itemsize
    data = draw(st.binary(min_size=count, max_size=count))
    if dtype == torch.bool:
        data = bytes(byte & 1 for byte in data)
    flat = torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)
    tensor = flat.view(dtype).reshape(shape)
    match draw(st.sampled_from(["plain", "transposed", "strided", "expanded"])):
        case "transposed":
            return tensor.permute(tuple(reversed(range(tensor.dim()))))
        case "strided" if tensor.dim():
            return tensor[::2]
        case "expanded":
            return tensor.expand(2, *shape)
    return tensor


scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(codec=None), max_size=4)
keys = st.text(max_size=4) | st.integers(-9, 9)
trees = st.recursive(
    scalars | tensors(),
    lambda inner: st.lists(inner, max_size=3) | st.tuples(inner, inner) | st.dictionaries(keys, inner, max_size=3),
    max_leaves=8,
)
SMALL = {"weights": torch.arange(40.0), 3: [True, None, "ß", float("inf")], "none": torch.empty(0, 2)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One folder for all draws of a test."""
    return tmp_path_factory.mktemp("checkpoints")


@pytest.fixture(scope="module")
def whole(folder: Path) -> bytes:
    save(folder / "small", SMALL)
    return (folder / "small").read_bytes()


def forge(header: object, data: bytes = b"") -> bytes:
    """A file with this header whose checksum is right."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    text = text.ljust(-(-(PREAMBLE.size + len(text)) // ALIGNMENT) * ALIGNMENT - PREAMBLE.size)
    size = PREAMBLE.size + len(text) + len(data) + 4
    body = PREAMBLE.pack(MAGIC, FORMAT, len(text), size) + text + data
    return body + struct.pack("<I", zlib.crc32(body))


@given(trees)
def test_trees_come_back_bit_by_bit(folder, tree):
    save(folder / "tree", tree)
    assert identical(tree, load(folder / "tree"))


@pytest.mark.parametrize("name", sorted(DTYPES))
def test_every_dtype(folder, name):
    everything = torch.arange(256, dtype=torch.uint8).repeat(16)
    tensor = (everything & 1 if name == "bool" else everything).view(DTYPES[name]).reshape(2, -1)
    tree = [
        tensor,
        tensor[0, 0],
        tensor.mT,
        tensor[:, ::3],
        tensor[0, ::3],
        tensor[:0],
        tensor[0, :2:2],
        tensor[0, :0:2],
    ]
    save(folder / "dtype", tree)
    assert identical(tree, load(folder / "dtype"))


def test_numbers_that_json_has_no_word_for(folder):
    """Infinities, every NaN by its bits, and integers beyond the 4300 digits that Python would read."""
    bits = ["7ff0000000000000", "fff0000000000000", "7ff8000000000000", "fff8000000000000", "7ff8000000000abc"]
    tree = [struct.unpack(">d", bytes.fromhex(text))[0] for text in bits] + [10**5000, -(10**5000), 2**63, -(2**63)]
    save(folder / "numbers", tree)
    assert identical(tree, load(folder / "numbers"))


def test_the_dtypes_are_those_with_whole_bytes():
    assert {"bool", "bfloat16", "float64", "uint64", "complex32", "float8_e5m2"} <= DTYPES.keys()
    assert not {"quint8", "bits8", "uint4"} & DTYPES.keys()


@pytest.mark.parametrize(
    "count", [checkpoint.CHUNK - 1, checkpoint.CHUNK, checkpoint.CHUNK + 1, 3 * checkpoint.CHUNK + 5]
)
def test_tensors_of_several_chunks(folder, count):
    tensor = torch.randint(256, (count,), dtype=torch.uint8, generator=torch.Generator().manual_seed(count))
    save(folder / "chunks", [tensor, torch.ones(1)])
    assert identical([tensor, torch.ones(1)], load(folder / "chunks"))


def test_loaded_tensors_are_ordinary(folder):
    """Writable, aligned as torch aligns, each with memory of its own, and not tied to the graph."""
    tied = nn.Parameter(torch.ones(3))
    save(folder / "tied", [tied, tied, tied.detach()[1:]])
    a, b, c = load(folder / "tied")
    a += 1
    assert (a.tolist(), b.tolist(), c.tolist()) == ([2.0] * 3, [1.0] * 3, [1.0] * 2)
    assert all(type(t) is Tensor and not t.requires_grad and t.data_ptr() % ALIGNMENT == 0 for t in (a, b, c))


def test_views_that_are_only_a_flag_are_written_out(folder):
    z = torch.tensor([1 + 2j, 3 - 4j])
    save(folder / "conj", [z.conj(), z.conj().imag])
    conj, negative = load(folder / "conj")
    assert conj.tolist() == [1 - 2j, 3 + 4j]
    assert negative.tolist() == [-2.0, 4.0]


def test_state_dicts_of_modules_and_optimizers(folder):
    model = nn.Linear(2, 2)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    tree = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "size": torch.Size([2, 3])}
    assert isinstance(tree["model"], OrderedDict)
    save(folder / "states", tree)
    state = load(folder / "states")
    assert state["size"] == [2, 3]
    assert list(state["optimizer"]["state"]) == [0, 1]
    optimizer.load_state_dict(state["optimizer"])
    model.load_state_dict(state["model"])


def test_the_default_device_does_not_matter(folder):
    save(folder / "device", torch.ones(2))
    with torch.device("meta"):
        save(folder / "device", load(folder / "device"))
        assert load(folder / "device").tolist() == [1.0, 1.0]


def test_tensors_stand_aligned_and_little_endian_in_the_file(folder, monkeypatch):
    tree = [torch.tensor([1], dtype=torch.int32), torch.tensor([1 + 2j])]
    save(folder / "little", tree)
    data = (folder / "little").read_bytes()[-2 * ALIGNMENT - 4 :]
    assert data[:4] == b"\1\0\0\0"
    assert data[ALIGNMENT : ALIGNMENT + 8] == struct.pack("<ff", 1, 2)
    assert (os.path.getsize(folder / "little") - 4) % ALIGNMENT == 0
    monkeypatch.setattr(sys, "byteorder", "big")  # the same bytes, read by a machine of the other order
    assert load(folder / "little")[0].item() == 1 << 24
    assert load(folder / "little")[1].view(torch.float32).view(torch.int32).tolist() == [0x803F, 0x40]
    save(folder / "big", load(folder / "little"))
    assert (folder / "big").read_bytes() == (folder / "little").read_bytes()


@pytest.mark.parametrize(
    ("node", "place"),
    [
        ({1, 2}, r"tree\['a'\]\[1\]\[2\] is builtins.set"),
        (torch.float32, r"tree\['a'\]\[1\]\[2\] is torch.dtype"),
        (1j, "builtins.complex"),
        (b"x", "builtins.bytes"),
        (torch.device("cpu"), "torch.device"),
        ({(1, 2): 3}, r"tree\['a'\]\[1\]\[2\] has the key \(1, 2\), a tuple"),
        ({True: 1}, "has the key True, a bool"),
        (torch.eye(2).to_sparse(), r"tree\['a'\]\[1\]\[2\] is Tensor\(torch.float32, torch.sparse_coo"),
        (torch.empty(2, device="meta"), "meta"),
        (nn.UninitializedParameter(), "UninitializedParameter"),
        (torch.empty(2, dtype=torch.bits8), "torch.bits8"),
        (torch.empty([1] * 65), "at most 64 dimensions"),
    ],
)
def test_anything_else_is_refused_with_its_place(tmp_path, node, place):
    with pytest.raises(TypeError, match=place):
        save(tmp_path / "bad", {"a": (0, {2: node})})
    assert list(tmp_path.iterdir()) == []


def test_a_tree_that_contains_itself_is_refused(tmp_path):
    tree: list[object] = []
    tree.append(tree)
    with pytest.raises(TypeError, match=r"tree\[0\].*contain itself"):
        save(tmp_path / "bad", tree)


def test_the_deepest_tree_is_loaded(folder):
    tree: object = 1
    for _ in range(checkpoint.DEPTH):
        tree = {"a": tree}
    save(folder / "deep", tree)
    assert load(folder / "deep") == tree
    with pytest.raises(TypeError, match="nested more than"):
        save(folder / "deep", [tree])


@given(st.data())
def test_a_truncated_file_is_refused(folder, whole, data):
    length = data.draw(st.integers(0, len(whole) - 1))
    (folder / "cut").write_bytes(whole[:length])
    with pytest.raises(BrokenCheckpoint, match=rf"cut is cut off: {length} bytes.*earlier checkpoint"):
        load(folder / "cut")


@given(st.data())
def test_a_flipped_bit_is_refused(folder, whole, data):
    place, bit = data.draw(st.integers(0, len(whole) - 1)), data.draw(st.integers(0, 7))
    flipped = bytearray(whole)
    flipped[place] ^= 1 << bit
    (folder / "flipped").write_bytes(flipped)
    with pytest.raises(BrokenCheckpoint, match="flipped"):
        load(folder / "flipped")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"PK\3\4" + bytes(100), r"file is not a codecl checkpoint: it begins with b'PK.*Name a file"),
        (b"x", "not a codecl checkpoint"),
        (b"", "file is cut off: 0 bytes"),
        (PREAMBLE.pack(MAGIC, FORMAT + 1, 0, 32) + bytes(4), rf"format {FORMAT + 1}, expected {FORMAT}. Update codecl"),
        (
            PREAMBLE.pack(MAGIC, 0, 0, 32) + bytes(4),
            "format 0, expected 1. Install the version of codecl that wrote it",
        ),
        (forge(1) + b"x", "file is too long: 69 bytes, expected 68"),
        (PREAMBLE.pack(MAGIC, FORMAT, 2**63, 32) + bytes(4), f"damaged: a header of {2**63} bytes in a file of 32"),
        (forge(1)[:-4] + bytes(4), "damaged: its checksum is .*, expected 00000000"),
        (PREAMBLE.pack(MAGIC, FORMAT, 0, 28), "damaged: a header of 0 bytes in a file of 28"),
    ],
)
def test_what_is_not_a_whole_checkpoint_is_named(tmp_path, content, message):
    (tmp_path / "file").write_bytes(content)
    with pytest.raises(BrokenCheckpoint, match=message):
        load(tmp_path / "file")


HOSTILE = {
    "not JSON": (b"{", "JSONDecodeError"),
    "not text": (b"\xff\xfe\xfd", "DecodeError"),
    "a bottomless pit": (b"[" * 100_000, "RecursionError|nested"),
    "a deep tree": (b"[" * 70 + b"]" * 70, "nested more than 64 deep"),
    "an unknown kind": ({"code": "import os"}, "there is no kind 'code'"),
    "a very unknown kind": ({"code" * 1000: 1}, "there is no kind 'codecode"),
    "two kinds": ({"int": "1", "float": "0"}, "ValueError"),
    "no kind": ({}, "ValueError"),
    "an odd key": ({"dict": [[1.5, 0]]}, "has the key 1.5"),
    "a list as key": ({"dict": [[[], 0]]}, "has the key"),
    "no pairs": ({"dict": 5}, "TypeError"),
    "not a number": ({"float": "zz"}, "ValueError"),
    "half a number": ({"float": "7ff8"}, "error"),
    "a long integer": (b"9" * 10_000, "ValueError"),
    "an unknown dtype": ({"tensor": ["os", [1], 0]}, "KeyError"),
    "a list as dtype": ({"tensor": [[], [1], 0]}, "TypeError"),
    "too much": ({"tensor": ["float32", [2**40], 0]}, "4398046511104 bytes at 0 does not fit into 64"),
    "one byte too much": ({"tensor": ["uint8", [64], 1]}, "64 bytes at 1 does not fit into 64"),
    "far beyond": ({"tensor": ["uint8", [1], 2**62]}, "does not fit"),
    "a negative offset": ({"tensor": ["uint8", [4], -64]}, "no tensor has shape"),
    "a negative length": ({"tensor": ["uint8", [-4], 0]}, "no tensor has shape"),
    "two negative lengths": ({"tensor": ["uint8", [-4, -4], 0]}, "no tensor has shape"),
    "an overflowing shape": ({"tensor": ["uint8", [2**32, 2**32], 0]}, "does not fit"),
    "a length of another kind": ({"tensor": ["uint8", [True], 0]}, "no tensor has shape"),
    "a fraction": ({"tensor": ["uint8", [1.0], 0]}, "no tensor has shape"),
    "too many dimensions": ({"tensor": ["uint8", [1] * 65, 0]}, "no tensor has shape"),
    "no offset": ({"tensor": ["uint8", [1]]}, "TypeError"),
    "the same bytes again and again": ([{"tensor": ["uint8", [64], 0]}] * 2, "does not fit"),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_a_header_that_makes_no_sense_is_refused(tmp_path, what):
    header, message = HOSTILE[what]
    (tmp_path / "file").write_bytes(forge(header, bytes(64)))
    with pytest.raises(BrokenCheckpoint, match=rf"(?s)file has a header that makes no sense.*({message})") as caught:
        load(tmp_path / "file")
    assert len(str(caught.value)) < 600


def test_a_forged_header_that_makes_sense_is_loaded(tmp_path):
    """The refusals above are those of ``load``, not of ``forge``; overlapping tensors are no danger."""
    twice = [{"tensor": ["uint8", [32], 0]}, {"tensor": ["int16", [2, 2], 2]}]
    (tmp_path / "file").write_bytes(forge(twice, bytes(range(64))))
    first, second = load(tmp_path / "file")
    assert first.tolist() == list(range(32))
    assert second.tolist() == [[0x302, 0x504], [0x706, 0x908]]


def test_nothing_is_unpickled(tmp_path, monkeypatch):
    torch.save(SMALL, tmp_path / "pickle")
    with pytest.raises(BrokenCheckpoint, match="not a codecl checkpoint"):
        load(tmp_path / "pickle")
    monkeypatch.setitem(sys.modules, "pickle", None)
    save(tmp_path / "ours", SMALL)
    assert identical(SMALL, load(tmp_path / "ours"))


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_failed_call_leaves_the_old_file(tmp_path, monkeypatch, call):
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    save(tmp_path / "file", 1)
    monkeypatch.setattr(os, call, full)
    with pytest.raises(OSError, match=r"No space left on device: .*file"):
        save(tmp_path / "file", SMALL)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert load(tmp_path / "file") == 1


@pytest.mark.parametrize("room", [0, 20, 100, 5000, 10**6, 3 * 10**6])
def test_a_full_disk_leaves_the_old_file(tmp_path, room):
    """The kernel itself refuses to write more than ``room`` bytes."""
    resource = pytest.importorskip("resource")
    save(tmp_path / "file", 1)
    limit, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, hard))
    try:
        with pytest.raises(OSError, match="file") as caught:
            save(tmp_path / "file", torch.zeros(10**6))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    assert caught.value.errno == errno.EFBIG
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert load(tmp_path / "file") == 1


def test_an_interrupt_leaves_the_old_file(tmp_path, monkeypatch):
    def interrupted(*_: object) -> int:
        raise KeyboardInterrupt

    save(tmp_path / "file", 1)
    with monkeypatch.context() as patch:
        patch.setattr(zlib, "crc32", interrupted)
        with pytest.raises(KeyboardInterrupt):
            save(tmp_path / "file", SMALL)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert load(tmp_path / "file") == 1


def test_what_a_killed_process_left_behind_is_replaced(tmp_path):
    (tmp_path / "file.tmp").write_bytes(b"half a check")
    save(tmp_path / "file", SMALL)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert identical(SMALL, load(tmp_path / "file"))


def test_the_file_is_on_disk_before_its_name_and_the_name_before_the_end(tmp_path, monkeypatch):
    if not os.path.exists("/proc/self/fd"):
        pytest.skip("needs /proc to tell which file is synced")
    calls, fsync, replace = [], os.fsync, os.replace

    def watched_fsync(descriptor: int) -> None:
        fsync(descriptor)
        target = os.path.basename(os.readlink(f"/proc/self/fd/{descriptor}"))
        calls.append((target, os.fstat(descriptor).st_size if target != tmp_path.name else None))

    def watched_replace(source: Path, target: Path) -> None:
        replace(source, target)
        calls.append((source.name, target.name))

    monkeypatch.setattr(os, "fsync", watched_fsync)
    monkeypatch.setattr(os, "replace", watched_replace)
    save(tmp_path / "file", SMALL)
    size = (tmp_path / "file").stat().st_size
    assert calls == [("file.tmp", size), ("file.tmp", "file"), (tmp_path.name, None)]


@pytest.mark.parametrize(("code", "passes"), [(errno.EINVAL, True), (errno.EIO, False)])
def test_a_file_system_that_cannot_sync_directories_is_good_enough(tmp_path, monkeypatch, code, passes):
    fsync, first = os.fsync, []

    def picky(descriptor: int) -> None:
        if first:
            raise OSError(code, os.strerror(code))
        first.append(fsync(descriptor))

    monkeypatch.setattr(os, "fsync", picky)
    if passes:
        save(tmp_path / "file", SMALL)
    else:
        with pytest.raises(OSError, match="file"):
            save(tmp_path / "file", SMALL)
    assert identical(SMALL, load(tmp_path / "file"))


def test_paths_may_be_strings_and_must_exist(tmp_path):
    save(str(tmp_path / "file"), 1)
    assert load(str(tmp_path / "file")) == 1
    with pytest.raises(FileNotFoundError, match="missing"):
        load(tmp_path / "missing")
    with pytest.raises(FileNotFoundError, match="missing"):
        save(tmp_path / "missing" / "file", 1)

"""Checkpoints come back bit by bit, or are refused; the file that was there survives every failure."""

import errno
import hashlib
import io
import math
import os
import re
import signal
import struct
import zipfile
from collections import OrderedDict

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from codecl.training import checkpoint
from codecl.training.checkpoint import COMMENT_LENGTH, BrokenCheckpoint, load, save
from tests.soak.faults import Fault, install

pytestmark = pytest.mark.filterwarnings("ignore:ComplexHalf support")  # torch's own, whoever touches one

WHOLE_BYTES = re.compile(r"torch\.(bool|u?int(?:8|16|32|64)|b?float16|float(?:32|64|8_\w+)|complex(?:32|64|128))")
DTYPES = {m[1]: d for d in vars(torch).values() if isinstance(d, torch.dtype) and (m := WHOLE_BYTES.fullmatch(str(d)))}


def identical(a: object, b: object) -> bool:
    """Equality that tells 1 from True, 0.0 from −0.0, and one NaN from another."""
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return a.dtype == b.dtype and a.shape == b.shape and raw(a) == raw(b)
    if isinstance(a, dict) and isinstance(b, dict):
        pairs = zip(a.items(), b.items(), strict=True)
        return len(a) == len(b) and all(identical(j, k) and identical(x, y) for (j, x), (k, y) in pairs)
    if isinstance(a, list | tuple):
        return type(a) is type(b) and len(a) == len(b) and all(map(identical, a, b))
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
def folder(tmp_path_factory):
    """One folder for all draws of a test."""
    return tmp_path_factory.mktemp("checkpoints")


@pytest.fixture(scope="module")
def whole(folder):
    save(folder / "small", SMALL)
    return (folder / "small").read_bytes()


def saved(tree: object) -> bytes:
    """What ``torch.save`` writes."""
    buffer = io.BytesIO()
    torch.save(tree, buffer)
    return buffer.getvalue()


def sealed(archive: bytes) -> bytes:
    """A zip of anyone's with a checksum that is right."""
    content = archive[:-2]
    return content + COMMENT_LENGTH + hashlib.sha256(content).digest()


def rezipped(archive: bytes, compression: int = zipfile.ZIP_STORED, **members: bytes) -> bytes:
    """The same zip packed in another way, or with other ``members``."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(archive)) as old, zipfile.ZipFile(buffer, "w", compression) as new:
        for name in old.namelist():
            new.writestr(name, members.get(name.rpartition("/")[2].partition(".")[0], old.read(name)))
    return buffer.getvalue()


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


def test_infinities_every_nan_and_long_integers(folder):
    bits = ["7ff0000000000000", "fff0000000000000", "7ff8000000000000", "fff8000000000000", "7ff8000000000abc"]
    floats = [struct.unpack(">d", bytes.fromhex(text))[0] for text in bits]
    tree = [*floats, 2**63, -(2**63), checkpoint.INTEGER - 1, 1 - checkpoint.INTEGER]
    save(folder / "numbers", tree)
    assert identical(tree, load(folder / "numbers"))


def test_the_dtypes_are_those_with_whole_bytes():
    assert {"bool", "bfloat16", "float64", "uint64", "complex32", "float8_e5m2"} <= DTYPES.keys()


@pytest.mark.parametrize("count", [2**20 - 1, 3 * 2**20 + 5])
def test_tensors_of_megabytes(folder, count):
    tensor = torch.randint(256, (count,), dtype=torch.uint8, generator=torch.Generator().manual_seed(count))
    save(folder / "large", [tensor, torch.ones(1)])
    assert identical([tensor, torch.ones(1)], load(folder / "large"))


@pytest.mark.parametrize("view", [lambda t: t[:2], lambda t: t[:, 0], lambda t: t[::1000], lambda t: t[:0]])
def test_a_view_is_stored_without_the_memory_around_it(folder, view):
    large = torch.arange(2e6).view(1000, 2000)
    save(folder / "view", view(large))
    assert os.path.getsize(folder / "view") < 20_000
    assert identical(view(large), load(folder / "view"))


def test_any_torch_reads_it(folder):
    save(folder / "file", SMALL)
    assert identical(SMALL, torch.load(folder / "file", weights_only=True))
    with zipfile.ZipFile(folder / "file") as archive:
        assert archive.testzip() is None


def test_loaded_tensors_are_ordinary(folder):
    """Writable, aligned as torch aligns, each with memory of its own, and not tied to the graph."""
    tied = nn.Parameter(torch.ones(3))
    save(folder / "tied", [tied, tied, tied.detach()[1:]])
    a, b, c = load(folder / "tied")
    a += 1
    assert (a.tolist(), b.tolist(), c.tolist()) == ([2.0] * 3, [1.0] * 3, [1.0] * 2)
    assert all(type(t) is Tensor and not t.requires_grad and t.data_ptr() % 64 == 0 for t in (a, b, c))


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
    assert (type(state["size"]), state["size"]) == (tuple, (2, 3))
    assert type(state["model"]) is dict
    assert list(state["optimizer"]["state"]) == [0, 1]
    optimizer.load_state_dict(state["optimizer"])
    model.load_state_dict(state["model"])


def test_the_default_device_does_not_matter(folder):
    save(folder / "device", torch.ones(2))
    with torch.device("meta"):
        save(folder / "device", load(folder / "device"))
        assert load(folder / "device").tolist() == [1.0, 1.0]


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
        (10**1000, r"tree\['a'\]\[1\]\[2\] is an integer of 3322 bits"),
        ({10**1000: 1}, "has the key 1000"),
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
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    save(tmp_path / "file", 1)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", interrupted)
        with pytest.raises(KeyboardInterrupt):
            save(tmp_path / "file", SMALL)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert load(tmp_path / "file") == 1


def test_paths_may_be_strings_and_must_exist(tmp_path):
    save(str(tmp_path / "file"), 1)
    assert load(str(tmp_path / "file")) == 1
    with pytest.raises(FileNotFoundError, match="missing"):
        load(tmp_path / "missing")
    with pytest.raises(FileNotFoundError, match="missing"):
        save(tmp_path / "missing" / "file", 1)


@pytest.mark.parametrize(("kind", "raised"), [("EIO", OSError), ("term", KeyboardInterrupt)])
def test_a_disk_that_fails_or_a_signal_while_reading_says_nothing_against_the_file(tmp_path, kind, raised):
    """At every call, also within torch's reader, which makes other errors of them."""
    save(tmp_path / "file", {"a": torch.arange(5), "b": [torch.ones(3), 1.5]})
    handler = signal.signal(signal.SIGTERM, signal.default_int_handler)
    count = install(tmp_path / "file")
    load(tmp_path / "file")
    calls, failures = count(), 0
    try:
        for at in range(1, calls + 1):
            restore = install(tmp_path / "file", Fault(kind, at))
            try:
                load(tmp_path / "file")
            except raised:
                failures += 1
            finally:
                restore()
    finally:
        signal.signal(signal.SIGTERM, handler)
    assert failures > 20

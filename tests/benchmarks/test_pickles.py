"""Pickles: every plain value comes back as numpy and pickle wrote it, and nothing of a hostile one runs."""

import contextlib
import pickle
import pickletools
import resource
import struct
import subprocess
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from codecl.benchmarks.data import pickles
from codecl.benchmarks.data.images import DamagedData
from codecl.benchmarks.data.pickles import array_of, load_table

pytestmark = pytest.mark.slow

FILE = Path("a.pkl")
PROTOCOLS = range(6)
keys = st.text() | st.binary(max_size=9) | st.integers(-9, 9)
plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary(max_size=400),
    lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(keys, inner),
    max_leaves=12,
)


@given(plain, st.sampled_from(range(1, 6)))
def test_plain_values_come_back(value, protocol):
    assert load_table(FILE, pickle.dumps({"value": value}, protocol))["value"] == value


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("dtype", ["u1", "i1", "<i2", ">i2", "<i4", "<i8", ">i8", "<f4", "<f8", ">f8"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_arrays_come_back(protocol, dtype, order):
    x = np.asarray(np.arange(24).reshape(2, 3, 4), dtype, order)
    found = array_of(FILE, load_table(FILE, pickle.dumps({"x": x}, protocol)), "x")
    expected = torch.tensor(x.astype(x.dtype.newbyteorder("=")))
    assert found.dtype == expected.dtype
    assert torch.equal(found, expected)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_numbers_of_numpy_come_back(protocol):
    values = [np.int64(-5), np.float32(0.5), np.uint8(200)]
    assert load_table(FILE, pickle.dumps({"values": values}, protocol))["values"] == [-5, 0.5, 200]


def test_empty_arrays_and_shared_values_come_back():
    row = [1, 2]
    table = load_table(FILE, pickle.dumps({"first": row, "second": row, "empty": np.zeros((0, 3), np.uint8)}))
    assert table["first"] is table["second"]
    assert array_of(FILE, table, "empty").shape == (0, 3)


def test_what_python_2_wrote_comes_as_bytes():
    # Protocol 2 of Python 2, as in the CIFAR files: str as BINSTRING, numpy by its names of the time.
    array = b"cnumpy.core.multiarray\n_reconstruct\nq\x00(cnumpy\nndarray\nq\x01K\x00\x85U\x01btR"
    dtype = b"cnumpy\ndtype\n(U\x02u1K\x00K\x01tR(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
    state = b"(K\x01K\x02K\x02\x86" + dtype + b"\x89T\x04\x00\x00\x00\x01\x02\x03\xfftb"
    found = load_table(FILE, b"\x80\x02}(U\x04data" + array + state + b"U\x01aI01\nU\x01bS'it\\'s\\n\\d'\nu.")
    assert array_of(FILE, found, "data").tolist() == [[1, 2], [3, 255]]
    assert (found["a"], found["b"]) == (True, b"it's\n\\d")


class Calls:
    """Pickles as a call of ``function`` with ``arguments``."""

    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


def gadgets(marker):
    import os
    import shutil

    write = f"open({str(marker)!r}, 'w')"
    return [
        Calls(os.system, f"touch {marker}"),
        Calls(eval, write),
        Calls(exec, write),
        Calls(getattr, "", "join"),
        Calls(__import__, "os"),
        Calls(subprocess.Popen, ["touch", str(marker)]),
        Calls(open, str(marker), "w"),
        Calls(shutil.copy, sys.executable, str(marker)),
        Calls(np.load, str(marker)),
        Calls(np.fromfile, str(marker)),
        Calls(np.memmap, str(marker), "u1", "w+", 0, (8,)),
        Calls(np.savetxt, str(marker), [1]),
        Calls(pickle.loads, pickle.dumps(1)),
        Calls(torch.load, str(marker)),
        Calls(type, "X", (), {}),
    ]


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("i", range(15))
def test_nothing_of_a_hostile_pickle_runs(tmp_path, protocol, i):
    marker = tmp_path / "ran"
    data = pickle.dumps({"data": [1, gadgets(marker)[i]]}, protocol)
    with pytest.raises(DamagedData, match=r"a\.pkl cannot be read .* it asks for "):
        load_table(FILE, data)
    assert not marker.exists()


def test_the_gadgets_do_run_in_pythons_own_unpickler(tmp_path):
    marker = tmp_path / "ran"
    pickle.loads(pickle.dumps(gadgets(marker)[0]))
    assert marker.exists()


@pytest.mark.parametrize("data", [
    b"cnumpy\n__builtins__\n.",
    b"cnumpy.core.multiarray\nfromfile\n(S'/etc/passwd'\ntR.",
    b"cnumpy.testing._private.utils\nruncstring\n(S'1'\ntR.",
    b"cnumpy.f2py.crackfortran\nmyeval\n(S'1'\ntR.",
    b"\x80\x04\x8c\x05numpy\x8c\x0edtype.__init__\x93.",  # a dotted name is an attribute in protocol 4
    b"\x80\x04\x8c\x05numpy\x8c\x05dtype\x93}\x8c\x01a\x8c\x01bsb.",  # BUILD on the builder itself
    b"\x80\x04\x8c\x07_codecs\x8c\x06encode\x93N}\x8c\x0c__defaults__)s\x86b.",
    b"\x80\x04\x8c\x12numpy.core.numeric\x8c\x0b_frombuffer\x93N}\x8c\x0c__defaults__)s\x86b.",
    b"c_codecs\nencode\n(S'x'\nS'rot13'\ntR.",
    b"c_codecs\nencode\n(Vx\nVidna\ntR.",
    b"(ios\nsystem\nS'true'\no.", b"(S'true'\nios\nsystem\n.", b"\x80\x02cnumpy\ndtype\n)\x81.",  # OBJ, INST, NEWOBJ
    b"Pid\n.", b"Nq\x00Q.", b"\x82\x01.", b"\x97.", b"\x8f.",  # PERSID, BINPERSID, EXT1, NEXT_BUFFER, EMPTY_SET
    b"cnumpy\nndarray\n((K\x02tS'u1'\ntR.",
    b"K\x01K\x02.", b"(.", b".", b"", b"0.", b"R.", b"t.", b"h\x07.", b"\x80",
])  # fmt: skip
def test_other_ways_out_are_closed(data):
    with pytest.raises(DamagedData, match=r"a\.pkl"):
        load_table(FILE, data)


def test_only_known_opcodes_are_known():
    outside = {"INST", "OBJ", "NEWOBJ", "NEWOBJ_EX", "PERSID", "BINPERSID", "EXT1", "EXT2", "EXT4"}
    unused = {"NEXT_BUFFER", "READONLY_BUFFER", "EMPTY_SET", "ADDITEMS", "FROZENSET", "POP", "POP_MARK", "DUP"}
    assert {op.name for op in pickletools.opcodes} - set(pickles.OPCODES.split()) == outside | unused


DEEP = 300_000
KEY = "keys that are neither text nor small whole numbers"
NESTED = [
    (b"]" * DEEP + b"a" * (DEEP - 1) + b".", "found list"),
    (b")" + b"\x85" * DEEP + b".", "found tuple"),
    (b"}" + b")" + b"\x85" * DEEP + b"Ns.", KEY),  # hashing it overflows the stack
    (b"}(" + b")" + b"\x85" * DEEP + b"q\x00NK\x01h\x00u.", KEY),
    (b"(" + b")" + b"\x85" * DEEP + b"Nd.", KEY),
    (b")q\x00" + b"h\x00h\x00\x86q\x00" * 50 + b"}h\x00Ns.", KEY),  # hashing it takes 2**50 steps
    (b"]q\x00h\x00a.", "found list"),  # a list within itself
]


def test_depth_does_no_harm(tmp_path):
    for i, (data, _) in enumerate(NESTED):
        (tmp_path / f"{i}.pkl").write_bytes(data)
    code = (  # in a process of its own, which an overflow would end
        "import sys; from pathlib import Path; from codecl.benchmarks.data.pickles import load_table\n"
        "from codecl.benchmarks.data.images import DamagedData\n"
        "for path in sorted(Path(sys.argv[1]).iterdir()):\n"
        "    try: load_table(path, path.read_bytes())\n"
        "    except DamagedData as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stderr) == (0, "")
    for i, (line, (_, words)) in enumerate(zip(done.stdout.splitlines(), NESTED, strict=True)):
        assert f"{i}.pkl" in line
        assert words in line


def huge(opcode: bytes, form: str, n: int) -> bytes:
    return opcode + struct.pack(form, n) + b"x" * 20


def array(shape: bytes, data: bytes = b"C\x04abcd", dtype: bytes = b"C\x02u1") -> bytes:
    made = b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(K\x00tC\x01btR"
    return made + b"(K\x01" + shape + b"cnumpy\ndtype\n(" + dtype + b"tR\x89" + data + b"tb."


@pytest.mark.parametrize("data", [
    huge(b"T", "<I", 2**32 - 1), huge(b"B", "<I", 2**31), huge(b"\x8e", "<Q", 2**62), huge(b"\x96", "<Q", 2**40),
    huge(b"X", "<I", 2**32 - 1), huge(b"\x8d", "<Q", 2**63), huge(b"\x8b", "<I", 2**31),
    array(b"J\xff\xff\xff\x7f\x85"), array(b"(J\xff\xff\xff\x7fJ\xff\xff\xff\x7fJ\xff\xff\xff\x7ft"),
    array(b"(K\x00" + b"J\xff\xff\xff\x7f" * 7 + b"t", b"C\x00")[:-1] + b"0.",
    array(b"J\xff\xff\xff\xff\x85"), array(b"(" + b"K\x01" * 90 + b"K\x04t"), b"I" + b"9" * 100_000 + b"\n.",
    array(b"K\x01\x85", b"]", b"C\x01O"), array(b"K\x01\x85", b"C\x04abcd", b"C\x02V4"),
    array(b"K\x01\x85", b"C\x04abcd", b"C\x0bV1000000000"), array(b"K\x01\x85", b"C\x04abcd", b"C\x02U1"),
])  # fmt: skip
def test_nothing_large_is_allocated(data):
    tracemalloc.start()
    try:
        with pytest.raises(DamagedData, match="cannot be read as a pickle"):
            load_table(FILE, data)
        assert tracemalloc.get_traced_memory()[1] < 2_000_000
    finally:
        tracemalloc.stop()


def test_a_memo_has_room_for_what_is_stored_only():
    """Python's unpickler in C makes room for 2**31 values here."""
    tracemalloc.start()
    try:
        for put in (b"r\xff\xff\xff\x7f", b"p2147483647\n"):
            assert load_table(FILE, b"}" + put + b".") == {}
        assert tracemalloc.get_traced_memory()[1] < 2_000_000
    finally:
        tracemalloc.stop()


def repeated_encode(text: int, calls: int) -> bytes:
    """A text that is stored once and encoded again and again, all results kept."""
    arguments = b"X" + struct.pack("<I", text) + b"x" * text + b"X\x06\x00\x00\x00latin1\x86q\x01"
    return b"\x80\x02(c_codecs\nencode\nq\x00" + arguments + b"h\x00h\x01R" * calls + b"l."


def test_a_bomb_of_repeated_text_is_refused():
    """A file of 1.2 MB must not become gigabytes."""
    data = repeated_encode(1_000_000, 20_000)
    assert len(data) < 1_200_000
    tracemalloc.start()
    try:
        with pytest.raises(DamagedData, match="more bytes than the file has"):
            load_table(FILE, data)
        assert tracemalloc.get_traced_memory()[1] < 20_000_000
    finally:
        tracemalloc.stop()


def test_a_bomb_of_small_values_is_refused():
    with pytest.raises(DamagedData, match="more than 1,000,000 opcodes"):
        load_table(FILE, b"(" + b"]" * pickles.MAX_OPCODES + b"l.")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(DamagedData, match="more than 1,000,000 opcodes"):
        load_table(FILE, b"(" + b"}" * 40_000_000 + b"l.")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000  # kB


@given(st.data())
def test_cut_off_or_changed_anywhere_it_is_read_or_refused(data):
    table = {"x": np.arange(40, dtype=np.uint8), "y": [1, 2, (3, "a")]}
    whole = pickle.dumps(table, data.draw(st.sampled_from(PROTOCOLS)))
    at = data.draw(st.integers(0, len(whole) - 1))
    with pytest.raises(DamagedData, match=r"a\.pkl"):
        load_table(FILE, whole[:at])
    changed = bytearray(whole)
    changed[at] ^= data.draw(st.integers(1, 255))
    with contextlib.suppress(DamagedData):
        array_of(FILE, load_table(FILE, bytes(changed)), "x")


def test_entries_are_named_when_they_are_not_what_was_expected():
    with pytest.raises(DamagedData, match="expected an entry 'data'; found labels"):
        array_of(FILE, {"labels": [1]}, "data")
    scalar = load_table(FILE, pickle.dumps({"data": np.array(3)}))["data"]
    for value in ("text", [1, "2"], [1.5], [True], [2**70], None, scalar, pickles._Array()):
        with pytest.raises(DamagedData, match="expected an array or a list of whole numbers as 'data'"):
            array_of(FILE, {"data": value}, "data")
    with pytest.raises(DamagedData, match="lists: it is cut off"):
        load_table(FILE, b"B\x10\x00\x00\x00abc.")
    with pytest.raises(DamagedData, match="expected a dict; found list"):
        load_table(FILE, pickle.dumps([1]))
    assert array_of(FILE, {"data": [3, -1]}, "data").tolist() == [3, -1]

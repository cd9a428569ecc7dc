"""Pickles: every plain value comes back as numpy and pickle wrote it, and nothing of a hostile one runs."""

import contextlib
import pickle
import pickletools
import struct
import subprocess
import sys
import tracemalloc

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from codecl.benchmarks.data.images import DamagedData
from codecl.benchmarks.data.machine import Array, Refused
from codecl.benchmarks.data.opcodes import OPCODES, run
from codecl.benchmarks.data.pickles import GARBLED, array_of, load_pickle, load_table

PROTOCOLS = range(6)
plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary(max_size=400),
    lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(st.text() | st.integers(-9, 9), inner),
    max_leaves=12,
)


@given(plain, st.sampled_from(PROTOCOLS))
def test_plain_values_come_back(value, protocol):
    assert run(pickle.dumps(value, protocol)) == value


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("dtype", ["u1", "i1", "<i2", ">i2", "<i4", "<i8", ">i8", "<f4", "<f8", ">f8", "?"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_arrays_come_back(protocol, dtype, order):
    x = np.asarray(
        np.arange(24).reshape(2, 3, 4) % 7 > 2 if dtype == "?" else np.arange(24).reshape(2, 3, 4), dtype, order
    )
    found = run(pickle.dumps({"x": x}, protocol))["x"]
    assert isinstance(found, Array)
    expected = torch.tensor(x.astype(x.dtype.newbyteorder("=")))
    assert found.tensor.dtype == expected.dtype
    assert torch.equal(found.tensor, expected)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_numbers_of_numpy_come_back(protocol):
    assert run(pickle.dumps([np.int64(-5), np.float32(0.5), np.uint8(200), np.bool_(True)], protocol)) == [
        -5,
        0.5,
        200,
        True,
    ]


def test_empty_arrays_and_shared_values_come_back():
    row = [1, 2]
    first, second, empty = run(pickle.dumps([row, row, np.zeros((0, 3), np.uint8)]))
    assert first is second
    assert empty.tensor.shape == (0, 3)


def test_what_python_2_wrote_comes_as_bytes():
    # Protocol 2 of Python 2, as in the CIFAR files: str as BINSTRING, numpy by its names of the time.
    array = b"cnumpy.core.multiarray\n_reconstruct\nq\x00(cnumpy\nndarray\nq\x01K\x00\x85U\x01btR"
    dtype = b"cnumpy\ndtype\n(U\x02u1K\x00K\x01tR(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
    state = b"(K\x01K\x02K\x02\x86" + dtype + b"\x89T\x04\x00\x00\x00\x01\x02\x03\xfftb"
    data = b"\x80\x02}(U\x04data" + array + state + b"U\x01aI01\nU\x01bS'it\\'s\\n'\nu."
    found = run(data)
    assert found[b"data"].tensor.tolist() == [[1, 2], [3, 255]]
    assert (found[b"a"], found[b"b"]) == (True, b"it's\n")


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
    marker, file = tmp_path / "ran", tmp_path / "hostile.pkl"
    file.write_bytes(pickle.dumps({"data": [1, gadgets(marker)[i]]}, protocol))
    with pytest.raises(DamagedData, match=r"hostile\.pkl cannot be read .* it asks for "):
        load_pickle(file)
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
    b"c_codecs\nencode\n(S'x'\nS'rot13'\ntR.",
    b"c_codecs\nencode\n(Vx\nVidna\ntR.",
    b"(ios\nsystem\nS'true'\no.", b"(S'true'\nios\nsystem\n.", b"\x80\x02cnumpy\ndtype\n)\x81.",  # OBJ, INST, NEWOBJ
    b"Pid\n.", b"Nq\x00Q.", b"\x82\x01.", b"\x97.", b"\x8f.",  # PERSID, BINPERSID, EXT1, NEXT_BUFFER, EMPTY_SET
    b"cnumpy\nndarray\n((K\x02tS'u1'\ntR.",
    b"K\x01K\x02.", b"(.", b".", b"", b"0.", b"R.", b"t.", b"h\x07.", b"\x80",
])  # fmt: skip
def test_other_ways_out_are_closed(tmp_path, data):
    file = tmp_path / "a.pkl"
    file.write_bytes(data)
    with pytest.raises(DamagedData, match=r"a\.pkl"):
        load_pickle(file)


def test_only_known_instructions_are_known():
    outside = {"INST", "OBJ", "NEWOBJ", "NEWOBJ_EX", "PERSID", "BINPERSID", "EXT1", "EXT2", "EXT4"}
    left_out = outside | {"NEXT_BUFFER", "READONLY_BUFFER", "EMPTY_SET", "ADDITEMS", "FROZENSET", "STOP"}
    names = {ord(op.code): op.name for op in pickletools.opcodes}
    assert set(OPCODES) <= set(names)
    assert {names[code] for code in set(names) - set(OPCODES)} == left_out


DEEP = 300_000


NESTED = [
    b"]" * DEEP + b"a" * (DEEP - 1) + b".",
    b")" + b"\x85" * DEEP + b".",
    b"}" + b")" + b"\x85" * DEEP + b"Ns.",  # a deep tuple as a key overflows the stack when it is hashed
    b"]q\x00h\x00a.",  # a list within itself
]


def test_depth_does_no_harm(tmp_path):
    for i, data in enumerate(NESTED):
        (tmp_path / f"{i}.pkl").write_bytes(data)
    code = (  # in a process of its own, which an overflow would end
        "import sys; from pathlib import Path; from codecl.benchmarks.data.pickles import load_table\n"
        "from codecl.benchmarks.data.images import DamagedData\n"
        "for path in sorted(Path(sys.argv[1]).iterdir()):\n"
        "    try: load_table(path)\n"
        "    except DamagedData as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert [f"{i}.pkl" in line for i, line in enumerate(done.stdout.splitlines())] == [True] * 4


def huge(opcode: bytes, form: str, n: int) -> bytes:
    return opcode + struct.pack(form, n) + b"x" * 20


def array(shape: bytes, data: bytes = b"C\x04abcd") -> bytes:
    made = b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(K\x00tC\x01btR"
    return made + b"(K\x01" + shape + b"cnumpy\ndtype\n(C\x02u1tR\x89" + data + b"tb."


@pytest.mark.parametrize("data", [
    huge(b"T", "<I", 2**32 - 1), huge(b"B", "<I", 2**31), huge(b"\x8e", "<Q", 2**62), huge(b"\x96", "<Q", 2**40),
    huge(b"X", "<I", 2**32 - 1), huge(b"\x8d", "<Q", 2**63), huge(b"\x8b", "<I", 2**31),
    array(b"J\xff\xff\xff\x7f\x85"), array(b"(J\xff\xff\xff\x7fJ\xff\xff\xff\x7fJ\xff\xff\xff\x7ft"),
    array(b"(K\x00" + b"J\xff\xff\xff\x7f" * 7 + b"t", b"C\x00")[:-1] + b"0.",
    array(b"J\xff\xff\xff\xff\x85"), array(b"(" + b"K\x01" * 40 + b"K\x04t"), b"I" + b"9" * 100_000 + b"\n.",
    b"Nr\xff\xff\xff\x7f0.",  # LONG_BINPUT: Python's own unpickler makes room for 2**31 values
])  # fmt: skip
def test_nothing_large_is_allocated(data):
    tracemalloc.start()
    try:
        with pytest.raises((Refused, *GARBLED)):
            run(data)
        assert tracemalloc.get_traced_memory()[1] < 2_000_000
    finally:
        tracemalloc.stop()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_cut_off_or_changed_anywhere_it_is_read_or_refused(tmp_path, data):
    whole = pickle.dumps(
        {"x": np.arange(40, dtype=np.uint8), "y": [1, 2, (3, "a")]}, data.draw(st.sampled_from(PROTOCOLS))
    )
    at = data.draw(st.integers(0, len(whole) - 1))
    file = tmp_path / "a.pkl"
    file.write_bytes(whole[:at])
    with pytest.raises(DamagedData, match=r"a\.pkl"):
        load_pickle(file)
    changed = bytearray(whole)
    changed[at] ^= data.draw(st.integers(1, 255))
    file.write_bytes(bytes(changed))
    with contextlib.suppress(DamagedData):
        load_table(file)


def test_entries_are_named_when_they_are_not_what_was_expected(tmp_path):
    file = tmp_path / "a.pkl"
    with pytest.raises(DamagedData, match="expected an entry 'data'; found labels"):
        array_of(file, {"labels": [1]}, "data")
    for value in ("text", [1, "2"], [1.5], [True], [2**70], None, Array(), Array(torch.tensor(3))):
        with pytest.raises(DamagedData, match="expected an array or a list of whole numbers as 'data'"):
            array_of(file, {"data": value}, "data")
    file.write_bytes(b"B\x10\x00\x00\x00abc.")
    with pytest.raises(DamagedData, match="it ends early: 16 bytes are announced, 4 are left"):
        load_pickle(file)
    file.write_bytes(pickle.dumps([1]))
    with pytest.raises(DamagedData, match="expected a dict; found list"):
        load_table(file)
    assert array_of(file, {"data": [3, -1]}, "data").tolist() == [3, -1]

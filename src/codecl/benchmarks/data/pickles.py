"""Reading pickles that others wrote: arrays, numbers, text, lists, tuples and dicts, and nothing else.

Python's unpickler reads them, but the names in a file lead only to the stand-ins below, never to numpy or Python. A
file that is not known by its checksum is inspected first, so that it cannot use more memory or time than its size
justifies: Python's unpickler trusts memo indices and lengths, and hashes nested tuples without bound.
"""

from __future__ import annotations

import io
import pickle
import pickletools
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from codecl.benchmarks.data.images import DamagedData, library

MAX_OPCODES = 1_000_000  # the largest published file has 0.3 million
DTYPES = ("u1", "i1", "i2", "i4", "i8", "f4", "f8")
KEYS = {
    "STRING", "BINSTRING", "SHORT_BINSTRING", "UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8", "BINBYTES",
    "SHORT_BINBYTES", "BINBYTES8", "BININT", "BININT1", "BININT2", "REDUCE",
}  # fmt: skip
"""What may make the key of a dict. Tuples would be hashed by recursion, and large numbers made to collide."""
OPCODES = KEYS | {
    "PROTO", "FRAME", "STOP", "MARK", "NONE", "NEWTRUE", "NEWFALSE", "INT", "LONG", "LONG1", "LONG4", "FLOAT",
    "BINFLOAT", "BYTEARRAY8", "EMPTY_LIST", "LIST", "APPEND", "APPENDS", "EMPTY_TUPLE", "TUPLE", "TUPLE1", "TUPLE2",
    "TUPLE3", "EMPTY_DICT", "DICT", "SETITEM", "SETITEMS", "GET", "BINGET", "LONG_BINGET", "PUT", "BINPUT",
    "LONG_BINPUT", "MEMOIZE", "GLOBAL", "STACK_GLOBAL", "BUILD",
}  # fmt: skip


def load_table(path: Path, data: bytes, official: bool = False) -> dict[str, Any]:
    """The dict that ``data``, the pickle at ``path``, holds, with its keys as text; ``official``: known by checksum."""
    try:
        with warnings.catch_warnings(action="ignore"):  # escapes of Python 2 that Python 3 deprecates
            if not official:
                _inspect(data)
            table = _Unpickler(data).load()
    except ModuleNotFoundError:
        raise
    except Exception as error:  # a damaged file may raise anything
        why = str(error)[:200] or type(error).__name__
        raise DamagedData(f"{path} cannot be read as a pickle of arrays, numbers, text and lists: {why}.") from None
    if not isinstance(table, dict):
        raise DamagedData(f"{path}: expected a dict; found {type(table).__name__}.")
    return {key.decode("latin1") if isinstance(key, bytes) else str(key): value for key, value in table.items()}


def array_of(path: Path, table: dict[str, Any], key: str) -> Tensor:
    """The array at ``key``; a list of whole numbers counts as one."""
    if key not in table:
        found = ", ".join(sorted(name[:40] for name in table)[:10])
        raise DamagedData(f"{path}: expected an entry {key!r}; found {found or 'none'}.")
    value = table[key]
    if isinstance(value, _Array) and value.values is not None and value.values.ndim > 0:
        return torch.from_numpy(value.values.astype(value.values.dtype.newbyteorder("="), order="C"))
    if isinstance(value, list) and all(type(item) is int and abs(item) < 2**62 for item in value):
        return torch.tensor(value, dtype=torch.int64)
    kind = type(value).__name__.lstrip("_")
    raise DamagedData(f"{path}: expected an array or a list of whole numbers as {key!r}; found {kind}.")


def _inspect(data: bytes) -> None:
    """Refuse opcodes that do more than make data, memo indices out of reach, and keys that are costly to hash."""
    stack: list[str] = []  # for each value the opcode that made it
    marks: list[int] = []
    memo: dict[int, str] = {}
    for count, (opcode, argument, _) in enumerate(pickletools.genops(data)):
        name = opcode.name
        if name not in OPCODES:
            raise pickle.UnpicklingError(f"it asks for more than data ({name})")
        if count >= MAX_OPCODES:
            raise pickle.UnpicklingError(f"it has more than {MAX_OPCODES:,} opcodes")
        if name == "MARK":
            marks.append(len(stack))
        elif "GET" in name:
            stack.append(memo[int(argument or 0)])
        elif "PUT" in name or name == "MEMOIZE":
            index = len(memo) if name == "MEMOIZE" else int(argument or 0)
            if index > count:
                raise pickle.UnpicklingError(f"its memo has {count:,} values at most, not {index:,}")
            memo[index] = stack[-1]
        else:
            _apply(opcode, stack, marks)


def _apply(opcode: pickletools.OpcodeInfo, stack: list[str], marks: list[int]) -> None:
    """Take from the stack what ``opcode`` takes, and put its name there for each value that it makes."""
    name, before = opcode.name, opcode.stack_before
    marked = pickletools.markobject in before
    start = marks.pop() - before.index(pickletools.markobject) if marked else len(stack) - len(before)
    if start < (marks[-1] if marks else 0):
        raise pickle.UnpicklingError(f"{name} takes more than there is")
    taken = stack[start:]
    keys = taken[::2] if name == "DICT" else taken[1::2] if name.startswith("SETITEM") else []
    if not KEYS.issuperset(keys):
        raise pickle.UnpicklingError("a dict has keys that are neither text nor small whole numbers")
    if name == "BUILD" and taken[0] != "REDUCE":
        raise pickle.UnpicklingError("it changes what is no array")
    stack[start:] = ["REDUCE" if name == "BUILD" else name] * len(opcode.stack_after)


class _Array:
    """Stands in for ``numpy.ndarray``; the values come with the state."""

    values: Any = None

    def __init__(self, *_: Any) -> None:
        pass

    def __setstate__(self, state: Any) -> None:
        _, shape, dtype, fortran, data = state
        self.values = _values(data, dtype, shape, "F" if fortran else "C")


class _DType:
    """Stands in for ``numpy.dtype``; the byte order comes with the code or the state."""

    def __init__(self, code: str | bytes, *_: Any) -> None:
        text = _text(code)
        self.code, self.order = text.lstrip("<>|="), text[:1]

    def __setstate__(self, state: Any) -> None:
        self.order = _text(state[1])


def _text(value: str | bytes) -> str:
    return value.decode("latin1") if isinstance(value, bytes) else value


def _values(data: Any, dtype: Any, shape: Any, order: str | bytes = "C") -> Any:
    """A numpy array over ``data``, without a copy."""
    if not isinstance(dtype, _DType) or dtype.code not in DTYPES:
        raise pickle.UnpicklingError(f"an array of {str(getattr(dtype, 'code', '?'))[:20]!r}, not of {DTYPES}")
    if not isinstance(shape, tuple) or not all(type(extent) is int and extent >= 0 for extent in shape):
        raise pickle.UnpicklingError("an array without a shape")
    kind = (">" if dtype.order == ">" else "<") + dtype.code
    values = library("numpy", "NumPy").ndarray(shape, kind, data, order=_text(order))
    if values.nbytes != len(data):
        raise pickle.UnpicklingError(f"an array of shape {list(values.shape)} has {len(data):,} bytes")
    return values


def _from_buffer(data: Any, dtype: Any, shape: Any, order: Any = "C") -> _Array:
    array = _Array()
    array.values = _values(data, dtype, shape, order)
    return array


class _Unpickler(pickle.Unpickler):
    """Text that Python 2 wrote comes as bytes."""

    def __init__(self, data: bytes) -> None:
        super().__init__(io.BytesIO(data), encoding="bytes")
        self.room = len(data)

    def find_class(self, module: str, name: str) -> Any:
        known = {
            "numpy.ndarray": _Array,
            "numpy.dtype": _DType,
            "numpy.core.multiarray._reconstruct": _Array,
            "numpy.core.multiarray.scalar": lambda dtype, data: _values(data, dtype, ()).item(),
            "numpy.core.numeric._frombuffer": _from_buffer,
            "_codecs.encode": self._encode,
            "__builtin__.bytes": lambda: b"",  # how Python 3 writes no bytes in older protocols
        }
        full = f"{module.replace('numpy._core', 'numpy.core')}.{name}"
        if full not in known:
            raise pickle.UnpicklingError(f"it asks for {module[:60]}.{name[:60]}")
        return known[full]

    def _encode(self, text: str, encoding: str) -> bytes:
        """How Python 3 writes bytes in older protocols: once each, so that all of them fit into the file."""
        self.room -= len(text)
        if encoding not in ("latin1", "latin-1") or self.room < 0:
            raise pickle.UnpicklingError("it asks for more bytes than the file has, or for another codec than latin1")
        return text.encode("latin1")

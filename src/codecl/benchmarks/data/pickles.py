"""Reading pickles that others wrote: arrays, numbers, text, lists, tuples and dicts, and nothing else.

Python's own unpickler in Python reads them, not the one in C, which makes room for as many values as a file announces.
The names in a file lead only to the stand-ins below, never to numpy or Python, and a file cannot use more memory or
time than its size justifies.
"""

from __future__ import annotations

import io
import pickle
import pickletools
import struct
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from codecl.benchmarks.data.images import DamagedData, expect, library

MAX_OPCODES = 1_000_000  # the largest published file has 0.3 million
DTYPES = ("u1", "i1", "i2", "i4", "i8", "f4", "f8")
OPCODES = (
    "PROTO FRAME STOP MARK NONE NEWTRUE NEWFALSE INT BININT BININT1 BININT2 LONG LONG1 LONG4 FLOAT BINFLOAT STRING "
    "BINSTRING SHORT_BINSTRING UNICODE BINUNICODE SHORT_BINUNICODE BINUNICODE8 BINBYTES SHORT_BINBYTES BINBYTES8 "
    "BYTEARRAY8 EMPTY_LIST LIST APPEND APPENDS EMPTY_TUPLE TUPLE TUPLE1 TUPLE2 TUPLE3 EMPTY_DICT DICT SETITEM SETITEMS "
    "GET BINGET LONG_BINGET PUT BINPUT LONG_BINPUT MEMOIZE GLOBAL STACK_GLOBAL REDUCE BUILD"
)


def load_table(path: Path, data: bytes) -> dict[str, Any]:
    """The dict that ``data``, the pickle at ``path``, holds, with its keys as text."""
    try:
        with warnings.catch_warnings(action="ignore"):  # escapes of Python 2 that Python 3 deprecates
            table = _Unpickler(data).load()
    except ModuleNotFoundError:
        raise
    except Exception as error:  # a damaged file may raise anything
        why = str(error)[:200] or ("it is cut off" if isinstance(error, EOFError) else type(error).__name__)
        raise DamagedData(f"{path} cannot be read as a pickle of arrays, numbers, text and lists: {why}.") from None
    expect(isinstance(table, dict), path, "a dict", type(table).__name__)
    return {_text(key): value for key, value in table.items()}


def array_of(path: Path, table: dict[str, Any], key: str) -> Tensor:
    """The array at ``key``; a list of whole numbers counts as one."""
    names = ", ".join(sorted(name[:40] for name in table)[:10])
    expect(key in table, path, f"an entry {key!r}", names or "none")
    value = table[key]
    if isinstance(value, _Array) and value.values is not None and value.values.ndim > 0:
        return torch.from_numpy(value.values.astype(value.values.dtype.newbyteorder("="), order="C"))
    whole = isinstance(value, list) and all(type(item) is int and abs(item) < 2**62 for item in value)
    expect(whole, path, f"an array or a list of whole numbers as {key!r}", type(value).__name__.lstrip("_"))
    return torch.tensor(value, dtype=torch.int64)


class _Array:
    """Stands in for ``numpy.ndarray``; the values come with the state."""

    def __init__(self, *_: Any, values: Any = None) -> None:
        self.values = values

    def build(self, state: Any) -> None:
        _, shape, dtype, fortran, data = state
        self.values = _values(data, dtype, shape, "F" if fortran else "C")


class _DType:
    """Stands in for ``numpy.dtype``; the byte order comes with the code or the state."""

    def __init__(self, code: str | bytes, *_: Any) -> None:
        self.code, self.order = _text(code).lstrip("<>|="), _text(code)[:1]

    def build(self, state: Any) -> None:
        self.order = _text(state[1])


def _text(value: Any) -> str:
    return value.decode("latin1") if isinstance(value, bytes) else str(value)


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


class _Unpickler(pickle._Unpickler):
    """Text that Python 2 wrote comes as bytes."""

    def __init__(self, data: bytes) -> None:
        super().__init__(io.BytesIO(data), encoding="bytes")
        self.room, self.opcodes = len(data), 0

    def find_class(self, module: str, name: str) -> Any:
        known = {
            "numpy.ndarray": _Array,
            "numpy.dtype": _DType,
            "numpy.core.multiarray._reconstruct": _Array,
            "numpy.core.multiarray.scalar": lambda dtype, data: _values(data, dtype, ()).item(),
            "numpy.core.numeric._frombuffer": lambda *of: _Array(values=_values(*of)),
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


def _bytearray(unpickler: Any) -> None:
    unpickler.append(bytearray(unpickler.read(struct.unpack("<Q", unpickler.read(8))[0])))


def _build(unpickler: Any) -> None:
    state, made = unpickler.stack.pop(), unpickler.stack[-1]
    if type(made) not in (_Array, _DType):
        raise pickle.UnpicklingError("it changes what is no array")
    made.build(state)


def _refuse(_: Any) -> None:
    raise pickle.UnpicklingError("it asks for more than data")


def _is_key(value: Any) -> bool:
    """Not tuples, which are hashed by recursion, nor large numbers, which can be made to collide."""
    return type(value) in (str, bytes) or (type(value) is int and abs(value) < 2**31)


def _step(name: str, code: int) -> Callable[[Any], None]:
    """What an opcode does, if it is not one too many and its keys are cheap to hash."""
    known = {"BYTEARRAY8": _bytearray, "BUILD": _build}.get(name, pickle._Unpickler.dispatch[code])
    action = known if name in OPCODES.split() else _refuse
    keys = {"SETITEM": slice(-2, -1), "SETITEMS": slice(None, None, 2), "DICT": slice(None, None, 2)}.get(name)

    def step(unpickler: Any) -> None:
        unpickler.opcodes += 1
        if unpickler.opcodes > MAX_OPCODES:
            raise pickle.UnpicklingError(f"it has more than {MAX_OPCODES:,} opcodes")
        if keys and not all(_is_key(key) for key in unpickler.stack[keys]):
            raise pickle.UnpicklingError("a dict has keys that are neither text nor small whole numbers")
        action(unpickler)

    return step


_Unpickler.dispatch = {ord(opcode.code): _step(opcode.name, ord(opcode.code)) for opcode in pickletools.opcodes}

"""The stack machine that a pickle is a program for, protocols 0 to 5, without what reaches outside of the file.

A name in the file (``numpy.dtype``) is looked up in a table of builders of this module, and what is not in the table
ends the reading. Nothing larger than the file itself is ever allocated, and nothing recurses, however deep it nests.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

DTYPES = {
    "b1": torch.bool, "u1": torch.uint8, "i1": torch.int8, "i2": torch.int16, "i4": torch.int32, "i8": torch.int64,
    "f4": torch.float32, "f8": torch.float64,
}  # fmt: skip
MAX_DIMENSIONS, MAX_EXTENT = 8, 2**31


class Refused(Exception):
    """Why a pickle is not read."""


@dataclass(eq=False)
class Array:
    """An array of numpy; its tensor comes with its state."""

    tensor: Tensor | None = None

    def build(self, state: Any) -> None:
        _, shape, dtype, fortran, data = state
        self.tensor = _tensor(data, dtype, shape, bool(fortran))


@dataclass(eq=False)
class DType:
    """An element type of numpy; its byte order comes with its state."""

    code: str
    big: bool = False

    def build(self, state: Any) -> None:
        self.big = _text(state[1]) == ">"


@dataclass(frozen=True)
class Name:
    """A name that a pickle may call, or hand to another, and what stands in for it."""

    make: Callable[..., Any]


def _tensor(data: Any, dtype: Any, shape: Any, fortran: bool) -> Tensor:
    if not isinstance(dtype, DType) or dtype.code not in DTYPES:
        raise Refused(f"an array of {str(getattr(dtype, 'code', '?'))[:20]!r} is not one of {', '.join(DTYPES)}")
    extents = shape if isinstance(shape, tuple) and len(shape) <= MAX_DIMENSIONS else (-1,)
    if not all(type(n) is int and 0 <= n < MAX_EXTENT for n in extents):
        raise Refused("an array without a shape")
    kind = DTYPES[dtype.code]
    if not isinstance(data, bytes) or len(data) != math.prod(shape) * kind.itemsize:
        raise Refused(f"an array of shape {list(shape)} has {len(data) if isinstance(data, bytes) else 'no'} bytes")
    if len(data) == 0:
        return torch.empty(shape, dtype=kind)
    raw = torch.frombuffer(bytearray(data), dtype=torch.uint8)
    if dtype.code == "b1" and int(raw.max()) > 1:
        raise Refused("an array of truth values holds other values")
    if dtype.big:
        raw = raw.reshape(-1, kind.itemsize).flip(1).flatten()
    flat = raw.view(kind)
    return flat.reshape(shape[::-1]).permute(*reversed(range(len(shape)))) if fortran else flat.reshape(shape)


def _text(value: Any) -> str:
    return value.decode("latin1") if isinstance(value, bytes) else str(value) if isinstance(value, str | int) else ""


def _dtype(code: Any, *_: Any) -> DType:
    code = _text(code)
    return DType(code.lstrip("<>|="), code.startswith(">"))


def _scalar(dtype: Any, data: Any) -> Any:
    return _tensor(data.encode("latin1") if isinstance(data, str) else data, dtype, (), False).item()


def _from_buffer(data: Any, dtype: Any, shape: Any, order: Any = "C", *_: Any) -> Array:
    return Array(_tensor(data, dtype, shape, _text(order) == "F"))


def _encode(text: Any, encoding: Any = "latin1") -> bytes:
    """How Python 3 writes bytes in the older protocols; no other codec is run."""
    if not isinstance(text, str) or _text(encoding) not in ("latin1", "latin-1"):
        raise Refused(f"the codec {_text(encoding)[:40]!r}")
    return text.encode("latin1")


def _no_bytes() -> bytes:
    """How Python 3 writes ``b""`` in the older protocols."""
    return b""


def _reconstruct(*_: Any) -> Array:
    return Array()


def _never(*_: Any) -> Any:
    raise Refused("an array that is made without its state")


NAMES = {
    ("numpy", "ndarray"): Name(_never),
    ("numpy", "dtype"): Name(_dtype),
    ("_codecs", "encode"): Name(_encode),
    ("__builtin__", "bytes"): Name(_no_bytes),
    **{
        (f"numpy.{core}.{module}", name): Name(make)
        for core in ("core", "_core")
        for module, name, make in (
            ("multiarray", "_reconstruct", _reconstruct),
            ("multiarray", "scalar", _scalar),
            ("numeric", "_frombuffer", _from_buffer),
        )
    },
}


class Machine:
    """Where it is in the file, its stack with marks, and its memo; the instructions are in ``opcodes``."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: dict[int, Any] = {}

    def take(self, n: int) -> bytes:
        if n > len(self.data) - self.at:
            raise Refused(f"it ends early: {n} bytes are announced, {len(self.data) - self.at} are left")
        self.at += n
        return self.data[self.at - n : self.at]

    def skip(self, n: int) -> None:
        self.take(n)

    def drop(self, values: list[Any]) -> None:
        """Forget what was popped."""

    def number(self, form: str) -> int:
        value: int = struct.unpack(form, self.take(struct.calcsize(form)))[0]
        if value < 0 and form != "<i":
            raise Refused("a negative length")
        return value

    def line(self) -> bytes:
        end = self.data.find(b"\n", self.at)
        if end < 0:
            raise Refused("it ends within a line")
        text = self.take(end - self.at)
        self.at += 1
        return text

    def push(self, value: Any) -> None:
        self.stack.append(value)

    def pop(self) -> Any:
        if self.marks and len(self.stack) <= self.marks[-1]:
            raise Refused("it takes more than it gave")
        return self.stack.pop()

    def pop_mark(self) -> list[Any]:
        mark = self.marks.pop()
        items = self.stack[mark:]
        del self.stack[mark:]
        return items

    def top(self, kind: type[Any]) -> Any:
        if not isinstance(self.stack[-1], kind):
            raise Refused(f"a {kind.__name__} was expected")
        return self.stack[-1]

    def pairs(self, items: list[Any]) -> dict[Any, Any]:
        """Keys are text or numbers only: a nested key would be hashed by recursion."""
        keys = items[::2]
        if len(items) % 2 or not all(
            isinstance(key, str | bytes) or (isinstance(key, int) and abs(key) < 2**63) for key in keys
        ):
            raise Refused("a dict with keys that are neither text nor whole numbers")
        return dict(zip(keys, items[1::2], strict=True))

    def name(self, module: str, name: str) -> None:
        if (module, name) not in NAMES:
            raise Refused(f"it asks for {module[:60]}.{name[:60]}")
        self.push(NAMES[module, name])

    def call(self) -> None:
        arguments, name = self.pop(), self.pop()
        if not isinstance(name, Name) or not isinstance(arguments, tuple):
            raise Refused("it calls what is no builder of arrays")
        self.push(name.make(*arguments))

    def build(self) -> None:
        state = self.pop()
        if not isinstance(self.stack[-1], Array | DType) or not isinstance(state, tuple):
            raise Refused("it changes what is no array")
        self.stack[-1].build(state)

"""A file of tensors and JSON that is either whole or refused, and that can only ever be data.

    preamble   magic, format, length of the header, length of the file: 28 bytes, little-endian
    header     JSON, with spaces up to a multiple of 64
    data       the bytes of one tensor after the other, little-endian, each from a multiple of 64 on
    checksum   CRC-32 of everything before it

The header is the tree itself. A JSON object in it has one key, which says what JSON has no word for: ``dict`` (pairs,
because keys may be integers), ``tensor`` (dtype, shape, offset in the data), ``float`` (the bits of an infinity or a
NaN), ``int`` (hexadecimal, beyond 64 bits).

CRC-32 finds what disks and killed processes do; no checksum without a key stops an attacker, so whatever the file says
is checked before it is believed. 100 MB take it 28 ms, SHA-256 65 ms (and several times that on older processors).
"""

from __future__ import annotations

import errno
import json
import math
import os
import re
import struct
import sys
import zlib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor, nn

FORMAT = 1
MAGIC = b"\x89codecl\n"
PREAMBLE = struct.Struct("<8sIQQ")
CHECKSUM = struct.Struct("<I")
ALIGNMENT = 64
DEPTH = 64  # of nesting: far from Python's recursion limit, and where a tree that contains itself ends
DIMENSIONS = 64  # what torch's operators take
CHUNK = 2**20
INSTEAD = "Go on from an earlier checkpoint, or delete it and start again."

_WHOLE = re.compile(r"torch\.(bool|u?int(?:8|16|32|64)|b?float16|float(?:32|64|8_\w+)|complex(?:32|64|128))")
DTYPES = {m[1]: d for d in vars(torch).values() if isinstance(d, torch.dtype) and (m := _WHOLE.fullmatch(str(d)))}
Place = tuple[str | int, ...]


class BrokenCheckpoint(ValueError):
    """A file that is not a whole checkpoint of this format."""


def save(path: str | os.PathLike[str], tree: Any) -> None:
    """Write ``tree`` to ``path``: whenever it fails or is killed, a whole file is left, the old one or the new one.

    ``tree`` is made of dict (keys str or int), list, tuple (comes back as a list), None, bool, int, float, str and
    tensors (come back on the CPU, without ``requires_grad``). One process at a time may write to a path.
    """
    path, outline, crc = Path(path), _Outline(), 0
    header = json.dumps(outline.encode(tree), separators=(",", ":"), allow_nan=False).encode("ascii")
    partial = path.with_name(path.name + ".tmp")  # always the same, so that killed processes do not pile them up
    try:
        partial.unlink(missing_ok=True)
        with partial.open("xb") as file:
            for piece in _pieces(header, outline):
                file.write(piece)
                crc = zlib.crc32(piece, crc)
            file.write(CHECKSUM.pack(crc))
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
        _sync_directory(path.parent)
    except BaseException as error:
        with suppress(OSError):
            partial.unlink()
        if isinstance(error, OSError) and error.filename is None:  # "No space left on device" does not say where
            error.filename = str(path)
        raise


def load(path: str | os.PathLike[str]) -> Any:
    """The tree that ``save`` wrote to ``path``, its tensors bit by bit; ``BrokenCheckpoint`` if it is not all there."""
    with open(path, "rb") as file:
        start, end = _check(Path(path), file)
        file.seek(PREAMBLE.size)
        try:
            return _Data(file, start, end).decode(json.loads(file.read(start - PREAMBLE.size)))
        except (ValueError, TypeError, KeyError, OverflowError, RecursionError, RuntimeError, struct.error) as error:
            raise BrokenCheckpoint(
                f"{path} has a header that makes no sense ({type(error).__name__}: {str(error)[:200]}). "
                "Its checksum is right, so codecl did not write it: do not use it."
            ) from error


class _Outline:
    """The tree as JSON, and the tensors it refers to in the order in which they are written."""

    def __init__(self) -> None:
        self.tensors: list[Tensor] = []
        self.offset = 0  # of the next one

    def encode(self, node: Any, place: Place = ()) -> Any:
        if len(place) > DEPTH:
            raise TypeError(f"{_name(place[:3])}… is nested more than {DEPTH} deep. Does it contain itself?")
        if node is None or type(node) in (bool, str):
            return node
        if type(node) is int:
            return node if abs(node) < 2**63 else {"int": hex(node)}
        if type(node) is float:
            return node if math.isfinite(node) else {"float": struct.pack(">d", node).hex()}
        if isinstance(node, Tensor):
            return {"tensor": self._refer(node, place)}
        if isinstance(node, list | tuple):
            return [self.encode(value, (*place, i)) for i, value in enumerate(node)]
        if isinstance(node, dict):
            return {"dict": [[_key(key, place), self.encode(value, (*place, key))] for key, value in node.items()]}
        kind = f"{type(node).__module__}.{type(node).__qualname__}"
        raise TypeError(f"{_name(place)} is {kind}; convert it to dict, list, None, bool, int, float, str, Tensor.")

    def _refer(self, tensor: Tensor, place: Place) -> list[Any]:
        """``[dtype, shape, offset]``."""
        dtype = str(tensor.dtype).removeprefix("torch.")
        plain = type(tensor) in (Tensor, nn.Parameter) and tensor.layout is torch.strided and not tensor.is_meta
        if not plain or dtype not in DTYPES or tensor.dim() > DIMENSIONS:
            raise TypeError(
                f"{_name(place)} is {type(tensor).__name__}({tensor.dtype}, {tensor.layout}, {tensor.device}); "
                f"convert it to a plain dense tensor of at most {DIMENSIONS} dimensions."
            )
        self.tensors.append(tensor)
        self.offset, offset = self.offset + _aligned(tensor.numel() * tensor.element_size()), self.offset
        return [dtype, list(tensor.shape), offset]


def _pieces(header: bytes, outline: _Outline) -> Iterator[bytes | bytearray]:
    """The file, piece by piece, but for its checksum."""
    start = _aligned(PREAMBLE.size + len(header))
    yield PREAMBLE.pack(MAGIC, FORMAT, start - PREAMBLE.size, start + outline.offset + CHECKSUM.size)
    yield header.ljust(start - PREAMBLE.size)
    for tensor in outline.tensors:
        plain = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous()
        flat = plain.as_strided((plain.numel(),), (1,))  # flatten() keeps a stride of 2 where there is but one number
        raw = _little_endian(flat.view(torch.uint8), plain.dtype)
        for i in range(0, len(raw), CHUNK):
            chunk = raw[i : i + CHUNK]
            piece = bytearray(len(chunk))
            torch.frombuffer(piece, dtype=torch.uint8).copy_(chunk)  # the way to its bytes without NumPy
            yield piece
        yield bytes(_aligned(len(raw)) - len(raw))


def _sync_directory(directory: Path) -> None:
    """Make a rename last. Windows has no such call, and some network file systems refuse it."""
    if os.name == "nt":
        return
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(descriptor)


def _check(path: Path, file: BinaryIO) -> tuple[int, int]:
    """Where the data of a whole, undamaged checkpoint begins and ends."""
    size, head = os.fstat(file.fileno()).st_size, file.read(PREAMBLE.size)
    if not head.startswith(MAGIC) and not MAGIC.startswith(head):
        raise BrokenCheckpoint(
            f"{path} is not a codecl checkpoint: it begins with {head[: len(MAGIC)]!r}, expected {MAGIC!r}. "
            "Name a file that codecl wrote."
        )
    if len(head) < PREAMBLE.size:
        raise BrokenCheckpoint(f"{path} is cut off: {size} bytes, expected {PREAMBLE.size} and more. {INSTEAD}")
    _, version, header, expected = PREAMBLE.unpack(head)
    if version != FORMAT:
        remedy = "Update codecl" if version > FORMAT else "Install the version of codecl that wrote it"
        raise BrokenCheckpoint(f"{path} has format {version}, expected {FORMAT}. {remedy}, or start the run again.")
    if size != expected:
        what = "is cut off" if size < expected else "is too long"
        raise BrokenCheckpoint(f"{path} {what}: {size} bytes, expected {expected}. {INSTEAD}")
    start, end = PREAMBLE.size + header, size - CHECKSUM.size
    if start > end:
        raise BrokenCheckpoint(f"{path} is damaged: a header of {header} bytes in a file of {size}. {INSTEAD}")
    crc = zlib.crc32(head)
    for i in range(len(head), end, CHUNK):
        crc = zlib.crc32(file.read(min(CHUNK, end - i)), crc)
    if (found := CHECKSUM.pack(crc)) != (stored := file.read()):
        raise BrokenCheckpoint(f"{path} is damaged: its checksum is {found.hex()}, expected {stored.hex()}. {INSTEAD}")
    return start, end


class _Data:
    """The tensors of an open checkpoint. All together they never take more bytes than the file has."""

    def __init__(self, file: BinaryIO, start: int, end: int) -> None:
        self.file, self.start, self.size, self.left = file, start, end - start, end - start

    def decode(self, node: Any, depth: int = 0) -> Any:
        if depth > DEPTH:
            raise ValueError(f"it is nested more than {DEPTH} deep")
        if isinstance(node, list):
            return [self.decode(value, depth + 1) for value in node]
        if not isinstance(node, dict):
            return node
        ((kind, value),) = node.items()
        if kind == "dict":
            return {_key(key): self.decode(item, depth + 1) for key, item in value}
        if kind == "tensor":
            return self._tensor(*value)
        if kind == "float":
            return struct.unpack(">d", bytes.fromhex(value))[0]
        if kind == "int":
            return int(value, 16)
        raise ValueError(f"there is no kind {kind!r}")

    def _tensor(self, dtype: str, shape: list[int], offset: int) -> Tensor:
        if not all(type(n) is int and 0 <= n < 2**63 for n in (*shape, offset)) or len(shape) > DIMENSIONS:
            raise ValueError(f"no tensor has shape {shape} and offset {offset}")
        size = math.prod(shape) * DTYPES[dtype].itemsize
        self.left -= size
        if offset + size > self.size or self.left < 0:
            raise ValueError(f"a tensor of {size} bytes at {offset} does not fit into {self.size} bytes of data")
        raw = torch.empty(size, dtype=torch.uint8, device="cpu")  # torch's own memory: aligned as any other tensor's
        self.file.seek(self.start + offset)
        for i in range(0, size, CHUNK):
            piece = bytearray(self.file.read(min(CHUNK, size - i)))
            raw[i : i + CHUNK] = torch.frombuffer(piece, dtype=torch.uint8)
        return _little_endian(raw, DTYPES[dtype]).view(DTYPES[dtype]).reshape(shape)


def _little_endian(raw: Tensor, dtype: torch.dtype) -> Tensor:
    """The bytes of numbers between this machine's order and the file's; its own inverse."""
    width = dtype.itemsize // (2 if dtype.is_complex else 1)
    return raw if sys.byteorder == "little" else raw.view(-1, width).flip(1).flatten()


def _key(key: Any, place: Place = ()) -> Any:
    if type(key) not in (str, int):
        raise TypeError(f"{_name(place)} has the key {key!r}, a {type(key).__name__}; keys must be str or int.")
    return key


def _aligned(size: int) -> int:
    return size + -size % ALIGNMENT


def _name(place: Place) -> str:
    return "tree" + "".join(f"[{key!r}]" for key in place)

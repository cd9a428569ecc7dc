"""Checkpoints: files of tensors and plain values that are whole or refused, and that run no code when they are read.

A checkpoint is the zip that ``torch.save`` writes, and ``torch.load`` reads. The CRCs of a zip leave its directory and
the gaps between its members uncovered, so the comment at its end holds the SHA-256 of everything before it.
"""

from __future__ import annotations

import errno
import hashlib
import io
import os
import struct
import zipfile
from typing import Any

import torch
from torch import Tensor, nn

from codecl.files import open_regular, write_atomically

DEPTH = 64  # of nesting: far from Python's recursion limit, and where a tree that contains itself ends
INTEGER = 2**2000  # torch.load reads no longer ones
ZIP = b"PK\x03\x04"
COMMENT_LENGTH = struct.pack("<H", hashlib.sha256().digest_size)  # the last field of a zip before its comment
SEAL = len(COMMENT_LENGTH) + hashlib.sha256().digest_size
INSTEAD = "Go on from an earlier checkpoint, or delete it and start again."
Place = tuple[str | int, ...]


class BrokenCheckpoint(ValueError):
    """A file that is not a whole checkpoint."""


def save(path: str | os.PathLike[str], tree: Any) -> None:
    """Write ``tree`` to ``path``: whenever it fails or is killed, a whole file is left, the old one or the new one.

    Args:
        path: The file. One process at a time may write to it.
        tree: Made of dict (keys str or int), list, tuple, None, bool, int, float, str and dense tensors. Tensors are
            stored without what else their memory holds; they come back on the CPU, without ``requires_grad``.
    """
    buffer = io.BytesIO()
    torch.save(_Copy().plain(tree), buffer)
    buffer.seek(-len(COMMENT_LENGTH), os.SEEK_END)
    buffer.truncate()
    digest = hashlib.sha256(buffer.getbuffer()).digest()
    buffer.write(COMMENT_LENGTH + digest)
    write_atomically(path, buffer.getbuffer())


def load(path: str | os.PathLike[str]) -> Any:
    """Read the tree that ``save`` wrote to ``path``, bit for bit; ``BrokenCheckpoint`` if it is not all there."""
    try:
        with open_regular(path) as file:
            data = file.read()
    except OSError as error:
        if error.errno in (errno.EISDIR, errno.EINVAL):
            raise BrokenCheckpoint(f"{path} is no file. Name a file that codecl wrote.") from None
        raise
    if not ZIP.startswith(head := data[: len(ZIP)]):
        raise BrokenCheckpoint(
            f"{path} is not a codecl checkpoint: it begins with {head!r}, expected {ZIP!r}. "
            "Name a file that codecl wrote."
        )
    if data[-SEAL:] != COMMENT_LENGTH + hashlib.sha256(memoryview(data)[:-SEAL]).digest():
        raise BrokenCheckpoint(
            f"{path} is cut off or damaged: {len(data)} bytes without a matching checksum. {INSTEAD}"
        )
    try:
        size = _check_members(data)
        # Mapped, the tensors cannot reach beyond the file, whatever the pickle says about their sizes.
        tree = torch.load(os.fspath(path), map_location="cpu", weights_only=True, mmap=True)
        return _Copy(size).plain(tree)
    except Exception as error:  # whatever a forged file makes the readers of zip and pickle raise
        if (other := _not_of_the_file(error)) is not None:
            raise other from None
        raise BrokenCheckpoint(
            f"{path} does not hold a checkpoint ({type(error).__name__}: {str(error)[:200]}). "
            "Its checksum is right, so codecl did not write it: do not use it."
        ) from error


def _not_of_the_file(error: BaseException | None) -> BaseException | None:
    """What ``error`` comes from, if that is the disk or a signal, which torch's reader turns into errors of its own."""
    while isinstance(error, Exception) and not (isinstance(error, OSError) and error.errno is not None):
        error = error.__context__
    return error


def _check_members(data: bytes) -> int:
    """The bytes of all members of the zip, which are not packed and not counted twice."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        if (damaged := archive.testzip()) is not None:
            raise ValueError(f"the CRC of {damaged} does not match")
        packed = any(member.compress_type != zipfile.ZIP_STORED for member in archive.infolist())
        size = sum(member.file_size for member in archive.infolist())
    if packed or size > len(data):
        raise ValueError("its members unpack to more than the file has")
    return size


class _Copy:
    """Copies trees of what a checkpoint may hold, every tensor with memory of its own.

    From a file of ``size`` bytes, no tree of more nodes or more bytes is believed.
    """

    def __init__(self, size: int | None = None) -> None:
        self.size, self.used = size, 0

    def plain(self, node: Any, place: Place = ()) -> Any:
        self._use(1)
        if len(place) > DEPTH:
            raise TypeError(f"{_name(place[:3])}… is nested more than {DEPTH} deep. Does it contain itself?")
        if isinstance(node, Tensor):
            return self._tensor(node, place)
        if isinstance(node, list | tuple):
            values = [self.plain(value, (*place, i)) for i, value in enumerate(node)]
            return tuple(values) if isinstance(node, tuple) else values
        if isinstance(node, dict):
            return {_key(key, place): self.plain(value, (*place, key)) for key, value in node.items()}
        if type(node) is int and abs(node) >= INTEGER:
            raise TypeError(f"{_name(place)} is an integer of {node.bit_length()} bits; store it as str.")
        if node is None or type(node) in (bool, int, float, str):
            return node
        kind = f"{type(node).__module__}.{type(node).__qualname__}"
        raise TypeError(f"{_name(place)} is {kind}; convert it to dict, list, None, bool, int, float, str, Tensor.")

    def _tensor(self, tensor: Tensor, place: Place) -> Tensor:
        dense = type(tensor) in (Tensor, nn.Parameter) and tensor.layout is torch.strided
        if not dense or tensor.is_meta:
            raise TypeError(
                f"{_name(place)} is {type(tensor).__name__}({tensor.dtype}, {tensor.layout}, {tensor.device}); "
                "convert it to a plain dense tensor."
            )
        self._use(tensor.nbytes)
        plain = tensor.detach().resolve_conj().resolve_neg().cpu()
        return plain.clone(memory_format=torch.contiguous_format)

    def _use(self, size: int) -> None:
        self.used += size
        if self.size is not None and self.used > 2 * self.size:  # its nodes and its bytes
            raise ValueError(f"its tree is larger than the {self.size} bytes of its members")


def _key(key: Any, place: Place) -> str | int:
    if type(key) is not str and not (type(key) is int and abs(key) < INTEGER):
        raise TypeError(f"{_name(place)} has the key {key!r}, a {type(key).__name__}; keys must be str or int.")
    return key


def _name(place: Place) -> str:
    return "tree" + "".join(f"[{key!r}]" for key in place)

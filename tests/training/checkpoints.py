"""A small tree to save, equality to the bit, and zips that anyone may have made."""

import hashlib
import io
import struct
import zipfile

import pytest
import torch
from torch import Tensor

from codecl.training.checkpoint import COMMENT_LENGTH

COMPLEX_HALF = pytest.mark.filterwarnings("ignore:ComplexHalf support")  # torch's own, whoever touches one
SMALL = {"weights": torch.arange(40.0), 3: [True, None, "ß", float("inf")], "none": torch.empty(0, 2)}


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

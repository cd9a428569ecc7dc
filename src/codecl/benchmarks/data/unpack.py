"""Unpacking what was downloaded: files and folders below the target, of bounded number and size, and nothing else."""

from __future__ import annotations

import gzip
import itertools
import os
import tarfile
import tempfile
import zlib
from pathlib import Path

from codecl.benchmarks.data.images import DamagedData

MAX_BYTES, MAX_FILES = 1 << 30, 100_000
CHUNK = 1 << 20


def unpack(archive: Path, folder: Path, max_bytes: int = MAX_BYTES, max_files: int = MAX_FILES) -> None:
    """Put what ``archive``, a ``.tar.gz``, holds below ``folder``, each file whole or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".unpacking-", dir=folder) as name:
        tar, new = Path(name) / "tar", Path(name) / "new"
        try:
            _inflate(archive, tar, max_bytes)
            _extract(archive, tar, new, max_bytes, max_files)
        except (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise DamagedData(f"{archive} cannot be unpacked: {error}.") from None
        for path in sorted(new.rglob("*")):
            if path.is_file():
                target = folder / path.relative_to(new)
                target.parent.mkdir(parents=True, exist_ok=True)
                os.replace(path, target)


def _inflate(archive: Path, tar: Path, max_bytes: int) -> None:
    """The tar as a file of its own: a header in it may be as long as the whole, so that its size is bounded first."""
    total = 0
    with gzip.open(archive) as packed, open(tar, "wb") as file:
        while chunk := packed.read(CHUNK):
            total += len(chunk)
            if total > max_bytes:
                raise DamagedData(f"{archive} holds more than {max_bytes:,} bytes.")
            file.write(chunk)


def _extract(archive: Path, tar: Path, new: Path, max_bytes: int, max_files: int) -> None:
    with tarfile.open(tar, "r:") as opened:
        members = list(itertools.islice(opened, max_files + 1))
        if len(members) > max_files or sum(member.size for member in members) > max_bytes:
            raise DamagedData(f"{archive} holds more than {max_bytes:,} bytes or {max_files:,} files.")
        for member in members:
            if not (member.isreg() or member.isdir()):
                raise DamagedData(f"{archive} holds {member.name!r}: expected files and folders only, and no links.")
        opened.extractall(new, members, filter="data")

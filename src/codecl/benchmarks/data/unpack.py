"""Unpacking what was downloaded: files and folders below the target, of bounded number and size, and nothing else."""

from __future__ import annotations

import gzip
import os
import tarfile
import tempfile
import zlib
from pathlib import Path, PurePosixPath

from codecl.benchmarks.data.images import DamagedData

MAX_BYTES, MAX_FILES = 1 << 30, 100_000
CHUNK = 1 << 20


def unpack(archive: Path, folder: Path, max_bytes: int = MAX_BYTES, max_files: int = MAX_FILES) -> None:
    """Put what ``archive`` (``.tar.gz``, ``.tgz`` or ``.gz``) holds below ``folder``, each file whole or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".unpacking-", dir=folder) as name:
        new = Path(name)
        try:
            if archive.name.endswith((".tar.gz", ".tgz")):
                _tar(archive, new, max_bytes, max_files)
            else:
                _gz(archive, new / archive.name.removesuffix(".gz"), max_bytes)
        except (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise DamagedData(f"{archive} cannot be unpacked: it is damaged or cut off ({error}).") from None
        for path in sorted(new.rglob("*")):
            if path.is_file():
                target = folder / path.relative_to(new)
                target.parent.mkdir(parents=True, exist_ok=True)
                os.replace(path, target)


def _tar(archive: Path, new: Path, max_bytes: int, max_files: int) -> None:
    _gz(archive, None, max_bytes)  # a header of a tar can be as long as it likes: first see that all of it fits
    total, members = 0, []
    with tarfile.open(archive, "r:gz") as tar:
        for member in tar:  # looked at before its data is passed over
            path = PurePosixPath(member.name)
            if (
                path.is_absolute()
                or ".." in path.parts
                or "\\" in member.name
                or not (member.isreg() or member.isdir())
            ):
                raise DamagedData(
                    f"{archive} holds {member.name!r}: expected files and folders below it, and no links."
                )
            total += member.size
            members.append(member)
            if total > max_bytes or len(members) > max_files:
                raise DamagedData(f"{archive} holds more than {max_bytes:,} bytes or {max_files:,} files.")
        tar.extraction_filter = getattr(tarfile, "data_filter", lambda member, path: member)  # from Python 3.11.4
        tar.extractall(new, members)


def _gz(archive: Path, target: Path | None, max_bytes: int) -> None:
    """Unpack to ``target``, or only see how much it is."""
    with gzip.open(archive) as packed, open(target or os.devnull, "wb") as file:
        total = 0
        while chunk := packed.read(CHUNK):
            total += len(chunk)
            if total > max_bytes:
                raise DamagedData(f"{archive} holds more than {max_bytes:,} bytes.")
            file.write(chunk)

"""Fetching a file with pooch, and unpacking it.

The file gets its name when it is complete and right, and nothing is left otherwise. What is unpacked are files and
folders below the target, of bounded number and size, and nothing else.
"""

from __future__ import annotations

import gzip
import itertools
import logging
import os
import tarfile
import tempfile
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from codecl.benchmarks.data.images import DamagedData, library

Progress = Callable[[str, int, int | None], None]
"""Called with the file's name, the bytes there are, and the bytes there will be, if the server says so."""

ATTEMPTS, TIMEOUT, PAUSE = 5, 30.0, 1.0  # seconds
CHUNK, MAX_BYTES = 1 << 16, 4 << 30
MAX_UNPACKED, MAX_FILES = 1 << 30, 100_000  # bytes and files
TEMPORARY = (408, 429, 500, 502, 503, 504)


class DownloadFailed(Exception):
    """Nothing was left under the file's name."""


def fetch(
    url: str, target: Path, checksum: str | None, progress: Progress | None = None, *, size: int | None = None,
    attempts: int = ATTEMPTS, timeout: float = TIMEOUT, pause: float = PAUSE, limit: int = MAX_BYTES,
) -> Path:  # fmt: skip
    """Download ``url`` to ``target``, unless what is there has the checksum already.

    Args:
        checksum: ``md5:…`` or ``sha256:…``; None where none is known, and then the file is fetched in any case.
        size: the exact number of bytes, where it is known.
        attempts: how often a download that was cut off or answered by a passing error is begun.
        timeout: seconds without any data after which the connection counts as cut off.
        pause: seconds before the second attempt; twice as many before the third, and so on.
        limit: bytes beyond which the download is given up.
    """
    if urlsplit(url).scheme not in ("http", "https"):
        raise DownloadFailed(f"{url} is no address to download from: expected http or https.")
    pooch, requests = library("pooch", "pooch"), library("requests", "requests")
    logging.getLogger("pooch").setLevel(logging.WARNING)
    if checksum is None:
        target.unlink(missing_ok=True)

    def download(url: str, temporary: str, _: Any) -> None:
        headers, most, done = {"Accept-Encoding": "identity"}, min(limit, size or limit), 0
        with open(temporary, "wb") as file, requests.get(url, stream=True, timeout=timeout, headers=headers) as answer:
            answer.raise_for_status()
            total = int(answer.headers.get("Content-Length", 0))
            for chunk in answer.iter_content(CHUNK):
                done += len(chunk)
                if (known := max(done, total)) > most:
                    raise DownloadFailed(f"{target.name} has {known:,} bytes or more; expected at most {most:,}.")
                file.write(chunk)
                if progress is not None:
                    progress(target.name, done, total or None)
        if size is not None and done != size:
            raise ValueError(f"expected {size:,} bytes; got {done:,}.")

    why = ""
    for attempt in range(attempts):
        time.sleep(pause * attempt)
        try:
            pooch.retrieve(url, checksum, target.name, target.parent, downloader=download)
            return target
        except requests.RequestException as error:
            code = error.response.status_code if error.response is not None else None
            why = f"the server answers {code}" if code else _innermost(error)
            if code and code not in TEMPORARY:
                raise DownloadFailed(f"{url} cannot be downloaded: {why}.") from None
        except ValueError as error:  # another size or checksum
            raise DownloadFailed(f"{url} does not hold what was published: {error} Nothing of it was kept.") from None
    raise DownloadFailed(f"{url} could not be downloaded in {attempts} attempts: {why}.")


def _innermost(error: BaseException) -> str:
    """The first cause, which says more than the errors around it."""
    while (inner := error.__cause__ or error.__context__) is not None:
        error = inner
    return str(error) or type(error).__name__


def unpack(archive: Path, folder: Path, max_bytes: int = MAX_UNPACKED, max_files: int = MAX_FILES) -> None:
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

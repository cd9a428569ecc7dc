"""Fetching a file with pooch: the file gets its name when it is complete and right, and nothing is left otherwise."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import urlsplit

from codecl.benchmarks.data.images import library

Progress = Callable[[str, int, int | None], None]
"""Called with the file's name, the bytes there are, and the bytes there will be, if the server says so."""

ATTEMPTS, TIMEOUT, PAUSE = 5, 30.0, 1.0  # seconds
CHUNK, MAX_BYTES = 1 << 16, 4 << 30
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
        with open(temporary, "wb") as file:
            receiver = _Receiver(file, target.name, progress, min(limit, size or limit))
            headers = {"Accept-Encoding": "identity"}
            pooch.HTTPDownloader(receiver, CHUNK, timeout=timeout, headers=headers)(url, receiver, None)
        if size is not None and receiver.done != size:
            raise ValueError(f"expected {size:,} bytes; got {receiver.done:,}.")

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


class _Receiver:
    """The file that pooch writes to, and the progress bar that it is told the total: both in one, to bound the size."""

    total = 0

    def __init__(self, file: BinaryIO, name: str, progress: Progress | None, limit: int) -> None:
        self.file, self.name, self.progress, self.limit, self.done = file, name, progress, limit, 0

    def write(self, chunk: bytes) -> None:
        self.done += len(chunk)
        if max(self.done, self.total) > self.limit:
            raise DownloadFailed(
                f"{self.name} has {max(self.done, self.total):,} bytes or more; expected at most {self.limit:,}."
            )
        self.file.write(chunk)
        if self.progress is not None:
            self.progress(self.name, self.done, self.total or None)

    def flush(self) -> None:
        self.file.flush()

    def update(self, count: int) -> None:
        """What was written is known already."""

    def reset(self) -> None:
        pass

    def close(self) -> None:
        pass


def _innermost(error: BaseException) -> str:
    """The first cause, which says more than the errors around it."""
    while (inner := error.__cause__ or error.__context__) is not None:
        error = inner
    return str(error) or type(error).__name__

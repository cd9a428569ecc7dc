"""Fetching a file: resumed where it was cut off, checked before it gets its name, tried again when the line stalls.

While it is fetched it is ``NAME.part``, and ``NAME.part.tag`` holds the server's name for that very content (ETag or
Last-Modified), without which a part of one file could be completed with the rest of another.
"""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import os
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

Progress = Callable[[str, int, int | None], None]
"""Called with the file's name, the bytes there are, and the bytes there will be, if the server says so."""

ATTEMPTS, TIMEOUT, PAUSE = 5, 30.0, 1.0  # in a row without getting further; seconds
CHUNK, FURTHER = 1 << 16, 1 << 20
MAX_BYTES = 4 << 30
TEMPORARY = (408, 429, 500, 502, 503, 504)


class DownloadFailed(Exception):
    """Nothing was left under the file's name."""


class _Cut(Exception):
    """An attempt that may be repeated."""


CUT_OFF = (_Cut, TimeoutError, ConnectionError, http.client.HTTPException, urllib.error.URLError, ssl.SSLError)


def fetch(
    url: str, target: Path, checksum: str | None, progress: Progress | None = None, *, size: int | None = None,
    attempts: int = ATTEMPTS, timeout: float = TIMEOUT, pause: float = PAUSE, limit: int = MAX_BYTES,
) -> Path:  # fmt: skip
    """``target``, holding what is at ``url``; ``checksum`` is ``md5:…``, ``sha256:…``, or None where none is known."""
    if urlsplit(url).scheme not in ("http", "https"):
        raise DownloadFailed(f"{url} is no address to download from: expected http or https.")
    target.parent.mkdir(parents=True, exist_ok=True)
    if checksum is not None and target.exists() and what_is_wrong(target, checksum, size) is None:
        return target
    part = Part(target)
    with part.locked():
        failures, furthest = 0, part.size()
        while True:
            resumed = part.resumable()
            try:
                _receive(url, part, progress, timeout, min(limit, size or limit))
                wrong = what_is_wrong(part.path, checksum, size)
                if wrong is None:
                    part.finish()
                    return target
                part.forget()
                if not resumed:
                    raise DownloadFailed(f"{url} does not hold what was published: {wrong}. Nothing of it was kept.")
                why = wrong  # the rest may belong to another file than the beginning: once more, from the beginning
            except CUT_OFF as error:
                why = _why(error)
            failures = 0 if part.size() >= furthest + FURTHER else failures + 1
            furthest = max(furthest, part.size())
            if failures >= attempts:
                kept = (
                    f" {part.size():,} bytes are kept: the same command goes on from there." if part.resumable() else ""
                )
                raise DownloadFailed(f"{url} could not be downloaded in {attempts} attempts: {why}.{kept}")
            time.sleep(pause * failures)


class Part:
    """What there is of a file that is not complete."""

    def __init__(self, target: Path) -> None:
        self.target = target
        self.path, self.tag_path = (target.with_name(target.name + end) for end in (".part", ".part.tag"))

    def size(self) -> int:
        return self.path.stat().st_size if self.path.exists() else 0

    def tag(self) -> str:
        return self.tag_path.read_text("latin1") if self.tag_path.exists() else ""

    def resumable(self) -> bool:
        return bool(self.size() and self.tag())

    def forget(self) -> None:
        for path in (self.path, self.tag_path):
            path.unlink(missing_ok=True)

    def finish(self) -> None:
        with open(self.path, "rb+") as file:
            os.fsync(file.fileno())
        os.replace(self.path, self.target)
        self.tag_path.unlink(missing_ok=True)

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """At most one process fetches the file."""
        lock = self.target.with_name(self.target.name + ".lock")
        with open(lock, "w") as file:
            try:
                import fcntl

                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except ImportError:  # not on Windows
                pass
            except OSError:
                raise DownloadFailed(f"another process is fetching {self.target}.") from None
            try:
                yield
            finally:
                with contextlib.suppress(OSError):  # Windows keeps what is open
                    lock.unlink()


def what_is_wrong(path: Path, checksum: str | None, size: int | None) -> str | None:
    """What speaks against a file, if anything does."""
    if size is not None and path.stat().st_size != size:
        return f"expected {size:,} bytes; got {path.stat().st_size:,}"
    if checksum is not None:
        kind, _, expected = checksum.partition(":")
        with open(path, "rb") as file:
            found = hashlib.file_digest(file, lambda: hashlib.new(kind, usedforsecurity=False)).hexdigest()
        if found != expected:
            return f"expected the {kind} {expected}; got {found}"
    return None


def _receive(url: str, part: Part, progress: Progress | None, timeout: float, limit: int) -> None:
    """Bring the part to its end, from where it is if the server still has the same content, else from the beginning."""
    headers = {"Accept-Encoding": "identity", "User-Agent": "codecl"}
    if part.resumable():
        headers |= {"Range": f"bytes={part.size()}-", "If-Range": part.tag()}
    try:
        answer = urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=timeout)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == 416:  # there is no such range: what there is was not a beginning of this
            part.forget()
            raise _Cut("the server has nothing beyond what was there") from None
        if error.code in TEMPORARY:
            raise _Cut(f"the server answers {error.code}") from None
        raise DownloadFailed(f"{url} cannot be downloaded: the server answers {error.code} {error.reason}.") from None
    with answer:
        have = part.size() if answer.status == 206 else 0
        if answer.status == 206 and not (answer.headers.get("Content-Range") or "").startswith(f"bytes {have}-"):
            part.forget()
            raise _Cut("the server answers with another range than was asked for")
        length = answer.headers.get("Content-Length") or ""
        total = have + int(length) if length.isascii() and length.isdecimal() else None
        if total is not None and total > limit:
            part.forget()
            raise DownloadFailed(f"{url} has {total:,} bytes; expected at most {limit:,}.")
        if have == 0:
            part.tag_path.write_text(_tag(answer), "latin1")
        _copy(answer, part, have, total, limit, progress)


def _copy(answer: Any, part: Part, have: int, total: int | None, limit: int, progress: Progress | None) -> None:
    with open(part.path, "ab" if have else "wb") as file:
        # read1 gives what has come, where read would wait for the whole chunk and lose it when the line stalls.
        while have != total and (chunk := answer.read1(CHUNK if total is None else min(CHUNK, total - have))):
            have += len(chunk)
            if have > limit:
                file.close()
                part.forget()
                raise DownloadFailed(f"{part.target.name} has more than the {limit:,} bytes that were expected.")
            file.write(chunk)
            if progress is not None:
                progress(part.target.name, have, total)
    if total is not None and have < total:
        raise _Cut(f"it was cut off after {have:,} of {total:,} bytes")


def _tag(answer: Any) -> str:
    """A strong ETag, or the date of the content; a weak one does not tell bytes apart."""
    tag = answer.headers.get("ETag") or ""
    return tag if tag.startswith('"') else answer.headers.get("Last-Modified") or ""


def _why(error: Exception) -> str:
    reason = getattr(error, "reason", error)
    if isinstance(reason, TimeoutError):
        return "nothing came for too long"
    return str(reason) or type(reason).__name__

"""Writing files whole, locking them, and opening regular files only."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

FULL = (errno.ENOSPC, errno.EDQUOT)
"""What the system says where there is no room left."""
TEMPORARY = ".new"
"""What is added to a file's name while it is being written."""


class AlreadyLocked(RuntimeError):
    """Another process holds the lock."""


class NotRegular(OSError):
    """A pipe, socket or device lies where a file should be."""


def write_atomically(
    path: str | os.PathLike[str], content: bytes | memoryview | str | Callable[[BinaryIO], object]
) -> None:
    """Write a whole file: whenever this fails or is killed, ``path`` is the old file or the new one.

    One process at a time may write to a path. Links are replaced, never written through.

    Args:
        path: The file; its directory must exist.
        content: Bytes, a text (written in UTF-8), or a function that writes to the open binary file.
    """
    path = Path(path)
    temporary = path.with_name(path.name + TEMPORARY)  # always the same, so that killed processes leave one at most
    created = False
    try:
        temporary.unlink(missing_ok=True)
        with open(temporary, "xb") as file:  # exclusive: fails where a link was planted in the meantime
            created = True
            if callable(content):
                content(file)
            else:
                file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        sync_directory(path.parent)
    except BaseException as error:
        if created:
            with suppress(OSError):
                temporary.unlink()
        if isinstance(error, OSError) and error.filename is None:  # "No space left on device" does not say where
            error.filename = str(path)
        raise


def sync_directory(directory: Path) -> None:
    """Make renames and removals in ``directory`` last. Windows has no such call; some network file systems refuse."""
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


def open_regular(path: str | os.PathLike[str]) -> BinaryIO:
    """Open a file to read its bytes. A directory, pipe, socket or device is refused by ``OSError`` at once."""
    return os.fdopen(open_descriptor(path, os.O_RDONLY), "rb")


@contextmanager
def locked(path: str | os.PathLike[str]) -> Iterator[None]:
    """Hold an exclusive lock on the file ``path``, which is made if missing and stays.

    Raises ``AlreadyLocked`` if another process holds it. The operating system releases the lock when the process ends,
    however it ends. Windows has no such lock: there, nothing is locked.
    """
    descriptor = open_descriptor(path, os.O_RDWR | os.O_CREAT)
    try:
        try:
            import fcntl
        except ImportError:  # Windows
            pass
        else:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise AlreadyLocked(f"another process holds the lock {os.fspath(path)}.") from None
        yield
    finally:
        os.close(descriptor)


def open_descriptor(path: str | os.PathLike[str], flags: int) -> int:
    """The descriptor of a regular file, which is no link if it is to be written.

    ``O_NONBLOCK``: opening a pipe must not wait for its other end.
    """
    flags |= getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    if flags & (os.O_WRONLY | os.O_RDWR):
        flags |= getattr(os, "O_NOFOLLOW", 0)
    descriptor = os.open(path, flags, 0o666)
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        kind, code = (IsADirectoryError, errno.EISDIR) if stat.S_ISDIR(mode) else (NotRegular, errno.EINVAL)
        raise kind(code, "not a regular file", os.fspath(path))
    return descriptor

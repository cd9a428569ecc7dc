"""What can go wrong in a file-system call, made to go wrong in this process at the n-th of them.

``install`` replaces the functions of ``os`` that reach the file system, and ``open`` by Python's own implementation of
it, whose files call these functions too. What lies outside the watched directory is left alone.
"""

import _pyio
import builtins
import errno
import fcntl
import io
import os
import signal
from dataclasses import dataclass

ERRORS = ("EIO", "ENOSPC", "EDQUOT", "EROFS", "EACCES", "EINTR")
KILLS = ("kill", "torn")
KINDS = (*KILLS, "short", "term", *ERRORS)
"""Killed before the call, or in the middle of a write; half a write or read, told so; SIGTERM; errors."""
CALLS = (
    "open", "close", "read", "write", "lseek", "fsync", "ftruncate", "stat", "lstat", "fstat", "listdir", "scandir",
    "mkdir", "rmdir", "unlink", "remove", "rename", "replace", "link", "symlink", "readlink", "chmod", "utime",
)  # fmt: skip
CHANGES = ("write", "fsync", "mkdir", "unlink", "remove", "rename", "replace")
"""What a disk that is full or read-only goes on to refuse."""


@dataclass(frozen=True)
class Fault:
    """``kind`` happens at the call number ``at``, counted from 1; ``lasting`` errors also to every change after it."""

    kind: str
    at: int
    lasting: bool = False


def install(root, fault=None, trace=None):
    """Let ``fault`` happen to this process at ``root`` and below it; every call there is a line in ``trace``.

    Returns a function that takes it back and says how many calls there were.
    """
    watch = _Watch(os.path.abspath(root), fault, trace)
    before = [(os, name, getattr(os, name)) for name in CALLS]
    before += [(fcntl, "flock", fcntl.flock), (builtins, "open", open), (io, "open", open)]
    for module, name, real in before:
        setattr(module, name, _pyio.open if name == "open" and module is not os else watch.watched(name, real))
    before.append((_pyio.BufferedReader, "_readinto", _pyio.BufferedReader._readinto))
    _pyio.BufferedReader._readinto = _read_into

    def restore():
        for module, name, real in before:
            setattr(module, name, real)
        return watch.count

    return restore


def _read_into(reader, buffer, read1):
    """Python's own ``_readinto`` fails where the first of several reads is short, which that of C does not."""
    view = memoryview(buffer).cast("B")
    data = reader.read1(len(view)) if read1 else reader.read(len(view))
    view[: len(data)] = data
    return len(data)


class _Watch:
    def __init__(self, root, fault, trace):
        self.root, self.fault, self.trace = root, fault, trace
        self.count, self.descriptors = 0, {}
        self.write = os.write

    def watched(self, name, real):
        def call(*arguments, **options):
            if (where := self.within(arguments[0] if arguments else ".")) is None:
                return real(*arguments, **options)
            if name == "close":
                self.descriptors.pop(arguments[0])
            value = self.come_to(name, where, real, arguments, options)
            if name == "open":
                self.descriptors[value] = where
            return value

        return call

    def within(self, subject):
        """The path in the watched directory that a path or a descriptor leads to, None if it is elsewhere."""
        if isinstance(subject, int):
            return self.descriptors.get(subject)
        path = os.path.abspath(os.fsdecode(subject))
        return os.path.relpath(path, self.root) if f"{path}/".startswith(f"{self.root}/") else None

    def come_to(self, name, where, real, arguments, options):
        self.count += 1
        if self.trace is not None:
            self.write(self.trace, f"{name} {where}\n".encode())
        fault = self.fault
        if fault is None or self.count < fault.at:
            return real(*arguments, **options)
        if self.count > fault.at:
            if fault.lasting and fault.kind in ERRORS and name in CHANGES:
                raise self.error(arguments)
            return real(*arguments, **options)
        if fault.kind == "term":
            os.kill(os.getpid(), signal.SIGTERM)
            return real(*arguments, **options)
        if name == "read" and fault.kind == "short":
            return real(arguments[0], max(1, arguments[1] // 2))
        if name == "write" and fault.kind != "kill":  # half of it arrives
            half = real(arguments[0], bytes(arguments[1])[: len(arguments[1]) // 2])
            if fault.kind == "short":
                return half
        if fault.kind in KILLS:
            os.kill(os.getpid(), signal.SIGKILL)
        if fault.kind == "short":
            return real(*arguments, **options)
        if name == "close":  # what fails to close is closed
            real(*arguments, **options)
        raise self.error(arguments)

    def error(self, arguments):
        code = getattr(errno, self.fault.kind)
        path = [os.fspath(arguments[0])] if arguments and not isinstance(arguments[0], int) else []
        return OSError(code, os.strerror(code), *path)

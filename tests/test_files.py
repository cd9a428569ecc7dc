"""Files are written whole or not at all, through no link; locks exclude; pipes do not hang."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from codecl.files import AlreadyLocked, locked, open_regular, sync_directory, write_atomically

posix = pytest.mark.skipif(os.name == "nt", reason="POSIX files")
HOLD = "import sys; from codecl.files import locked\nwith locked(sys.argv[1]): print('held', flush=True); input()"


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def full(*_: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


# Writing.


@pytest.mark.parametrize(
    ("content", "expected"),
    [(b"\0\xff", b"\0\xff"), ("ß\n", b"\xc3\x9f\n"), (lambda file: file.write(b"called"), b"called"), ("", b"")],
)
def test_bytes_texts_and_functions_are_written(tmp_path, content, expected):
    for _ in range(2):  # a new file, and one that replaces another
        write_atomically(tmp_path / "file", content)
        assert (tmp_path / "file").read_bytes() == expected
    write_atomically(str(tmp_path / "string"), content)
    assert names(tmp_path) == ["file", "string"]


@posix
def test_a_planted_link_is_not_written_through(tmp_path):
    (tmp_path / "run").mkdir()
    thesis = tmp_path / "thesis.txt"
    thesis.write_text("mine")
    os.symlink("../thesis.txt", tmp_path / "run" / "log.jsonl.new")
    write_atomically(tmp_path / "run" / "log.jsonl", "lines")
    assert thesis.read_text() == "mine"
    assert names(tmp_path / "run") == ["log.jsonl"]
    assert not (tmp_path / "run" / "log.jsonl").is_symlink()
    assert (tmp_path / "run" / "log.jsonl").read_text() == "lines"


@posix
def test_a_link_planted_while_the_temporary_is_removed_is_refused(tmp_path, monkeypatch):
    thesis = tmp_path / "thesis.txt"
    thesis.write_text("mine")
    unlink = Path.unlink

    def plant(path: Path, missing_ok: bool = False) -> None:
        unlink(path, missing_ok=missing_ok)
        os.symlink(thesis, path)

    monkeypatch.setattr(Path, "unlink", plant)
    with pytest.raises(FileExistsError):
        write_atomically(tmp_path / "file", "lines")
    assert thesis.read_text() == "mine"
    assert names(tmp_path) == ["file.new", "thesis.txt"]  # what is not ours is not removed


@posix
def test_a_link_under_the_files_own_name_is_replaced(tmp_path):
    (tmp_path / "thesis.txt").write_text("mine")
    os.symlink("thesis.txt", tmp_path / "file")
    write_atomically(tmp_path / "file", "new")
    assert (tmp_path / "thesis.txt").read_text() == "mine"
    assert (tmp_path / "file").read_text() == "new"


def test_what_a_killed_process_left_behind_is_replaced(tmp_path):
    (tmp_path / "file.new").write_bytes(b"half a fi")
    write_atomically(tmp_path / "file", "whole")
    assert names(tmp_path) == ["file"]


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_full_disk_names_the_file_and_leaves_the_old_one(tmp_path, monkeypatch, call):
    write_atomically(tmp_path / "file", "old")
    monkeypatch.setattr(os, call, full)
    with pytest.raises(OSError, match=r"No space left on device: .*file'$"):
        write_atomically(tmp_path / "file", "new")
    assert names(tmp_path) == ["file"]
    assert (tmp_path / "file").read_text() == "old"


@pytest.mark.parametrize("room", [0, 20, 5000, 10**6])
def test_a_disk_that_fills_while_writing(tmp_path, room):
    """The kernel itself refuses to write more than ``room`` bytes."""
    resource = pytest.importorskip("resource")
    write_atomically(tmp_path / "file", "")
    limit, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, hard))
    try:
        with pytest.raises(OSError, match="file") as caught:
            write_atomically(tmp_path / "file", bytes(10**6 + 1))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    assert caught.value.errno == errno.EFBIG
    assert names(tmp_path) == ["file"]
    assert (tmp_path / "file").read_bytes() == b""


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_an_interrupted_function_leaves_the_old_file(tmp_path, error):
    def write(file):
        file.write(b"half")
        raise error

    write_atomically(tmp_path / "file", "old")
    with pytest.raises(error):
        write_atomically(tmp_path / "file", write)
    assert names(tmp_path) == ["file"]
    assert (tmp_path / "file").read_text() == "old"


@pytest.mark.skipif(not os.path.exists("/proc/self/fd"), reason="needs /proc to tell which file is synced")
def test_the_file_is_on_disk_before_its_name_and_the_name_before_the_end(tmp_path, monkeypatch):
    calls, fsync, replace = [], os.fsync, os.replace

    def watched_fsync(descriptor: int) -> None:
        fsync(descriptor)
        target = os.path.basename(os.readlink(f"/proc/self/fd/{descriptor}"))
        calls.append((target, os.fstat(descriptor).st_size if target != tmp_path.name else None))

    def watched_replace(source: Path, target: Path) -> None:
        replace(source, target)
        calls.append((source.name, target.name))

    monkeypatch.setattr(os, "fsync", watched_fsync)
    monkeypatch.setattr(os, "replace", watched_replace)
    write_atomically(tmp_path / "file", "12345")
    assert calls == [("file.new", 5), ("file.new", "file"), (tmp_path.name, None)]


@posix
@pytest.mark.parametrize(("code", "passes"), [(errno.EINVAL, True), (errno.ENOTSUP, True), (errno.EIO, False)])
def test_a_file_system_that_cannot_sync_directories_is_good_enough(tmp_path, monkeypatch, code, passes):
    def refuse(_: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "fsync", refuse)
    if passes:
        sync_directory(tmp_path)
    else:
        with pytest.raises(OSError, match=os.strerror(code)):
            sync_directory(tmp_path)


def test_a_missing_directory_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="missing"):
        write_atomically(tmp_path / "missing" / "file", "")


# Locking.


@posix
def test_a_lock_excludes_other_processes_until_they_end(tmp_path):
    lock = tmp_path / "lock"
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(lock)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with holder:
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(AlreadyLocked, match=r"another process holds the lock .*lock\."), locked(lock):
            pass
        holder.kill()
    for _ in range(2):
        with locked(lock):
            pass
    assert names(tmp_path) == ["lock"]


@posix
def test_a_lock_leaves_what_is_in_the_file_and_follows_no_link(tmp_path):
    (tmp_path / "lock").write_text("mine")
    with locked(tmp_path / "lock"):
        pass
    assert (tmp_path / "lock").read_text() == "mine"
    os.symlink("elsewhere", tmp_path / "link")
    with pytest.raises(OSError, match="link"), locked(tmp_path / "link"):
        pass
    assert names(tmp_path) == ["link", "lock"]


def test_without_flock_nothing_is_locked(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "fcntl", None)
    with locked(tmp_path / "lock"), locked(tmp_path / "lock"):
        pass


# Opening.


def test_a_regular_file_is_opened(tmp_path):
    (tmp_path / "file").write_bytes(b"\r\n\x1a\0")
    with open_regular(tmp_path / "file") as file:
        assert file.read() == b"\r\n\x1a\0"
    with pytest.raises(FileNotFoundError, match="missing"):
        open_regular(tmp_path / "missing")


@posix
def test_what_is_no_regular_file_is_refused_at_once(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(IsADirectoryError, match="not a regular file"):
        open_regular(tmp_path)
    with pytest.raises(OSError, match=r"not a regular file: .*pipe"):
        open_regular(tmp_path / "pipe")
    with pytest.raises(OSError, match=r"not a regular file: .*pipe"), locked(tmp_path / "pipe"):
        pass

"""A full disk, a failing one, an interrupt and a signal leave the file that was there as good as it was."""

import errno
import os
import signal

import pytest
import torch

from codecl.training.checkpoint import load, save
from tests.soak.faults import Fault, install
from tests.training.checkpoints import COMPLEX_HALF, SMALL

pytestmark = COMPLEX_HALF


@pytest.mark.parametrize("room", [0, 20, 100, 5000, 10**6, 3 * 10**6])
def test_a_full_disk_leaves_the_old_file(tmp_path, room):
    """The kernel itself refuses to write more than ``room`` bytes."""
    resource = pytest.importorskip("resource")
    save(tmp_path / "file", 1)
    limit, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, hard))
    try:
        with pytest.raises(OSError, match="file") as caught:
            save(tmp_path / "file", torch.zeros(10**6))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    assert caught.value.errno == errno.EFBIG
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert load(tmp_path / "file") == 1


def test_an_interrupt_leaves_the_old_file(tmp_path, monkeypatch):
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    save(tmp_path / "file", 1)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", interrupted)
        with pytest.raises(KeyboardInterrupt):
            save(tmp_path / "file", SMALL)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert load(tmp_path / "file") == 1


@pytest.mark.parametrize(("kind", "raised"), [("EIO", OSError), ("term", KeyboardInterrupt)])
def test_a_disk_that_fails_or_a_signal_while_reading_says_nothing_against_the_file(tmp_path, kind, raised):
    """At every call, also within torch's reader, which makes other errors of them."""
    save(tmp_path / "file", {"a": torch.arange(5), "b": [torch.ones(3), 1.5]})
    handler = signal.signal(signal.SIGTERM, signal.default_int_handler)
    count = install(tmp_path / "file")
    load(tmp_path / "file")
    calls, failures = count(), 0
    try:
        for at in range(1, calls + 1):
            restore = install(tmp_path / "file", Fault(kind, at))
            try:
                load(tmp_path / "file")
            except raised:
                failures += 1
            finally:
                restore()
    finally:
        signal.signal(signal.SIGTERM, handler)
    assert failures > 20

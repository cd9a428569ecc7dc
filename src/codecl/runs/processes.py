"""One run on several processes, as ``torchrun`` starts them: process 0 reads and writes, the others hear from it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import torch.distributed as dist

from codecl.errors import UsageError
from codecl.training.progress import Store, Tree

T = TypeVar("T")
LOST = ("closed by peer", "Connection reset", "Broken pipe", "Connection refused", "timed out", "Timed out", "NCCL")
"""What torch says where another process has gone."""


class ProcessLost(UsageError):
    """Another process of the run has ended; this one is to be left by ``os._exit``.

    Threads of the group may still be at work: one that asks for the interpreter while it shuts down aborts the process.
    """


@contextmanager
def joined(device: str) -> Iterator[dist.ProcessGroup | None]:
    """The group of all processes that ``torchrun`` started; None where this one is alone."""
    if int(os.environ.get("WORLD_SIZE", "1")) < 2:
        yield None
        return
    dist.init_process_group("nccl" if device.startswith("cuda") else "gloo")
    try:
        yield dist.group.WORLD
    except RuntimeError as error:
        if any(words in str(error) for words in LOST):
            raise ProcessLost(
                "another process of this run has ended. What was computed is kept; the same command again goes on."
            ) from error
        raise
    finally:
        dist.destroy_process_group()


def is_first(group: dist.ProcessGroup | None) -> bool:
    """Whether this process reads, writes and speaks for all."""
    return group is None or dist.get_rank(group) == 0


def from_first(group: dist.ProcessGroup | None, value: Callable[[], T]) -> T:
    """What ``value`` returns in process 0, in all of them."""
    if group is None:
        return value()
    shared: list[Any] = [value() if is_first(group) else None]
    dist.broadcast_object_list(shared, src=dist.get_global_rank(group, 0), group=group)
    found: T = shared[0]
    return found


@dataclass(frozen=True)
class SharedStore:
    """The store of process 0, read by all."""

    store: Store | None
    """None in the other processes."""
    group: dist.ProcessGroup | None = None

    def save_task(self, task: int, tree: Tree) -> None:
        if self.store is not None:
            self.store.save_task(task, tree)

    def save_epoch(self, task: int, epoch: int, tree: Tree) -> None:
        if self.store is not None:
            self.store.save_epoch(task, epoch, tree)

    def latest(self) -> tuple[Tree, Tree | None] | None:
        return from_first(self.group, lambda: self.store.latest() if self.store is not None else None)

"""The batches of a trainer, shown to a method one at a time: ``Method.watch`` for a loop that someone else runs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from codecl.method import Method


class Batches:
    """What ``for batch in method.watch(loader)`` tells a method, told by the hooks of a trainer.

    >>> from torch import nn
    >>> method = Method(nn.Linear(2, 1))
    >>> batches = Batches(method)
    >>> batches.begin_epoch()
    >>> batches.show("a batch", progress=0.5)
    >>> method.batch, method.progress
    ('a batch', 0.5)
    >>> batches.end_epoch()
    >>> method.is_watching
    False
    """

    def __init__(self, method: Method) -> None:
        self.method = method
        self._next: list[Any] = []
        self._watched: Iterator[Any] = iter(())

    def begin_epoch(self) -> None:
        self.stop()
        self._watched = self.method.watch(self._coming())

    def show(self, batch: Any, progress: float) -> None:
        """The trainer learns from ``batch`` now; ``progress`` of the task is done, from 0 to 1."""
        self._next = [batch]
        next(self._watched)
        self.method.progress = progress

    def end_epoch(self) -> None:
        """All batches of the epoch have been learned from."""
        self._next = []
        next(self._watched, None)

    def stop(self) -> None:
        """The epoch is over, wherever it was."""
        if hasattr(self._watched, "close"):
            self._watched.close()

    def _coming(self) -> Iterator[Any]:
        while self._next:
            yield self._next.pop()

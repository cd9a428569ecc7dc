"""How far a run has come, who is told of it, and where it is kept so that it can go on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

Tree = dict[str, Any]
Observer = Callable[[Tree], None]
Row = list[float | None]


class UnfitState(ValueError):
    """A state that was saved cannot be that of this method on this stream; ``epoch`` says if it is one of an epoch."""

    def __init__(self, message: str, epoch: bool) -> None:
        super().__init__(message)
        self.epoch = epoch


@contextmanager
def loading(epoch: bool) -> Iterator[None]:
    """Whatever goes wrong while a state is loaded is the state's fault."""
    try:
        yield
    except Exception as error:
        raise UnfitState(f"{type(error).__name__}: {error}", epoch) from error


class Store(Protocol):
    """Where a run keeps what it needs to go on."""

    def save_task(self, task: int, tree: Tree) -> None: ...
    def save_epoch(self, task: int, epoch: int, tree: Tree) -> None: ...
    def latest(self) -> tuple[Tree, Tree | None] | None: ...


@dataclass
class Progress:
    """How far a run has come: its accuracy matrix and where the time went."""

    accuracy: list[Row] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=lambda: {"train": 0.0, "between_tasks": 0.0, "evaluate": 0.0})
    epochs: list[int] = field(default_factory=list)
    measures: dict[str, list[Row]] = field(default_factory=dict)
    """Of each measure of the user's, a matrix like that of the accuracies."""
    moved: list[Row] = field(default_factory=list)
    """How far learning a task moved the outputs of each earlier one on its validation inputs, relative to them."""

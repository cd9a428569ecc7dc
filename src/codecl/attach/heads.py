"""The modules of a model that have one head per task."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from torch import nn


class HasHeads(Protocol):
    """A multi-head module: its heads, the one in use, and ``select``, which makes a head that is not there yet."""

    heads: nn.ModuleList

    @property
    def selected(self) -> int: ...

    def select(self, task: int) -> None: ...


class TaskHeads:
    """All multi-head modules of a model, which switch heads together."""

    def __init__(self, modules: dict[str, HasHeads]) -> None:
        self._modules = modules

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(f"{name}.heads" if name else "heads" for name in self._modules)

    @property
    def selected(self) -> int:
        return next(iter(self._modules.values())).selected

    def select(self, task: int) -> None:
        for module in self._modules.values():
            module.select(task)

    def unselected(self) -> list[nn.Parameter]:
        """The parameters of the heads that are there and not in use."""
        every = ((module, t, head) for module in self._modules.values() for t, head in enumerate(module.heads))
        return [p for module, t, head in every if t != module.selected for p in head.parameters()]

    def parameters(self, tasks: Iterable[int]) -> list[nn.Parameter]:
        return [p for task in tasks for module in self._modules.values() for p in module.heads[task].parameters()]


def find_task_heads(model: nn.Module) -> TaskHeads | None:
    """The modules of ``model`` that have ``heads``, ``selected`` and ``select(task)``; None if there is none."""
    found = {
        name: module
        for name, module in model.named_modules()
        if isinstance(getattr(module, "heads", None), nn.ModuleList) and callable(getattr(module, "select", None))
    }
    return TaskHeads(found) if found else None

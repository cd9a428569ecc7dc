"""The tensors that no projection describes: heads, normalisation layers, biases.

Each is held after the first task, kept in a copy per task, or left free. Named heads are always kept per task; the
heads of a multi-head module already are several, and the old ones only need to stand still.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from torch import Tensor, nn

from codecl.attach import LayerTable
from codecl.attach.statistics import hold_statistics
from codecl.attach.survey import covers
from codecl.layers.norms import is_norm, running_statistics


class Unprojected:
    """What becomes of heads, norms and biases as tasks come and go.

    ``stored[t]`` holds the values that task ``t`` has for itself, by name.
    """

    def __init__(self, model: nn.Module, table: LayerTable, holds_heads: bool = True) -> None:
        self.model, self.table, self.heads = model, table, table.task_heads
        self.holds_heads = holds_heads
        self.stored: list[dict[str, Tensor]] = []
        self.frozen: list[nn.Parameter] = []
        self._flags = {parameter: parameter.requires_grad for parameter in model.parameters()}
        self._let_go: Callable[[], None] | None = None
        self._of_current: dict[str, Tensor] | None = None

    def use_head(self, position: int) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
        """Select head ``position`` of a multi-head model, hold the earlier ones if asked: its parameters and theirs."""
        if self.heads is None:
            return [], []
        self.heads.select(position)
        earlier, new = self.heads.parameters(range(position)), self.heads.parameters([position])
        for parameter in (*earlier, *new):
            self._flags.setdefault(parameter, parameter.requires_grad)
        if self.holds_heads:
            _stop(earlier)
        return new, earlier

    def store(self) -> None:
        """The task has been learned: keep what is its own."""
        self.stored.append({name: value.detach().clone() for name, value in self.values().items()})

    @contextmanager
    def shown_to(self, position: int) -> Iterator[None]:
        """The values and the head of task ``position``, for a while."""
        values = self.values()
        before = {name: value.data for name, value in values.items()}
        selected = self.heads.selected if self.heads is not None else 0
        outermost = self._of_current is None
        self._of_current = self._of_current or before
        chosen = self.stored[position] if position < len(self.stored) else None
        try:
            for name, value in values.items():
                value.data = self._of_current[name] if chosen is None else chosen[name].to(value.device, copy=True)
            if self.heads is not None:
                self.heads.select(position)
            yield
        finally:
            for name, value in values.items():
                value.data = before[name]
            if self.heads is not None:
                self.heads.select(selected)
            if outermost:
                self._of_current = None

    def freeze(self) -> None:
        """Once the first task has been learned, hold what is to be held; again, nothing happens."""
        if not self.stored or self._let_go is not None:
            return
        roles = [role for role, policy in self.table.policies.items() if policy == "freeze"]
        self.frozen = [row.parameter for row in self.table.of_role(*roles)]
        _stop(self.frozen)
        self._let_go = self._hold()

    def thaw(self) -> None:
        """Undo ``freeze``."""
        if self._let_go is not None:
            self._let_go()
        self._let_go = None
        for parameter in self.frozen:
            parameter.requires_grad_(self._flags[parameter])
        self.frozen = []

    def restore_flags(self, model: nn.Module | None = None) -> None:
        """``requires_grad`` as it was found, on the model or on a copy of it."""
        to = self.model if model is None else model
        for mine, its in zip(self.model.parameters(), to.parameters(), strict=True):
            its.requires_grad_(self._flags.get(mine, True))

    @contextmanager
    def bare(self) -> Iterator[None]:
        """Without the forwards that hold statistics, for a while."""
        if self._let_go is None:
            yield
            return
        self._let_go()
        try:
            yield
        finally:
            self._let_go = self._hold()

    def values(self) -> dict[str, Tensor]:
        """The tensors of the model that every task has for itself, by name."""
        roles = [role for role, policy in self.table.policies.items() if policy == "per-task"]
        values: dict[str, Tensor] = {row.name: row.parameter for row in self.table.of_role(*roles)}
        several = self.heads.names if self.heads is not None else ()
        values |= {row.name: row.parameter for row in self.table.of_role("head") if not covers(several, row.name)}
        every = self.table.policies.get("norm") == "per-task"
        for name, buffer in running_statistics(self.model).items():
            in_head = covers(self.table.heads, name) and not covers(several, name)
            if in_head or (every and not covers((*self.table.skip, *self.table.heads), name)):
                values[name] = buffer
        return values

    def _hold(self) -> Callable[[], None]:
        if self.table.policies.get("norm") != "freeze":
            return lambda: None
        return hold_statistics(
            m
            for n, m in self.model.named_modules()
            if is_norm(m) and not covers((*self.table.skip, *self.table.heads), n)
        )


def _stop(parameters: list[nn.Parameter]) -> None:
    """No gradient, and none left over that an optimizer might still apply."""
    for parameter in parameters:
        parameter.requires_grad_(False)
        parameter.grad = None

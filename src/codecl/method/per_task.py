"""What each task has for itself: effective weights, and the tensors that no projection describes.

Heads, normalisation layers and biases are frozen after the first task, kept in a copy per task, or left free. Named
heads are always kept per task. A multi-head module has a head for each task already; the old ones only need to be
frozen.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property

import torch
from torch import Tensor, nn

from codecl.attach import EffectiveWeight, LayerTable
from codecl.attach.patching import hold_statistics
from codecl.attach.shards import here, is_sharded, part, whole
from codecl.attach.survey import covers
from codecl.layers.norms import is_norm
from codecl.method.replicas import Replicas
from codecl.method.watch import ProtectionWarning


class PerTask:
    """Effective weights, heads, norms and biases as tasks come and go."""

    def __init__(
        self,
        model: nn.Module,
        layers: LayerTable,
        freezes_heads: bool,
        holds_buffers: bool,
        replicas: Replicas,
    ) -> None:
        self.replicas = replicas
        self.model, self.layers, self.heads = model, layers, layers.task_heads
        self.freezes_heads, self.holds_buffers = freezes_heads, holds_buffers
        self.effective: list[dict[str, EffectiveWeight]] = []
        """For each task begun, the weights that it sees in another way than the shared ones, by name."""
        self.stored: list[dict[str, Tensor]] = []
        """For each task learned, its own heads, norms and biases, by name."""
        self.shown: int | None = None
        """The task whose effective weights are in place, by position; None for the shared weights."""
        self.frozen: list[nn.Parameter] = []
        self._told: set[str] = set()
        self._held: list[tuple[Tensor, Tensor]] = []
        """What is frozen, and its values."""
        self._flags = {parameter: parameter.requires_grad for parameter in model.parameters()}
        self._release: Callable[[], None] | None = None
        self._current: dict[str, Tensor] | None = None
        """The values of the task at hand while those of another are shown."""

    # Showing a task.

    def show(self, task: int | None) -> None:
        """Put the effective weights of the task at a position in place, or the shared weights."""
        self.shown = task
        effective = self.effective[task] if task is not None else {}
        for name, weight in self.layers.protected.items():
            weight.change = change = effective.get(name)
            if change is not None:
                change.follow(weight.parameter)

    @contextmanager
    def shared_weights(self) -> Iterator[None]:
        """Show the network on its shared weights inside this context, whatever task is current."""
        before = self.shown
        self.show(None)
        try:
            yield
        finally:
            self.show(before)

    @property
    def is_showing(self) -> bool:
        """Whether a task is shown inside a context that puts everything back."""
        return self._current is not None

    @contextmanager
    def showing(self, task: int) -> Iterator[None]:
        """Show the effective weights, the values and the head of the task at a position inside this context."""
        values, shown = self.values(), self.shown
        before = {name: _held(value) for name, value in values.items()}
        selected = self.heads.selected if self.heads is not None else 0
        outermost = self._current is None
        self._current = self._current or before
        stored = self.stored[task] if task < len(self.stored) else None
        try:
            for name, value in values.items():
                shown_now = self._current[name] if stored is None else part(stored[name], value)
                _show(value, shown_now if stored is None else shown_now.to(value.device, value.dtype, copy=True))
            if self.heads is not None:
                self.heads.select(task)
            self.show(task)
            self.replicas.reshard(self.model)
            yield
        finally:
            self.show(shown)
            for name, value in values.items():
                _show(value, before[name])
            if self.heads is not None:
                self.heads.select(selected)
            self.replicas.reshard(self.model)
            if outermost:
                self._current = None

    # Heads, norms and biases.

    def use_head(self, task: int) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
        """Select the head of a task in a multi-head model, freeze earlier ones; returns its parameters and theirs."""
        if self.heads is None:
            return [], []
        self.heads.select(task)
        self.replicas.shard(self.model, self.heads)
        earlier, new = self.heads.parameters(range(task)), self.heads.parameters([task])
        for parameter in (*earlier, *new):
            self._flags.setdefault(parameter, parameter.requires_grad)
        if self.freezes_heads:
            _freeze(earlier)
        return new, earlier

    def store(self) -> None:
        """Store the values of the task that has been learned."""
        last = self.stored[-1] if self.stored else {}
        values = {name: whole(value) for name, value in self.values().items()}
        same = {name for name, value in values.items() if name in last and _equal(last[name], value)}
        self.stored.append({name: last[name] if name in same else value.clone() for name, value in values.items()})
        buffers = [name for name, (module, _) in self._own_buffers.items() if name in last and not is_norm(module)]
        if moving := [name for name in buffers if name not in same | self._told]:
            self._told.update(moving)
            warnings.warn(
                f"the buffers {moving} changed while a task was learned, and no known norm has them: every task keeps "
                "its own, as buffers='hold' says. With buffers='free' they go on for all tasks.",
                ProtectionWarning,
                stacklevel=4,
            )

    def freeze(self) -> None:
        """Freeze what the policies say, once the first task has been learned."""
        if not self.stored or self._release is not None:
            return
        roles = [role for role, policy in self.layers.policies.items() if policy == "freeze"]
        self.frozen = [row.parameter for row in self.layers.of_role(*roles)]
        _freeze(self.frozen)
        self._release = self._freeze_statistics()
        self._held = [(tensor, here(tensor).clone()) for tensor in (*self.frozen, *self._frozen_statistics())]

    @torch.no_grad()
    def hold(self) -> None:
        """Put the values of all that is frozen back, whatever changed them."""
        if self._held:
            tensors, values = zip(*self._held, strict=True)
            torch._foreach_copy_(
                [here(tensor) for tensor in tensors], list(values)
            )  # a graph may wait for its backward

    def thaw(self) -> None:
        """Undo ``freeze``."""
        if self._release is not None:
            self._release()
        self._release = None
        for parameter in self.frozen:
            parameter.requires_grad_(self._flags[parameter])
        self.frozen, self._held = [], []

    def restore_flags(self, model: nn.Module | None = None) -> None:
        """Set ``requires_grad`` as it was found, on the model or on a copy of it."""
        target = self.model if model is None else model
        for original, parameter in zip(self.model.parameters(), target.parameters(), strict=True):
            parameter.requires_grad_(self._flags.get(original, True))

    @contextmanager
    def bare(self) -> Iterator[None]:
        """Without the forwards that freeze running statistics, inside this context."""
        if self._release is None:
            yield
            return
        self._release()
        try:
            yield
        finally:
            self._release = self._freeze_statistics()

    def values(self) -> dict[str, Tensor]:
        """The tensors of the model that every task has for itself, by name."""
        roles = [role for role, policy in self.layers.policies.items() if policy == "per-task"]
        values: dict[str, Tensor] = {row.name: row.parameter for row in self.layers.of_role(*roles)}
        multi_head = self.heads.names if self.heads is not None else ()
        values |= {row.name: row.parameter for row in self.layers.of_role("head") if not covers(multi_head, row.name)}
        return values | {name: getattr(module, key) for name, (module, key) in self._own_buffers.items()}

    @cached_property
    def _own_buffers(self) -> dict[str, tuple[nn.Module, str]]:
        """The buffers that every task has for itself, by name: running statistics of heads, and what policies say.

        Found once: heads that the model gains later are no part of it, and the walk over all of them is long.
        """
        multi_head = self.heads.names if self.heads is not None else ()
        all_norms = self.layers.policies.get("norm") == "per-task"
        found = {}
        for name, module in self.model.named_modules():
            for key, buffer in module.named_buffers(recurse=False):
                full = f"{name}.{key}" if name else key
                in_head = covers(self.layers.heads, full) and not covers(multi_head, full)
                outside = covers((*self.layers.skip, *self.layers.heads), full)
                wanted = all_norms if is_norm(module) else self.holds_buffers and buffer.is_floating_point()
                if (in_head and (is_norm(module) or wanted)) or (wanted and not outside):
                    found[full] = module, key
        return found

    def _freeze_statistics(self) -> Callable[[], None]:
        return hold_statistics(self._frozen_norms())

    def _frozen_norms(self) -> list[nn.Module]:
        if self.layers.policies.get("norm") != "freeze":
            return []
        outside = (*self.layers.skip, *self.layers.heads)
        return [m for name, m in self.model.named_modules() if is_norm(m) and not covers(outside, name)]

    def _frozen_statistics(self) -> list[Tensor]:
        return [buffer for norm in self._frozen_norms() for buffer in norm.buffers(recurse=False)]


def _held(value: Tensor) -> Tensor:
    """What ``_show`` puts back. Of shards a copy, since nothing but their own storage is gathered."""
    return here(value).clone() if is_sharded(value) else value.data


@torch.no_grad()
def _show(value: Tensor, data: Tensor) -> None:
    if is_sharded(value):
        here(value).copy_(data)
    else:
        value.data = data


def _equal(a: Tensor, b: Tensor) -> bool:
    return (a.device, a.dtype) == (b.device, b.dtype) and torch.equal(a, b)


def _freeze(parameters: list[nn.Parameter]) -> None:
    """Turn gradients off, and drop those that an optimizer might still apply."""
    for parameter in parameters:
        parameter.requires_grad_(False)
        parameter.grad = None

"""All optimizers that train one method's weights: several at a time, or a new one for every task."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from torch import nn, optim
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.hooks import RemovableHandle

from codecl.attach import ProtectedWeight
from codecl.method.guard import Guard, Learner, Project, UnsafeOptimizer

Extras = Mapping[nn.Parameter, Iterable[nn.Parameter]]


class Guards:
    """The guards in force, and those of optimizers that newer ones replaced."""

    def __init__(self, weights: Mapping[str, ProtectedWeight], learner: Learner, model: nn.Module | None) -> None:
        """``model`` is given if the method acts in every step: then all of its parameters are watched."""
        self._weights, self._learner, self._model = weights, learner, model
        self._in_force: list[Guard] = []
        self._versions: dict[nn.Parameter, int] = {}
        self._replaced: weakref.WeakSet[Guard] = weakref.WeakSet()  # they live as long as their optimizers
        _look_at_every_step(self)

    def add(self, optimizer: optim.Optimizer, project: Project | None) -> Guard:
        """Guard ``optimizer``; one that trained the same weights before is replaced."""
        guard = Guard(optimizer, self._weights, project, self._learner)
        for same in [g for g in (*self._in_force, *self._replaced) if g.optimizer is optimizer]:
            same.release()
        self._in_force = [g for g in self._in_force if g.optimizer is not optimizer]
        for earlier in [g for g in self._in_force if g.weights.keys() & guard.weights.keys()]:
            earlier.replace()
            self._in_force.remove(earlier)
            self._replaced.add(earlier)
        self._in_force.append(guard)
        return guard

    def check_guarded(self, optimizer: optim.Optimizer) -> None:
        """Refuse a step of an optimizer that trains what is protected and was not guarded."""
        if any(guard.optimizer is optimizer for guard in (*self._in_force, *self._replaced)):
            return
        inside = {parameter for group in optimizer.param_groups for parameter in group["params"]}
        unguarded = [w.name for w in self._weights.values() if w.projection is not None and w.parameter in inside]
        if unguarded:
            raise UnsafeOptimizer(
                f"this {type(optimizer).__name__} trains '{unguarded[0]}', which is protected, and is not guarded: its "
                "step could move old outputs. Call method.guard(optimizer) for every optimizer."
            )

    @property
    def stepped(self) -> bool:
        """Whether any optimizer stepped since the last ``join``."""
        return any(guard.steps for guard in self._in_force)

    def note_versions(self) -> None:
        """Note the versions of the watched parameters: one that changes later was trained."""
        parameters = self._protected() if self._model is None else self._model.parameters()
        self._versions = {parameter: parameter._version for parameter in parameters}

    def warn_if_left_out(self, task: object) -> None:
        """Warn if watched parameters were trained and no guarded optimizer did it."""
        if self.stepped or all(parameter._version == was for parameter, was in self._versions.items()):
            return
        if self._model is not None:
            harm = f"{self._learner.name} took no part in its steps"
        elif any(weight.projection is not None for weight in self._weights.values()):
            harm = "Adam or weight decay would have moved old outputs"
        else:
            return
        warnings.warn(
            f"task {task!r} was trained by an optimizer that is not guarded: {harm}. "
            "Call method.guard(optimizer) for every optimizer.",
            stacklevel=4,
        )

    def _protected(self) -> Iterator[nn.Parameter]:
        return (weight.parameter for weight in self._weights.values())

    def join(self, extras: Extras, frozen: list[nn.Parameter]) -> None:
        for guard in self._in_force:
            guard.join(extras, frozen)

    def adopt(self, new: Sequence[nn.Parameter], hosts: Sequence[nn.Parameter]) -> None:
        for guard in self._in_force:
            guard.adopt(new, hosts)

    def forget_state(self) -> None:
        for guard in self._in_force:
            guard.forget_state()

    def release(self) -> None:
        for guard in (*self._in_force, *self._replaced):
            guard.release()
        self._in_force, self._replaced = [], weakref.WeakSet()
        _ALIVE.discard(self)


_ALIVE: weakref.WeakSet[Guards] = weakref.WeakSet()
"""The guards of all attached methods."""


def _look_at_every_step(guards: Guards) -> None:
    """Let ``guards`` see every optimizer of the process before it steps, as long as they live.

    One hook serves all and is never removed: torch iterates over its hooks while a collected method would remove its
    own.
    """
    if not _HOOKS:
        _HOOKS.append(register_optimizer_step_pre_hook(_check_all))
    _ALIVE.add(guards)


_HOOKS: list[RemovableHandle] = []


def _check_all(optimizer: optim.Optimizer, *_: Any) -> None:
    for guards in list(_ALIVE):
        guards.check_guarded(optimizer)

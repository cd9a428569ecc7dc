"""All optimizers that train one method's weights: several at a time, or a new one for every task."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any

from torch import nn, optim
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.hooks import RemovableHandle

from codecl.attach import ProtectedWeight
from codecl.method.guard import Guard, Learner, Project, UnsafeOptimizer, check_not_replaced
from codecl.method.watch import WeightWatch, repair_weights

Extras = Mapping[nn.Parameter, Iterable[nn.Parameter]]


class Guards:
    """The guards in force, and those of optimizers that newer ones replaced."""

    def __init__(self, model: nn.Module, weights: Mapping[str, ProtectedWeight], learner: Learner, acts: bool) -> None:
        """``acts`` says that the method takes part in every step: then all parameters of the model are watched."""
        self._model, self._weights, self._learner, self._acts = model, weights, learner, acts
        self._watches = {name: WeightWatch(weight) for name, weight in weights.items()}
        self._in_force: list[Guard] = []
        self._versions: dict[nn.Parameter, int] = {}
        self._replaced: weakref.WeakSet[Guard] = weakref.WeakSet()  # they live as long as their optimizers
        _look_at_every_step()
        _ALIVE.add(self)

    def add(self, optimizer: optim.Optimizer, project: Project | None) -> Guard:
        """Guard ``optimizer``; one that trained the same weights before is replaced."""
        guard = Guard(optimizer, self._watches, project, self._learner)
        theirs = {parameter for group in optimizer.param_groups for parameter in group["params"]}
        if theirs and theirs.isdisjoint(self._model.parameters()):
            guard.release()
            raise ValueError(
                f"this {type(optimizer).__name__} trains no parameter of the model that {self._learner.name} is "
                "attached to. Guard the optimizer of that model."
            )
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

    def note_weights(self) -> None:
        """The weights are as they should be: whatever changes them from here on is seen."""
        parameters = self._model.parameters() if self._acts else (w.parameter for w in self._weights.values())
        self._versions = {parameter: parameter._version for parameter in parameters}
        for watch in self._watches.values():
            watch.begin()

    def repair_weights(self) -> None:
        """Project what changed weights since the last guarded step; refuse a model that has others now."""
        check_not_replaced(self._weights)
        repair_weights(self._watches.values())

    def warn_if_left_out(self, task: object) -> None:
        """Warn if watched parameters were trained and no guarded optimizer did it."""
        if self.stepped or all(parameter._version == was for parameter, was in self._versions.items()):
            return
        if self._acts:
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

    def join(self, extras: Extras, frozen: list[nn.Parameter], learned: int) -> None:
        for guard in self._in_force:
            guard.join(extras, frozen, learned)

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


@cache
def _look_at_every_step() -> RemovableHandle:
    """See every optimizer of the process before it steps.

    One hook serves all and is never removed: torch iterates over its hooks while a collected method would remove its
    own.
    """
    return register_optimizer_step_pre_hook(_check_all)


def _check_all(optimizer: optim.Optimizer, *_: Any) -> None:
    for guards in list(_ALIVE):
        guards.check_guarded(optimizer)

"""A protected weight while a method is attached: who uses it, and what its gradient and its value pass through."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from codecl.attach.effective import EffectiveWeight
from codecl.attach.projection import Projection, unrounded
from codecl.layers import LayerKind

Listener = Callable[["ProtectedWeight", LayerKind, Any], None]
"""Is told of every call of a module that uses a weight: the weight, the use of it, and the inputs ``x``."""


@dataclass(eq=False)
class ProtectedWeight:
    """One parameter, all modules that use it, and what its gradient and its value pass through."""

    name: str
    parameter: nn.Parameter
    uses: list[LayerKind]
    """One for each module that has the parameter. All see it as the same matrices."""
    projection: Projection | None = None
    change: EffectiveWeight | None = None
    """The weight as the current task sees it; None for the shared weight."""
    projects_gradient: bool = True
    """False while a guarded optimizer projects the update in place of the gradient."""
    listeners: list[Listener] = field(default_factory=list)
    rows_seen: int = field(default=0, init=False)
    """How many rows have been captured so far; none means that no call of its modules was seen."""
    calls: int = field(default=0, init=False)
    """How many calls of its modules are under way. Outside of one, nothing may use the parameter."""

    @property
    def kind(self) -> LayerKind:
        """The first use."""
        return self.uses[0]

    @cached_property
    def shape(self) -> tuple[int, int, int]:
        """``(g, o, d)``."""
        g, o, d = self.matrices().shape
        return g, o, d

    def matrices(self, value: Tensor | None = None) -> Tensor:
        """The parameter, or a tensor of its shape, as a stack ``[g, o, d]``."""
        return self.kind.matrices(self.parameter if value is None else value)

    def project(self, value: Tensor) -> Tensor:
        """``V (I − C)`` for a tensor of the shape of the parameter."""
        return value if self.projection is None else self.kind.parameter(self.projection(self.matrices(value)))

    @property
    def learns_projected(self) -> bool:
        """Whether a gradient that arrives now is to be projected."""
        wanted = self.projection is not None and self.projects_gradient
        return wanted and self.parameter.requires_grad and torch.is_grad_enabled()

    @torch.no_grad()
    def effective(self) -> Tensor:
        """The value that the current task sees, in the shape of the parameter."""
        if self.change is None:
            return self.parameter.detach().clone()
        with unrounded(self.parameter):
            return self.kind.parameter(self.seen(self.stack(self.parameter))).detach()

    # What a forward asks.

    def stack(self, value: Tensor) -> Tensor:
        """``value``, in the shape of the parameter, as the matrices that are projected."""
        return self.matrices(value)

    def seen(self, W: Tensor) -> Tensor:
        """What the current task sees of ``stack``, ``[g, o, d]``."""
        return W if self.change is None else self.change.weight(W)

    def rows(self, X: Tensor) -> Tensor:
        """Rows ``X'`` with ``X' Wᵀ = X W_effᵀ``, where ``W`` is ``stack`` and ``W_eff`` is ``seen``."""
        return X if self.change is None else self.change.rows(X)

    # What a guard asks, around the step of an optimizer.

    @property
    def always_restricts(self) -> bool:
        """Whether steps are projected even where the optimizer keeps a projected gradient projected."""
        return False

    def snapshot(self) -> Any:
        """What ``restrict`` needs from before a step."""
        return self.parameter.detach().clone()

    @torch.no_grad()
    def restrict(self, before: Any) -> None:
        """Replace the step since ``before`` by its projection: ``W_old + (W_new − W_old) (I − C)``."""
        self.parameter.copy_(before + self.project(self.parameter - before))

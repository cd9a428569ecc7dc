"""A protected weight while a method is attached: who uses it, and what its gradient and its value pass through."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from codecl.attach.effective import EffectiveWeight
from codecl.attach.probe import Probe
from codecl.attach.projection import Projection, WithoutNoise, is_narrow, unrounded, wide_dtype
from codecl.attach.shards import here, whole
from codecl.layers import LayerKind

Listener = Callable[["ProtectedWeight", LayerKind, Any], None]
"""Is told of every call of a module that uses a weight: the weight, the use of it, and the inputs ``x``."""


@dataclass(eq=False)
class ProtectedWeight:
    """One parameter, all modules that use it, and what its gradient and its value pass through."""

    no_twins: ClassVar[str] = ""
    """Why it cannot be tied between an embedding and an output layer; empty where it can."""
    name: str
    parameter: nn.Parameter
    uses: list[LayerKind]
    """One for each module that has the parameter. All see it as the same matrices."""
    projection: Projection | None = None
    change: EffectiveWeight | None = None
    """The weight as the current task sees it; None for the shared weight."""
    projects_gradient: bool = True
    """False while a guarded optimizer projects the update in place of the gradient."""
    drops_noise: bool = False
    """Whether the optimizer would make full steps of rounding, so that it is zero in projected gradients."""
    twins: list[ProtectedWeight] = field(default_factory=list, init=False, repr=False)
    """The same parameter on its other side, where it is tied between an embedding and an output layer.

    Each side has rows, a projection and a change of its own; the gradient and the step pass the projections of both.
    """
    steps_only: bool = False
    """Whether its steps are projected whatever the optimizer, because gradients arrive that were not projected."""
    listeners: list[Listener] = field(default_factory=list)
    rows_seen: int = field(default=0, init=False)
    """How many rows have been captured so far; none means that no call of its modules was seen."""
    _probe: Probe | None = field(default=None, init=False, repr=False)
    _probed: Projection | None = field(default=None, init=False, repr=False)
    _exact: list[Tensor] | None = field(default=None, init=False, repr=False)
    _place: tuple[torch.device, torch.dtype] | None = field(default=None, init=False, repr=False)
    calls: int = field(default=0, init=False)
    """How many calls of its modules are under way. Outside of one, nothing may use the parameter."""

    @property
    def sides(self) -> tuple[ProtectedWeight, ...]:
        """This and its twins, all that the parameter is."""
        return self, *self.twins

    @property
    def kind(self) -> LayerKind:
        """The first use."""
        return self.uses[0]

    @property
    def here(self) -> Tensor:
        """What this process has of the parameter as it stands, which is all of it unless it is in shards."""
        return here(self.parameter)

    @cached_property
    def shape(self) -> tuple[int, int, int]:
        """``(g, o, d)``."""
        g, o, d = self.matrices().shape
        return g, o, d

    def matrices(self, value: Tensor | None = None) -> Tensor:
        """The parameter, or a tensor of its shape, as a stack ``[g, o, d]``."""
        return self.kind.matrices(self.parameter if value is None else value)

    def project(self, value: Tensor) -> Tensor:
        """``V (I − C)`` for a tensor of the shape of the parameter; with a twin ``(I − P) V (I − C)``."""
        for side in self.sides:
            if side.projection is not None:
                value = side.kind.parameter(side.projection(side.matrices(value)))
        return value

    @property
    def is_projected(self) -> bool:
        """Whether a side of it is protected."""
        return any(side.projection is not None for side in self.sides)

    @property
    def learns_projected(self) -> bool:
        """Whether a gradient that arrives now is to be projected."""
        wanted = self.projection is not None and all(side.projects_gradient for side in self.sides)
        return wanted and self.parameter.requires_grad and torch.is_grad_enabled()

    @property
    def gradient_projection(self) -> Projection | None:
        """What a gradient that arrives now passes; None where it is not to be projected."""
        if self.projection is None or not self.learns_projected:
            return None
        rounds = self.drops_noise and self.projection.on_inputs  # entry by entry, nothing is taken off
        return WithoutNoise(self.projection) if rounds else self.projection

    @torch.no_grad()
    def effective(self) -> Tensor:
        """The value that the current task sees, in the shape of the parameter."""
        W = whole(self.parameter)
        if self.change is None:
            return W.clone()
        with unrounded(W):
            return self.kind.parameter(self.seen(self.stack(W))).detach()

    # What a forward asks.

    def settle(self) -> None:
        """What the current task sees goes where the parameter has gone since: to another device or dtype."""
        place = self.parameter.device, self.parameter.dtype
        if self.change is not None and self._place != place:
            self.change.follow(self.parameter)
            self._place = place

    def stack(self, value: Tensor) -> Tensor:
        """``value``, in the shape of the parameter, as the matrices that are projected."""
        return self.matrices(value)

    def seen(self, W: Tensor) -> Tensor:
        """What the current task sees of ``stack``, ``[g, o, d]``."""
        return W if self.change is None else self.change.weight(W)

    def projected_rows(self, X: Tensor, i: int) -> Tensor:
        """The rows of matrix ``i`` as its projection meets them."""
        return X

    def rows(self, X: Tensor) -> Tensor:
        """Rows ``X'`` with ``X' Wᵀ = X W_effᵀ``, where ``W`` is ``stack`` and ``W_eff`` is ``seen``."""
        return X if self.change is None else self.change.rows(X)

    def bake(self, plain: nn.Module) -> None:
        """Put the value that the current task sees into ``plain``, a copy of the model; sides are untied by that."""
        own, config = nn.Parameter(self.effective()), getattr(plain, "config", object())
        if self.twins and hasattr(config, "tie_word_embeddings"):  # transformers would tie them again on loading
            config.tie_word_embeddings = False
        for use in self.uses:
            copied = type(use)(plain.get_submodule(use.module_name), use.name, use.module_name)
            for container, key, value in copied.places(own):
                if value is own and self.twins:
                    container[key] = own.requires_grad_(container[key].requires_grad)
                elif isinstance(value, Tensor):
                    container[key].data = value.detach()

    # What a guard asks, around the step of an optimizer.

    @property
    def probe(self) -> Probe:
        """Recognises the gradients that were delivered under the projection in force, and the weight itself."""
        W, found = self.parameter, self._probe
        if found is None or (found.R.device, found.R.dtype) != (W.device, wide_dtype(W)):
            found = self._probe = self._new_probe(W.to(wide_dtype(W)))
        if self._probed is not self.projection:
            self._probed = self.projection
            found.forget()
        return found

    def _new_probe(self, like: Tensor) -> Probe:
        return Probe(self.shape, like)

    def deliver(self, D: Tensor) -> None:
        """A gradient ``[g, o, d]`` or ``[o, d]`` is about to reach the parameter, projected."""
        if not self.always_restricts:
            self.probe.deliver(D.reshape(self.shape))

    def projected_once(self, G: Tensor) -> Tensor:
        """A gradient that is added to the others, projected unless it is what was delivered."""
        if self.projection is None or not self.projects_gradient or self.always_restricts:
            return G
        if not self.probe.knows(self.matrices(G)):
            G = self.project(G)
            self.deliver(self.matrices(G))
        return G

    def some_rows(self, block: slice) -> Tensor:
        """Some rows of the matrices that are projected, taken as ``[g·o, d]``, as they stand."""
        W = self.matrices(self.parameter.detach())
        return W.reshape(-1, W.shape[-1])[block]

    def difference(self, before: Any) -> Tensor:
        """How far the weight is from a ``snapshot``, as the matrices that are projected."""
        return self.stack(self.parameter - before.to(self.parameter)).detach()

    @property
    def always_restricts(self) -> bool:
        """Whether steps are projected even where the optimizer keeps a projected gradient projected."""
        return bool(self.twins) or any(kind.scales for kind in self.uses)

    def snapshot(self) -> Any:
        """What ``restrict`` needs from before a step."""
        for kind in self.uses:
            kind.hold()
        return self.parameter.detach().clone()

    @torch.no_grad()
    def restrict(self, before: Any) -> None:
        """Replace the step since ``before`` by its projection: ``W_old + (W_new − W_old) (I − C)``."""
        self._exact = add_exactly([self.parameter], [before], self._exact, lambda steps: [self.project(steps[0])])
        self.follow()

    def follow(self) -> None:
        """What scales the weight goes with it."""
        for kind in self.uses:
            kind.follow()


def add_exactly(
    tensors: Sequence[Tensor],
    before: Sequence[Tensor],
    exact: Sequence[Tensor] | None,
    project: Callable[[list[Tensor]], list[Tensor]],
) -> list[Tensor] | None:
    """Replace the steps of ``tensors`` since ``before`` by their projections.

    In narrow dtypes the roundings of many steps would add up to what no projection allows, so they are made on copies
    in float32, which are returned: ``exact`` are those of the last step.
    """
    start = [old.to(tensor.device, wide_dtype(tensor)) for tensor, old in zip(tensors, before, strict=True)]
    steps = project([tensor - old for tensor, old in zip(tensors, start, strict=True)])
    if exact is not None and all(torch.equal(e.to(old.dtype), old) for e, old in zip(exact, before, strict=True)):
        start = list(exact)
    end = [old + step for old, step in zip(start, steps, strict=True)]
    for tensor, value in zip(tensors, end, strict=True):
        tensor.copy_(value)
    return end if is_narrow(tensors[0]) else None

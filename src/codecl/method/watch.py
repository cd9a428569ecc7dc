"""Changes of a protected weight that no guarded step made.

Weights are clamped, renormed or decayed by hand, averaged, or loaded from elsewhere. A weight that changed between two
guarded steps is compared with its value from before. What lies in directions that are strongly held, a guarded step
would not have changed: with ``Δ`` the change, ``C`` what is protected and ``Ω`` random,

    ‖Δ Cⁿ‖² / ‖Δ‖²  ≪  ‖Ω Cⁿ‖² / ‖Ω‖²        if Δ is made of steps, as averages of states of the task are
                    ≈                        if something else made it: then it is projected
"""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from codecl.attach import Projection, ProtectedWeight

POWER = 64
"""n: of a direction that is held by .99, half is left; of one held by .9, a thousandth."""
SHARE = 0.1
"""What is left of Δ, relative to what is left of Ω, above which it was not made of steps."""
ROWS = 32
"""How many rows of Δ are looked at, the longest, where all are projected alike."""
FULL = 0.995
"""The share of a layer's inputs that is protected from which on it is called full."""
FIRST_STEPS = 8
"""How many steps of a task are followed by a copy of the weight. Who changes weights by hand does so from the first."""


class ProtectionWarning(UserWarning):
    """Something would have moved what old tasks know, and was projected."""


class WeightWatch:
    """One protected weight, from one guarded step to the next."""

    def __init__(self, weight: ProtectedWeight) -> None:
        self.weight = weight
        self._digest: Tensor | None = None
        self._version = 0
        self._copy: Any = None
        self._steps = 0
        self.warned = False

    def begin(self) -> None:
        """The weight is as it should be; the steps of a task begin."""
        self._digest = self._copy = None
        self._steps = 0
        self.note()

    def note(self) -> None:
        """The weight is as it should be, after a step."""
        if self.weight.projection is None:
            return
        self._digest, self._version = self.weight.digest(), self.weight.parameter._version
        if self._steps <= FIRST_STEPS:
            self._copy = self.weight.snapshot()
        self._steps += 1

    def repair(self) -> bool:
        """If the weight has changed since, project the change, unless steps could have made it; says whether it did."""
        weight = self.weight
        if weight.projection is None or self._digest is None:
            return False
        if self._version == weight.parameter._version and _same(self._digest, weight.digest()):
            return False  # ``parameter.data`` changes without a version
        moved = not made_of_steps(weight.difference(self._copy), weight.projection)
        if moved:
            weight.restrict(self._copy)
        self._steps = -(2**62)  # a copy after every step from here on
        self.note()
        return moved


@torch.no_grad()
def repair_weights(watches: Iterable[WeightWatch]) -> None:
    """Project what changed these weights since their last guarded step, and warn of each weight once."""
    moved = [watch for watch in watches if watch.repair()]
    if new := [watch.weight.name for watch in moved if not watch.warned]:
        warnings.warn(
            f"{some(new)} changed since the last step of a guarded optimizer, and not as its steps do: was it clamped, "
            "decayed or loaded by hand? The change was projected, and later ones will be, so that old outputs stay.",
            ProtectionWarning,
            stacklevel=6,
        )
    for watch in moved:
        watch.warned = True


def some(names: Sequence[str]) -> str:
    """The first few of many names."""
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(f"'{name}'" for name in names[:3]) + more


def warn_of_full_layers(weights: Iterable[ProtectedWeight], known: Collection[str]) -> set[str]:
    """Warn of weights other than the ``known`` ones in which further tasks can hardly learn; returns their names."""
    kept = {w.name: 0.0 if w.projection is None else w.projection.capacity for w in weights if w.name not in known}
    full = {name: capacity for name, capacity in kept.items() if capacity > FULL}
    if full:
        warnings.warn(
            f"the inputs of {some(list(full))} are protected to {100 * min(full.values()):.1f} %: further tasks can "
            "hardly change these weights. Protect less (a smaller aperture or threshold), free more directions "
            "(free_dims, trust), or widen the layer.",
            stacklevel=3,
        )
    return set(full)


@torch.no_grad()
def made_of_steps(change: Tensor, projection: Projection) -> bool:
    """Whether projected steps could have made ``change: [g, o, d]``; what is not finite is not judged."""
    if projection.on_inputs:
        longest = torch.linalg.vector_norm(change, dim=2).topk(min(ROWS, change.shape[1])).indices
        change = change.take_along_dim(longest[..., None], dim=1)
    if not bool(change.any()) or not bool(torch.isfinite(change).all()):
        return True
    noise = torch.randn(change.shape, generator=torch.Generator().manual_seed(0)).to(change)
    return _share_held(change, projection) <= SHARE * _share_held(noise, projection)


def _share_held(A: Tensor, projection: Projection) -> float:
    """``‖A Cⁿ‖² / ‖A‖²``."""
    A = A.double()
    return float(strongly_held(A, projection).square().sum() / A.square().sum())


def strongly_held(A: Tensor, projection: Projection) -> Tensor:
    """``A Cⁿ``."""
    for _ in range(POWER):
        A = A - projection(A)
    return A


def _same(a: Tensor, b: Tensor) -> bool:
    return (a.device, a.dtype, a.shape) == (b.device, b.dtype, b.shape) and torch.equal(a, b)

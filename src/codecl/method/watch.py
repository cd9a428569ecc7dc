"""Changes of a protected weight that no guarded step made.

Weights are clamped, renormed or decayed by hand, averaged, or loaded from elsewhere. A weight that changed between two
guarded steps is compared with its value from before. What lies in directions that are strongly held, a guarded step
would not have changed: with ``Δ`` the change, ``C`` what is protected and ``Ω`` random,

    ‖Δ Cⁿ‖² / ‖Δ‖²  ≪  ‖Ω Cⁿ‖² / ‖Ω‖²        if Δ is made of steps, as averages of states of the task are
                    ≈                        if something else made it: then it is projected

Where ``C`` is soft, steps may move what is held, too. What they did as the task began says how far, in that share and
in length; it excuses no weight in which something else was found once in the task, nor changes whose sum goes further
than the steps did.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Collection, Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from codecl.attach import Projection, ProtectedWeight

POWER = 64
"""n: of a direction that is held by .99, half is left; of one held by .9, a thousandth."""
SHARE = 0.1
"""What is left of Δ, relative to what is left of Ω, above which it was not made of steps."""
LIKE_STEPS = 10.0
"""How many times larger a share of what is held later steps may have than the first of the task."""
AS_FAR = 100.0
"""How many times further each may move it: the rate of the first may have been a small one."""
IN_ALL = 2.0
"""How many times further than all steps the sum of changes between them may move it: averages and restored states take
back what steps did, and so move it about as far at most; what is repeated after every step goes on and on."""
OFTEN = 4
"""After so many changes their sum is looked at: where steps turned round, one restored state goes further than they."""
ROUNDING = 4.0
"""A change of ``ROUNDING · eps`` is none: what was added to a weight and taken off again leaves as much."""
ROWS = 32
"""How many rows of Δ are looked at, the longest, where all are projected alike."""
FULL = 0.995
"""The share of a layer's inputs that is protected from which on it is called full."""
FIRST_STEPS = 8
"""How many steps of a task are followed by a copy of the weight. Who changes weights by hand does so from the first."""


class ProtectionWarning(UserWarning):
    """Something would have moved what old tasks know, and was projected."""


class _Rows(NamedTuple):
    """Some rows of a weight, as they were."""

    block: slice
    values: Tensor


class WeightWatch:
    """One protected weight, from one guarded step to the next.

    After every step a few of its rows are kept, after the first steps of a task all of it; and again after every step
    once something else has changed it.
    """

    def __init__(self, weight: ProtectedWeight) -> None:
        self.weight = weight
        self.warned = False
        self._first: _Rows | None = None
        """As the task began, and moved by whatever moved the weight since and was no step."""
        self._others: Tensor | None = None
        """The sum of such changes, in the same rows."""
        self._found = False
        """Whether one of them, in this task, was not like steps."""
        self._excused = 0
        """How many were, with nothing but the length of steps to tell."""
        self._uncounted = 0
        """How many steps were taken for such changes, as they came after the last copy."""
        self._last: _Rows | None = None
        """After the last step."""
        self._version = 0
        self._copy: Any = None
        self._copied_at = 0
        self._steps = -1
        self._copies: float = FIRST_STEPS

    def begin(self) -> None:
        """The weight is as it should be; the steps of a task begin."""
        self._steps, self._copies, self._copy, self._last = -1, FIRST_STEPS, None, None
        self._others, self._found, self._excused, self._uncounted = None, False, 0, 0
        self.note()
        self._first = None if self._last is None else self._last._replace(values=self._last.values.clone())

    def note(self) -> None:
        """The weight is as it should be, after a step."""
        if self.weight.projection is None:
            return
        self._steps += 1
        block = self.weight.probe.block()
        self._last = _Rows(block, _copied(self.weight.some_rows(block), self._last))
        self._version = self.weight.parameter._version
        if self._steps <= self._copies:
            self._copy, self._copied_at = self.weight.snapshot(), self._steps

    def repair(self) -> bool:
        """If the weight has changed since, project the change, unless steps could have made it; says whether it did."""
        weight, projection, last = self.weight, self.weight.projection, self._last
        if projection is None or last is None:
            return False
        now = weight.some_rows(last.block)
        if self._version == weight.parameter._version and _same(now, last.values):
            return False  # ``parameter.data`` changes without a version
        since_copy = weight.difference(self._copy)
        since_step = _spread(now - last.values.to(now), last.block, since_copy.shape)
        moved = not all(self._made_of_steps(change, since_copy, projection) for change in (since_step, since_copy))
        if moved:
            weight.restrict(self._copy)
        self._leave_out(weight.difference(self._copy) if moved else since_copy)
        self._found |= moved
        self._copies = math.inf
        self._steps -= 1  # this was none
        self.note()
        return moved

    def _leave_out(self, since_copy: Tensor) -> None:
        """What has come since the copy is not to be taken for what steps do."""
        if self._first is None:
            return
        block, values = self._first
        others = since_copy.reshape(-1, since_copy.shape[-1])[block].double()
        self._first = _Rows(block, values.to(others) + others)
        self._others = others if self._others is None else self._others.to(others) + others
        self._uncounted += self._steps - self._copied_at

    def _made_of_steps(self, change: Tensor, since_copy: Tensor, projection: Projection) -> bool:
        """Whether ``change`` is nothing but rounding, or could be that of steps, such as those up to the copy."""
        W, first, done = self.weight.here, self._first, self._copied_at - self._uncounted
        if not change.numel():  # a shard without rows
            return True
        rounding = ROUNDING * torch.finfo(W.dtype).eps * math.sqrt(1 + self._steps - self._copied_at)
        if bool(change.abs().max() <= rounding * W.abs().max()) or made_of_steps(change, projection):
            return True
        if self._found or first is None or not done:
            return False
        now = self.weight.some_rows(first.block).double()
        new = since_copy.reshape(-1, now.shape[-1])[first.block].double()
        by_steps = _spread(now - first.values.to(now) - new, first.block, change.shape)
        if not _like(change, by_steps, self._steps / done, projection):
            return False
        self._excused += 1
        if self._excused <= 2 * OFTEN or self._others is None:  # each is looked at twice, with and without the copy
            return True
        others = _spread(self._others.to(new) + new, first.block, change.shape)
        return _held(others, projection) <= IN_ALL * _held(by_steps, projection)


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
    change = _longest(change, projection)
    if not bool(change.any()) or not bool(torch.isfinite(change).all()):
        return True
    noise = torch.randn(change.shape, generator=torch.Generator().manual_seed(0)).to(change)
    return _share(strongly_held(change, projection), change) <= SHARE * _share(strongly_held(noise, projection), noise)


def _like(change: Tensor, steps: Tensor, times: float, projection: Projection) -> bool:
    """Whether ``change`` could be ``times`` as many steps, by how much of what is held they move."""
    change, steps = _longest(change, projection), _longest(steps, projection)
    if not bool(steps.any()):
        return False
    ours, theirs = strongly_held(change, projection), strongly_held(steps, projection)
    further = float(torch.linalg.vector_norm(ours)) > AS_FAR * times * float(torch.linalg.vector_norm(theirs))
    return not further and _share(ours, change) <= LIKE_STEPS * _share(theirs, steps)


def _held(change: Tensor, projection: Projection) -> float:
    """How far ``change`` moves what is strongly held."""
    return float(torch.linalg.vector_norm(strongly_held(change.double(), projection)))


def _longest(change: Tensor, projection: Projection) -> Tensor:
    """A few rows of each matrix, where all are projected alike."""
    if not projection.on_inputs:
        return change.double()
    longest = torch.linalg.vector_norm(change, dim=2).topk(min(ROWS, change.shape[1])).indices
    return change.take_along_dim(longest[..., None], dim=1).double()


def _share(part: Tensor, whole: Tensor) -> float:
    return float(part.square().sum() / whole.square().sum())


def strongly_held(A: Tensor, projection: Projection) -> Tensor:
    """``A Cⁿ``."""
    for _ in range(POWER):
        A = A - projection(A)
    return A


def _spread(rows: Tensor, block: slice, shape: torch.Size) -> Tensor:
    """A stack ``[g, o, d]`` of zeros with some rows in their places."""
    stack = rows.new_zeros(shape)
    stack.view(-1, shape[-1])[block] = rows
    return stack


def _copied(rows: Tensor, before: _Rows | None) -> Tensor:
    """A copy of ``rows``, in the memory of those of before where it fits: fresh pages cost more than the copy."""
    if before is None or not _alike(rows, before.values):
        return rows.clone()
    return before.values.copy_(rows)


def _same(a: Tensor, b: Tensor) -> bool:
    return _alike(a, b) and torch.equal(a, b)


def _alike(a: Tensor, b: Tensor) -> bool:
    return (a.device, a.dtype, a.shape) == (b.device, b.dtype, b.shape)

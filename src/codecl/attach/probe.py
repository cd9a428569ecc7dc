"""Random products, by which a gradient or a weight is recognised at the price of reading a few of its rows.

A gradient that our backward delivered has been projected. What stands in ``.grad`` at the step may be more: a loss term
on the weights, noise, what a hook made of it. With ``R: [d, c]`` random and fixed, ``D_i`` what was delivered in
backward pass ``i`` and ``G`` what stands in ``.grad``,

    G R in the span of all D_i R    ⟺    G is a sum of multiples of the D_i, but for a chance of measure zero

Clipping, scaling, accumulation and clearing all keep ``G`` such a sum, and such a sum is projected. Of a large weight
every step looks at other rows, all of them in turn: reading them all would cost as much as the step itself.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

ROWS = 64
"""How many rows a step looks at."""
ENTRIES = 64
"""A product has at least as many numbers."""
MOST_PASSES = 16
"""More backward passes between two steps count as one: their sum."""
ROUNDING = 64.0
"""``G R`` is in the span if it differs from it by no more than ``ROUNDING · eps``, relative to its length.

Gradients of float32 that were scaled, accumulated over 16 passes, scaled back and clipped differ by up to 10 eps.
"""
EXACT = 1e-13
"""The eps of double precision in which these products are taken apart, with room for their own rounding."""

_ACCEPTED = -2
"""The key of what stood in ``.grad`` at the last step; others are those of backward passes."""
_ELSEWHERE = -10
"""The key of the first product of other processes; the next ones are below."""


class Probe:
    """Products of one weight ``[g, o, d]`` with ``R``, and those of the gradients delivered to it."""

    def __init__(self, shape: tuple[int, int, int], like: Tensor) -> None:
        g, o, d = shape
        rows, generator = min(ROWS, g * o), torch.Generator().manual_seed(0)
        R = torch.randn(d, math.ceil(ENTRIES / rows), generator=generator, dtype=torch.float64)
        self.R = R.to(like.device, like.dtype)
        self._blocks = [slice(start, min(start + rows, g * o)) for start in range(0, g * o, rows)]
        self._turn = 0
        self._delivered: dict[int, Tensor] = {}
        self._accepted: Tensor | None = None

    def __call__(self, stack: Tensor, ahead: int = 0) -> Tensor:
        """The product of the rows of a stack ``[g, o, d]`` whose turn it is, or will be, as one vector."""
        rows = stack.detach().reshape(-1, stack.shape[-1])[self.block(ahead)]
        return (rows.to(self.R.dtype) @ self.R).flatten()

    @property
    def size(self) -> int:
        """How many numbers a product has now."""
        block = self.block()
        return int(block.stop - block.start) * self.R.shape[1]

    def block(self, ahead: int = 0) -> slice:
        """Which rows of a stack ``[g, o, d]``, taken as ``[g·o, d]``, have their turn, or will have it."""
        return self._blocks[(self._turn + ahead) % len(self._blocks)]

    def deliver(self, D: Tensor) -> None:
        """Note a gradient that reaches the weight projected: those of one backward pass add up."""
        key, v = torch._C._current_graph_task_id(), self(D)
        if key in self._delivered:
            v = self._delivered.pop(key) + v
        self._delivered[key] = v
        passes = [key for key in self._delivered if key != _ACCEPTED]
        if len(passes) > MOST_PASSES:
            first, second, *_ = passes
            self._delivered[second] = self._delivered.pop(first) + self._delivered[second]

    def share(self) -> list[Any]:
        """The products of what was delivered since the last step, for the probes of other processes."""
        return [v.cpu() for v in self._delivered.values()]

    def passes(self) -> list[Tensor]:
        """The products of what was delivered here since the last step, one for each backward pass."""
        return [v for key, v in self._delivered.items() if key > _ACCEPTED]

    def receive_sum(self, v: Tensor) -> None:
        """Note the sum of what was delivered in all processes, which is compared first."""
        self._delivered[_ELSEWHERE] = v.to(self.R.device)

    def receive(self, shares: Sequence[list[Any]]) -> None:
        """Note what was delivered in all processes, whose gradients are averaged with ours."""
        for i, v in enumerate(v for share in shares for v in share):
            self._delivered[_ELSEWHERE - i] = v.to(self.R.device)

    def knows(self, G: Tensor) -> bool:
        """Whether ``G``, ``[g, o, d]``, is a sum of multiples of what was delivered; not finite ones are not judged."""
        return self._spans(self(G), torch.finfo(G.dtype).eps)

    def accepts(self, G: Tensor) -> bool:
        """The same for what stands in ``.grad`` at a step; what is added to it later will be known, too."""
        known = self.knows(G)
        self._accepted = self(G, ahead=1) if known else None
        return known

    def _spans(self, product: Tensor, eps: float) -> bool:
        """Whether nothing but rounding is left of a product without the latest of those delivered, the one before …"""
        if self._delivered and torch.equal(product, self._delivered[next(reversed(self._delivered))]):
            return True  # as it was delivered: so it is in most loops
        if len(product) == 0 or not bool(torch.isfinite(product).all()):
            return True
        v, basis = _unit(product.double()), list[Tensor]()
        for delivered in reversed(self._delivered.values()):
            e = _unit(delivered.double())
            for q in basis:
                e = e - (q @ e) * q
            basis.append(_unit(e))
            v = v - (basis[-1] @ v) * basis[-1]
            if bool(torch.linalg.vector_norm(v) <= ROUNDING * max(eps, EXACT)):
                return True
        return not bool(v.any())

    def step(self) -> None:
        """A step was made. Its gradient may still stand in ``.grad``, and more be added to it."""
        self._delivered = {} if self._accepted is None else {_ACCEPTED: self._accepted}
        self._accepted = None
        self._turn += 1

    def forget(self) -> None:
        """Another projection is in force from here on."""
        self._delivered, self._accepted = {}, None


def _unit(v: Tensor) -> Tensor:
    """``v / ‖v‖``, also where squares would vanish; zeros stay."""
    largest = v.abs().max()
    if not bool(largest > 0):
        return v
    v = v / largest
    return v.div(torch.linalg.vector_norm(v))

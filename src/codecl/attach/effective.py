"""Effective weights: what one task sees in place of the shared weight.

    W_eff = W + W U M Uᵀ                    equation 7 of the paper, M from zero
    W_eff = W − W U Uᵀ + W U M Uᵀ           the published implementation, M from a random start

``U: [g, d, K]`` are fixed directions, ``M: [g, K, K]`` is learned. On the input side the same change is ``x' = x + U
M Uᵀ x``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, Self

import torch
from torch import Tensor, nn

from codecl.attach.projection import times


class Change(Protocol):
    """A weight as one task sees it: a function of the shared weight and of parameters that belong to the task."""

    on_inputs: bool

    def weight(self, W: Tensor) -> Tensor:
        """The effective weight, ``[g, o, d] → [g, o, d]``."""

    def rows(self, X: Tensor) -> Tensor:
        """Rows ``X'``, ``[n, d]``, with ``X' Wᵀ = X W_effᵀ`` where ``g = 1``; called only if ``on_inputs``."""

    def parameters(self) -> list[nn.Parameter]:
        """What is learned."""

    def state(self) -> dict[str, Any]:
        """What it takes to make it again, as tensors, numbers and strings."""


class Mixing:
    """``W + W U M Uᵀ``: the directions ``U`` of the shared weight, recombined by the learned ``M``.

    ``replace`` subtracts ``W U Uᵀ``, so that ``M`` takes the place of the shared component instead of adding to it;
    ``hold`` keeps that subtracted term out of the gradient of ``W``, as the published Linear layers do.
    """

    def __init__(self, U: Tensor, M: Tensor, replace: bool = False, hold: bool = False) -> None:
        self.U, self.M = U, nn.Parameter(M)
        self.replace, self.hold = replace, hold
        self.on_inputs = U.shape[0] == 1 and not (replace and hold)
        if replace:
            self._eye = torch.eye(M.shape[-1], dtype=M.dtype, device=M.device)

    @property
    def _core(self) -> Tensor:
        return self.M - self._eye if self.replace and not self.hold else self.M

    def weight(self, W: Tensor) -> Tensor:
        W_eff = W + times(times(times(W, self.U), self._core), self.U.mT)
        if self.replace and self.hold:
            W_eff = W_eff - times(times(W.detach(), self.U), self.U.mT)
        return W_eff

    def rows(self, X: Tensor) -> Tensor:
        U, core = self.U.squeeze(0), self._core.squeeze(0)
        return X + ((X @ U) @ core.mT) @ U.mT

    def parameters(self) -> list[nn.Parameter]:
        return [self.M]

    def state(self) -> dict[str, Any]:
        return {"U": self.U, "M": self.M.detach().clone(), "replace": self.replace, "hold": self.hold}

    @classmethod
    def from_state(cls, state: Mapping[str, Any], like: Tensor) -> Self:
        U, M = state["U"].to(like.device), state["M"].to(like.device, copy=True)
        return cls(U, M, bool(state["replace"]), bool(state["hold"]))

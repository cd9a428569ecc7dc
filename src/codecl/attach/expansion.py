"""More inputs for a weight: mixtures of those that are there.

    W_eff x = W x + Σ_s V_s Φ_sᵀ x  = [W, V_1, …] [x, Φ_1ᵀ x, …]

``Φ: [g, c, E]`` mixes the ``c`` channels, ``V: [g, o, E k]`` holds the columns of the new ones, where ``k`` is the
size of the kernel, under which all places are mixed alike. For a Linear layer ``k = 1`` and ``c = d``.
"""

from __future__ import annotations

import math
from typing import Any, cast

import torch
from torch import Tensor, nn

from codecl.attach.weight import ProtectedWeight
from codecl.layers.convolution import ConvolutionKind


class Expansion:
    """The change of a task that knows the first ``count`` of the expansions of ``weight``.

    ``weight.columns`` are the ``V`` and ``Phi`` the ``Φ`` of all tasks; the last one known is the task's own if it is
    ``new``.
    """

    def __init__(self, weight: ProtectedWeight, Phi: list[nn.Parameter], count: int, new: bool) -> None:
        self.count, self.new = count, new
        self.on_inputs = weight.shape[0] == 1
        self._weight, self._Phi, self._kernel = weight, Phi, math.prod(kernel_of(weight))

    def weight(self, W: Tensor) -> Tensor:
        Phi, (g, o, d) = self._mixtures, self._weight.shape
        E = Phi.shape[2]
        V = W[..., d : d + E * self._kernel].reshape(g, o, E, self._kernel)
        return W[..., :d] + torch.einsum("goek,gce->gock", V, Phi).reshape(g, o, d)

    def rows(self, X: Tensor) -> Tensor:
        return self.widen(X, 0)

    def widen(self, X: Tensor, i: int) -> Tensor:
        """Rows ``[n, d]`` of matrix ``i`` beside their mixtures, ``[x, Φ_1ᵀ x, …]``."""
        channels = X.reshape(len(X), -1, self._kernel)
        mixed = torch.einsum("nck,ce->nek", channels, self._mixtures[i])
        return torch.cat([X, mixed.flatten(1)], dim=1)

    def parameters(self) -> list[nn.Parameter]:
        """All columns known, and the task's own mixtures."""
        own = self._Phi[self.count - 1 : self.count] if self.new else []
        return [*self._weight.columns[: self.count], *own]

    def state(self) -> dict[str, Any]:
        return {"count": self.count, "new": self.new}

    @property
    def _mixtures(self) -> Tensor:
        return torch.cat(cast(list[Tensor], self._Phi[: self.count]), dim=2)


def kernel_of(weight: ProtectedWeight) -> tuple[int, ...]:
    """The kernel of a convolution, under which a channel has several inputs; elsewhere every input is a channel."""
    use = weight.uses[0]
    return cast(nn.Conv2d, use.module).kernel_size if isinstance(use.kind, ConvolutionKind) else ()

"""Linear layers: the rows are the inputs themselves."""

from __future__ import annotations

from torch import Tensor, nn

from codecl.layers.base import LayerKind, register


@register(nn.Linear)
class LinearKind(LayerKind):
    """``y = x Wᵀ + b`` over any leading dimensions."""

    pointwise = True

    def matrices(self, weight: Tensor) -> Tensor:
        return weight.unsqueeze(0)

    def rows(self, x: Tensor) -> Tensor:
        return x.reshape(1, -1, x.shape[-1])

"""Linear and bilinear layers: the rows are the inputs themselves, or all products of two of them."""

from __future__ import annotations

from typing import Any

import torch
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


@register(nn.Bilinear)
class BilinearKind(LayerKind):
    """``y_o = x₁ᵀ W_o x₂ + b_o``: the rows are ``x₁ ⊗ x₂``."""

    def matrices(self, weight: Tensor) -> Tensor:
        return weight.flatten(1).unsqueeze(0)

    def call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Tensor, Tensor]:
        given = dict(zip(("input1", "input2"), args, strict=False)) | kwargs
        return given["input1"], given["input2"]

    def rows(self, x: tuple[Tensor, Tensor]) -> Tensor:
        return torch.einsum("...i,...j->...ij", *x).reshape(1, -1, x[0].shape[-1] * x[1].shape[-1])

    def inputs(self, x: tuple[Tensor, Tensor]) -> int:
        return len(x[0]) if x[0].ndim > 1 else 1

    def first(self, x: tuple[Tensor, Tensor], n: int) -> tuple[Tensor, Tensor]:
        return (x[0][:n], x[1][:n]) if x[0].ndim > 1 else x

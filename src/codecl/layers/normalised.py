"""Weights that a layer normalises before it uses them: ``weight_norm``, and standardised convolutions.

The layer uses ``a ∘ V`` with a parameter ``V`` and factors ``a = gain / size(V)``. Moving ``V`` would change its size,
and with it the outputs on old inputs. So once ``V`` is protected, the factors are held: the gain follows the size of
``V``, and what the layer uses is linear in ``V``.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvTransposeNd
from torch.nn.utils.parametrizations import _SpectralNorm, _WeightNorm
from torch.nn.utils.spectral_norm import SpectralNorm

from codecl.algebra import Moments
from codecl.layers.base import LayerKind, register, register_parametrization
from codecl.layers.convolution import ConvolutionKind


class NormalisedKind(LayerKind):
    """``a ∘ V``, with the name of the gain in ``scales``."""

    pointwise = False

    def size(self, V: Tensor) -> Tensor:
        """What the layer divides by, in the shape of the gain."""
        raise NotImplementedError

    def places(self, value: Tensor) -> list[tuple[Any, Any, Any]]:
        parameters, key = self._gain
        return [*super().places(value), (parameters, key, self._factors * self.size(value))]

    def hold(self) -> None:
        self._held = self._factors

    @torch.no_grad()
    def follow(self) -> None:
        parameters, key = self._gain
        parameters[key].copy_(self._held * self.size(self.value))

    @property
    def used(self) -> Tensor:
        return self._factors * self.value

    @property
    def _gain(self) -> tuple[dict[str, Any], str]:
        path, _, key = self.scales[0].rpartition(".")
        return self.module.get_submodule(path)._parameters, key

    @property
    def _factors(self) -> Tensor:
        parameters, key = self._gain
        return cast(Tensor, (parameters[key] / self.size(self.value)).detach())


@register("timm.layers.std_conv.ScaledStdConv2d")
class ScaledStandardisedKind(NormalisedKind, ConvolutionKind):
    """timm's ``ScaledStdConv2d``: each filter less its mean, over its deviation, times a gain.

    ``(w − mean w) · x = w · (x − mean x)``: the rows are patches less their mean.
    """

    scales = ("gain",)

    def size(self, V: Tensor) -> Tensor:
        conv = cast(Any, self.module)
        return cast(Tensor, (V.var((1, 2, 3), unbiased=False, keepdim=True) + conv.eps).sqrt() / conv.scale)

    def patches(self, x: Tensor, stride: int | None = None) -> Tensor:
        patches = super().patches(x, stride)
        return patches - patches.mean(-1, keepdim=True)


class WeightNormKind(NormalisedKind):
    """``g v / ‖v‖`` of ``torch.nn.utils.parametrizations.weight_norm``, over outputs, inputs or everything."""

    weights = ("parametrizations.weight.original1",)
    scales = ("parametrizations.weight.original0",)

    def size(self, V: Tensor) -> Tensor:
        return torch.norm_except_dim(V, 2, self._dim)

    def rows(self, x: Any) -> Any:
        rows = super().rows(x)
        return [X * a for X, a in zip(rows, self._columns, strict=True)] if self._on_inputs else rows

    def moments(self, x: Any) -> list[Moments]:
        return LayerKind.moments(self, x) if self._on_inputs else super().moments(x)

    @property
    def used(self) -> Tensor:
        return self.value if self._on_inputs else super().used

    @property
    def _dim(self) -> int:
        """The dimension whose entries have a norm each; −1 for one norm of everything."""
        return cast(int, cast(Any, self.module).parametrizations.weight[0].dim)

    @property
    def _on_inputs(self) -> bool:
        """Whether there is a factor for each input, as in a transposed convolution: then they scale the rows."""
        outputs = 1 if isinstance(self.module, _ConvTransposeNd) else 0
        return self._dim not in (-1, outputs) and not isinstance(self.module, nn.Embedding)

    @property
    def _columns(self) -> Tensor:
        """The factors of each column of the matrices, ``[g, d]``."""
        return self.matrices(self._factors.expand_as(self.value))[:, 0]


@register_parametrization(_WeightNorm)
def weight_normed(kind: type[LayerKind]) -> type[LayerKind]:
    """The kind of a layer of ``kind`` with weight_norm."""
    if kind not in _WEIGHT_NORMED:
        _WEIGHT_NORMED[kind] = type(f"WeightNorm{kind.__name__}", (WeightNormKind, kind), {"pointwise": False})
    return _WEIGHT_NORMED[kind]


_WEIGHT_NORMED: dict[type[LayerKind], type[LayerKind]] = {}


def changes_itself(module: nn.Module) -> str | None:
    """Why the parameters of ``module`` cannot be held: spectral norms estimate what they divide by as data passes."""
    parts = (*module.children(), *module._forward_pre_hooks.values())
    if any(isinstance(part, (_SpectralNorm, SpectralNorm)) for part in parts):
        return "its spectral_norm divides by an estimate that changes in training, whatever its weight does"
    return None

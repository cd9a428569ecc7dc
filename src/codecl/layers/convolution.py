"""Convolutions: the rows are the patches under the kernel, one stack of them per channel group."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from codecl.algebra import Moments
from codecl.algebra.tolerances import WORKING_DTYPE, relative_rank_floor
from codecl.layers.base import LayerKind, register
from codecl.layers.shifts import gram_of_patches

NUMBERS_AT_ONCE = 2**24
"""How many numbers of patches are unfolded at a time: 64 MiB in float32, 128 MiB in float64."""
CHANNELS_TO_SHIFT = 16
"""From how many channels on products of shifted inputs are quicker than those of patches."""


@register(nn.Conv1d, nn.Conv2d, nn.Conv3d)
class ConvolutionKind(LayerKind):
    """Conv1d/2d/3d with any stride, dilation, padding, padding mode and groups.

    ``d`` is the number of channels in a group times the size of the kernel.
    """

    @property
    def kernel(self) -> tuple[int, ...]:
        return cast(_ConvNd, self.module).kernel_size

    def matrices(self, weight: Tensor) -> Tensor:
        g = cast(_ConvNd, self.module).groups
        return weight.reshape(g, weight.shape[0] // g, -1)

    def rows(self, x: Tensor) -> Tensor:
        return self.patches(x)

    def patches(self, x: Tensor, stride: int | None = None) -> Tensor:
        """Every patch of ``x`` under the kernel, ``[g, n, d]``; ``d`` runs over channels, then over the kernel."""
        conv, axes = cast(_ConvNd, self.module), len(self.kernel)
        strides = self._strides if stride is None else (stride,) * axes
        x = self._padded(x)
        for axis, (size, step, spread) in enumerate(zip(self.kernel, strides, conv.dilation, strict=True)):
            # [..., positions, ..., window], of which a dilated kernel sees every ``spread``-th entry
            x = x.unfold(2 + axis, (size - 1) * spread + 1, step)[..., ::spread]
        channels = conv.in_channels // conv.groups
        x = x.reshape(x.shape[0], conv.groups, channels, *x.shape[2:])  # [batch, g, channels, *positions, *kernel]
        positions, kernel = range(3, 3 + axes), range(3 + axes, 3 + 2 * axes)
        return x.permute(1, 0, *positions, 2, *kernel).flatten(2 + axes).flatten(1, -2)

    def moments(self, x: Tensor) -> list[Moments]:
        """Without unfolding the patches, where they are many and taken at every position."""
        conv, padded = cast(_ConvNd, self.module), self._padded(x)
        channels = conv.in_channels // conv.groups
        reach = (n - (k - 1) * step for n, k, step in zip(padded.shape[2:], self.kernel, conv.dilation, strict=True))
        count = len(padded) * math.prod(reach)
        few = count <= channels * math.prod(self.kernel) or channels < CHANNELS_TO_SHIFT
        if few or any(step != 1 for step in self._strides) or x.dtype == WORKING_DTYPE or x.device.type == "mps":
            return super().moments(x)
        grams = [
            gram_of_patches(part, self.kernel, conv.dilation) for part in torch.split(padded.detach(), channels, dim=1)
        ]
        if not all(bool(torch.isfinite(gram).all()) for gram in grams):
            return super().moments(x)  # says which rows are not finite
        return [Moments(count, relative_rank_floor(x.dtype), gram=gram) for gram in grams]

    @property
    def _strides(self) -> tuple[int, ...]:
        return cast(_ConvNd, self.module).stride

    def _padded(self, x: Tensor) -> Tensor:
        """``x`` as a batch, with its padding."""
        conv = cast(_ConvNd, self.module)
        if x.ndim == len(self.kernel) + 1:  # an unbatched input
            x = x.unsqueeze(0)
        if x.shape[1] != conv.in_channels:
            raise ValueError(f"{self.full_name} takes {conv.in_channels} channels; got inputs {list(x.shape)}.")
        mode = "constant" if conv.padding_mode == "zeros" else conv.padding_mode
        return F.pad(x, conv._reversed_padding_repeated_twice, mode=mode)

    def split(self, x: Tensor) -> Iterator[Tensor]:
        if x.ndim == len(self.kernel) + 1:
            yield x
            return
        numbers = x.shape[1:].numel() * math.prod(self.kernel)
        yield from torch.split(x, max(1, NUMBERS_AT_ONCE // max(1, numbers)))


@register(nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
class TransposedConvolutionKind(ConvolutionKind):
    """ConvTranspose1d/2d/3d: a convolution, at stride 1, of inputs that stand ``stride`` apart with zeros between.

    ``x`` is such an input with its margin, and the kernel is turned round: ``[channels, o, k]`` as ``[g, o, channels
    of a group, −k]``.
    """

    def matrices(self, weight: Tensor) -> Tensor:
        turned, g = weight.flip(list(range(2, weight.ndim))), cast(_ConvNd, self.module).groups
        return turned.reshape(g, -1, *turned.shape[1:]).transpose(1, 2).flatten(2)

    def parameter(self, matrices: Tensor) -> Tensor:
        weight = matrices.reshape(*matrices.shape[:2], -1, *self.kernel).transpose(1, 2).flatten(0, 1)
        return weight.flip(list(range(2, weight.ndim)))

    def call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
        """The input with zeros between and around: what ``output_size`` asks for is a wider margin on one side."""
        conv, axes = cast(Any, self.module), len(self.kernel)
        given = dict(zip(("input", "output_size"), args, strict=False)) | kwargs
        x = given["input"] if given["input"].ndim > axes + 1 else given["input"].unsqueeze(0)
        extra = conv._output_padding(
            x, given.get("output_size"), list(conv.stride), list(conv.padding), list(conv.kernel_size), axes,
            list(conv.dilation),
        )  # fmt: skip
        sizes = [(n - 1) * step + 1 for n, step in zip(x.shape[2:], conv.stride, strict=True)]
        spread = x.new_zeros(*x.shape[:2], *sizes)
        spread[(..., *(slice(None, None, step) for step in conv.stride))] = x
        margins: list[int] = []  # of the last axis first
        for k, dilation, padding, more in zip(self.kernel, conv.dilation, conv.padding, extra, strict=True):
            margin = dilation * (k - 1) - padding
            margins = [margin, margin + more, *margins]
        return F.pad(spread, margins)

    @property
    def _strides(self) -> tuple[int, ...]:
        return (1,) * len(self.kernel)

    def _padded(self, x: Tensor) -> Tensor:
        return x

"""The second moments of all patches of an input, without the patches.

Two columns of patches are channels at two places of the kernel, ``i`` and ``i + p``. Where patches are taken at every
position, their product depends on the shift ``p`` and on the positions ``u`` that the patches reach with ``i``:

    Σ_y x[y + i] x[y + i + p]ᵀ  =  Σ_{u ∈ window(i)} x[u] x[u + p]ᵀ

The windows of all ``i`` overlap but for their margins. Cut at the edges of all windows, every shift needs the product
of each piece once, and a window is a sum of pieces. For a kernel of 3×3 that is a third of the products of patches.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise, product
from typing import NamedTuple

import torch
from torch import Tensor

from codecl.algebra.tolerances import WORKING_DTYPE


class _Piece(NamedTuple):
    """Positions along one axis, and the places of the kernel whose windows contain them."""

    begin: int
    end: int
    places: list[int]


@torch.no_grad()
def gram_of_patches(x: Tensor, kernel: Sequence[int], dilation: Sequence[int]) -> Tensor:
    """``XᵀX`` in float64, ``X`` being the patches of ``x: [batch, channels, *positions]`` at stride 1, without padding.

    Its ``d`` runs over channels, then over the kernel, as that of ``ConvolutionKind.patches``.
    """
    axes, C = len(kernel), x.shape[1]
    lines = x.movedim((0, 1), (-2, -1)).to(WORKING_DTYPE).contiguous()  # [*positions, batch, C]
    reach = [n - (k - 1) * step for n, k, step in zip(x.shape[2:], kernel, dilation, strict=True)]
    G = lines.new_zeros(*kernel, *kernel, C, C)
    for shift in product(*(range(1 - k, k) for k in kernel)):
        if shift < (0,) * axes:  # the transpose of the shift to the other side
            continue
        by_axis = [_pieces(*axis) for axis in zip(kernel, reach, dilation, shift, strict=True)]
        offset = [p * step for p, step in zip(shift, dilation, strict=True)]
        for piece in product(*by_axis):
            S = _shifted_product(lines, piece, offset)
            for i in product(*(along.places for along in piece)):
                j = tuple(a + p for a, p in zip(i, shift, strict=True))
                G[(*i, *j)] += S
                if i != j:
                    G[(*j, *i)] += S.mT
    d = C * math.prod(kernel)
    return G.permute(2 * axes, *range(axes), 2 * axes + 1, *range(axes, 2 * axes)).reshape(d, d)


def _pieces(k: int, reach: int, dilation: int, shift: int) -> list[_Piece]:
    """One axis, cut at the edges of the windows of all places that the shift leaves inside the kernel."""
    windows = {i: (i * dilation, i * dilation + reach) for i in range(k) if 0 <= i + shift < k}
    edges = sorted({edge for window in windows.values() for edge in window})
    cut = [(b, e, [i for i, (begin, end) in windows.items() if begin <= b and e <= end]) for b, e in pairwise(edges)]
    return [_Piece(begin, end, places) for begin, end, places in cut if places]


def _shifted_product(lines: Tensor, piece: Sequence[_Piece], offset: Sequence[int]) -> Tensor:
    """``Σ_u x[u] x[u + offset]ᵀ`` over a piece, ``[C, C]``: line by line, so that nothing is copied."""
    S = lines.new_zeros(lines.shape[-1], lines.shape[-1])
    *outer, last = piece
    for u in product(*(range(along.begin, along.end) for along in outer)):
        there = tuple(a + p for a, p in zip(u, offset, strict=False))
        here, other = lines[u][last.begin : last.end], lines[there][last.begin + offset[-1] : last.end + offset[-1]]
        S.addmm_(here.flatten(0, 1).mT, other.flatten(0, 1))
    return S

"""What a memory takes from a new task, and the few numbers in which the task can keep it.

A gradient ``G = δᵀ X`` loses ``G C`` to a memory ``C``. With ``V: [d, k]`` the directions in which the rows ``X C^½``
lie and ``F = Vᵀ C^½``, the two parts that are learned apart add up to all of it:

    W takes G (I − C),  B takes G Fᵀ        W + B F takes G (I − C) + G C^½ V Vᵀ C^½ = G

because ``G C^½ = δᵀ (X C^½)`` has its rows in the span of ``V``.
"""

from __future__ import annotations

import torch
from torch import Tensor

from codecl.algebra.conceptor import Conceptor
from codecl.algebra.moments import Moments


def taken_factor(C: Conceptor, new: Moments, share: float = 1.0) -> Tensor:
    """``F = Vᵀ C^½``, ``[k, d]``: the fewest directions ``V`` that hold ``share`` of the energy ``‖X C^½‖²``.

    >>> C = Conceptor.fit(torch.tensor([[1.0, 0.0, 0.0]]), aperture=1.0)  # ½ along the first direction
    >>> taken_factor(C, Moments.of(torch.tensor([[1.0, 2.0, 3.0]]))).square()
    tensor([[0.5000, 0.0000, 0.0000]], dtype=torch.float64)
    """
    if C.rest:
        raise ValueError("the negation of a rank-deficient conceptor takes from every row; pass one fitted to rows.")
    if not 0 < share <= 1:
        raise ValueError(f"share must be a part of the energy in (0, 1]; got {share}.")
    half = C.basis * C.singular_values.sqrt()  # C^½ = half · basisᵀ
    if not C.rank:
        return half.mT
    V, sigma = new.through(half).spectrum(reference=new.largest)  # beside the rows themselves, noise is no direction
    enough = len(sigma)
    if share < 1 and enough:
        held = sigma.square().cumsum(0)
        enough = int((held < share * held[-1]).sum()) + 1
    return V[:, :enough].mT @ half.mT


def nearest_in(F: Tensor, D: Tensor) -> Tensor:
    """``B``, ``[o, k]``, with ``B F`` nearest to ``D: [o, d]``."""
    return D.to(F) @ torch.linalg.pinv(F) if F.numel() else D.new_zeros(len(D), len(F), dtype=F.dtype)

"""How likely a row is under a conceptor.

``I − C = a⁻² (R + a⁻² I)⁻¹``, so a conceptor of aperture ``a`` is the Gaussian ``N(0, R + a⁻² I)`` in another notation:

    log p(z) = −½ a² zᵀ (I − C) z − ½ log det(I + Q) + ½ d log(a² / 2π)

Which of several conceptors a row belongs to follows from the factors alone: nothing is inverted, and no ``d × d``
matrix is formed.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from codecl.algebra.conceptor import Conceptor
from codecl.algebra.tolerances import WORKING_DTYPE


def log_density(C: Conceptor, aperture: float, rows: Tensor) -> Tensor:
    """``log p(z)`` of each row ``z``, ``[n, d]`` → ``[n]``; ``C`` was fitted with ``aperture``.

    >>> x = torch.tensor([[1.0, 0.0]])
    >>> bool(log_density(Conceptor.fit(x, 2.0), 2.0, x) > log_density(Conceptor.fit(x.flip(1), 2.0), 2.0, x))
    True
    """
    if C.rest:
        raise ValueError("the negation of a rank-deficient conceptor has no density; pass one that was fitted to rows.")
    z = rows.to(WORKING_DTYPE)
    odds = C.odds
    outside = z.square().sum(1) - (z @ C.factor).square() @ (1 / (1 + odds))  # zᵀ (I − C) z: U √s = F / √(1 + q)
    volume = torch.log1p(odds).sum() - C.dim * math.log(aperture**2 / (2 * math.pi))
    return -(aperture**2 * outside + volume) / 2

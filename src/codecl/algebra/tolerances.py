"""Every numerical tolerance of the project, with its reason.

Decompositions run in float64 whatever the dtype of the data; a result is returned to the model's dtype only
where the training step multiplies with it.
"""

import torch

WORKING_DTYPE = torch.float64

RANK = 8.0
"""A direction counts when its σ exceeds ``RANK · eps · σ_max``, eps being that of the dtype the rows came in.

Rank-deficient float32 rows show noise below 1 eps; the customary ``max(n, d) · eps`` would delete real directions.
"""

INTERSECTION = 1e-6
"""β of Algorithm 2: two directions at angle θ are shared when ``1 − cos θ ≤ β``; 1e-6 is θ ≤ 1.4e-3."""

GRAM_LARGEST = 1e6
"""The sum of σ² up to which the eigenvalues of a Gram matrix stand for them: off by some eps · 1e6, 1e-10 in s."""

GRAM_SPREAD = 1e-5
"""The share of the largest σ² that the smallest must have: directions divided by their σ are orthogonal to 1e-10."""

HARD_ODDS = 2.0**60
"""Finite odds whose s rounds to exactly 1 in float64: 1 + 2⁻⁶⁰ = 1."""

LARGEST_ROOT = 1e150
"""Bounds √q so that q neither overflows nor underflows in float64."""

ORTHONORMAL = 1e-6
"""How far ``UᵀU`` of a basis handed in from outside may be from I, for bases that were stored in float32."""


def relative_rank_floor(dtype: torch.dtype) -> float:
    """The share of σ_max below which a singular value of data of this dtype is noise.

    Half precision counts as float32: what was rounded to it is data like any other, and moments are taken in float32.
    """
    return RANK * min(torch.finfo(dtype).eps, torch.finfo(torch.float32).eps)

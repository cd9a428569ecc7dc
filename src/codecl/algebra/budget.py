"""The aperture at which a memory takes up no more than its share of the room.

With ``C`` the memory, ``F`` the factor of the new inputs at aperture 1 and ``G = (I − C)^½ F = V √b Wᵀ``, the capacity
of the memory joined by the new inputs at aperture ``α`` is

    Θ(α) = Θ(C) + (1/d) Σᵢ wᵢ α² bᵢ / (1 + α² bᵢ),        wᵢ = vᵢᵀ (I − C) vᵢ

because ``(I + Q_C + α² F Fᵀ)⁻¹ = (I − C)^½ (I + α² G Gᵀ)⁻¹ (I − C)^½``. It grows with ``α``, so one decomposition and a
bisection over sums give the aperture of a wanted capacity.
"""

from __future__ import annotations

import torch

from codecl.algebra.conceptor import Conceptor
from codecl.algebra.moments import Moments

HALVINGS = 60
SMALLEST = 1e-6
"""The least aperture: a memory that is full already takes in next to nothing."""


def aperture_within(past: Conceptor | None, new: Moments, room: float, largest: float) -> float:
    """The aperture for ``new``, at most ``largest``, at which ``Θ(past ∨ new)`` is no more than ``room``.

    >>> rows = torch.eye(4)[:2]
    >>> round(aperture_within(None, Moments.of(rows), room=0.25, largest=100.0), 6)  # two of four directions at ½
    1.414214
    """
    if not 0 < room <= 1:
        raise ValueError(f"room must be a share of the input space in (0, 1]; got {room}.")
    F = Conceptor.fit(new, 1.0).factor
    if past is None:
        G, taken = F, 0.0
    else:
        s = past.singular_values
        G = F - past.basis @ ((1 - (1 - s).sqrt()).unsqueeze(1) * (past.basis.mT @ F))
        taken = past.capacity
    V, roots, _ = torch.linalg.svd(G, full_matrices=False)
    b = roots.square()
    inside = (past.basis.mT @ V).square() * past.singular_values.unsqueeze(1) if past is not None else V[:0]
    w = 1 - inside.sum(0)

    def capacity(aperture: float) -> float:
        q = aperture**2 * b
        return taken + float((w * q / (1 + q)).sum()) / F.shape[0]

    if capacity(largest) <= room:
        return largest
    low, high = SMALLEST, largest
    for _ in range(HALVINGS):
        middle = (low * high) ** 0.5
        low, high = (middle, high) if capacity(middle) <= room else (low, middle)
    return low

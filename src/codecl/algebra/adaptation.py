"""Aperture adaptation, which the published implementation of CODE-CL does and the paper does not mention.

The aperture of a conceptor grows by factors of 1.1 until ``Σ‖C x‖ ≥ gain · Σ‖x‖`` over the rows ``x`` it was fitted to.
Their code inverts and decomposes ``C`` at every step; here only the odds change, and one pass over the rows tells the
share that passes after each of many steps.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from codecl.algebra import Conceptor

STEP = 1.1
STEPS_AT_ONCE = 64
MOST_STEPS = 1000
"""The aperture has grown by 1e41 then: what still does not pass is not in the range of C."""

Matrix = tuple[str, int]
SeeRows = Callable[[Callable[[Matrix, Tensor], None]], None]
"""Calls back with the rows, ``[n, d]``, of every matrix, known by weight name and place in the stack."""


def adapt_apertures(fitted: Mapping[Matrix, Conceptor], gain: float, see_rows: SeeRows) -> dict[Matrix, Conceptor]:
    """Each conceptor at the first of its apertures ``a, 1.1 a, 1.21 a, …`` that lets enough of the norm pass."""
    steps = dict.fromkeys(fitted, 0)
    waiting = {matrix for matrix, C in fitted.items() if C.rank}
    while waiting:
        for matrix, shares in _shares_passed(fitted, steps, waiting, see_rows).items():
            enough = (shares >= gain).nonzero()
            steps[matrix] += int(enough[0]) if len(enough) else STEPS_AT_ONCE
            if len(enough) or steps[matrix] > MOST_STEPS:
                waiting.discard(matrix)
    return {matrix: C.adapt(STEP ** steps[matrix]) for matrix, C in fitted.items()}


def _shares_passed(
    fitted: Mapping[Matrix, Conceptor], steps: Mapping[Matrix, int], waiting: set[Matrix], see_rows: SeeRows
) -> dict[Matrix, Tensor]:
    """``Σ‖C x‖ / Σ‖x‖`` after each of the next steps, ``[STEPS_AT_ONCE]``, for every conceptor still waiting."""
    passed: dict[Matrix, Tensor | float] = defaultdict(float)
    total: dict[Matrix, Tensor | float] = defaultdict(float)

    def add(matrix: Matrix, rows: Tensor) -> None:
        if matrix not in waiting:
            return
        C, X = fitted[matrix], rows.double()
        exponents = steps[matrix] + torch.arange(STEPS_AT_ONCE, dtype=torch.float64, device=X.device)
        q = C.odds[:, None] * STEP ** (2 * exponents)  # [k, STEPS_AT_ONCE]
        s = 1 / (1 + 1 / q)
        passed[matrix] += ((X @ C.basis).square() @ s.square()).sqrt().sum(0)
        total[matrix] += torch.linalg.vector_norm(X, dim=1).sum()

    see_rows(add)
    return {matrix: torch.as_tensor(passed[matrix] / total[matrix]) for matrix in waiting}

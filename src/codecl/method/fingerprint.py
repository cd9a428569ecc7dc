"""Whether a model holds the weights that a state was taken with.

A memory describes inputs of the layers as they were. Loaded beside other weights it would protect nothing, and what is
frozen would be held at values of no task.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from codecl.attach import ProtectedWeight

ENTRIES = 4096
"""Of a weight that are looked at, evenly spaced."""
WAVES = 8
APART = 0.02
"""Of the norm of a weight: ten times what bfloat16 rounds, and less than a task moves it."""

Fingerprint = list[float]


def fingerprints(weights: Iterable[ProtectedWeight]) -> dict[str, Fingerprint]:
    """The products of the entries of each weight with a few waves, and their norm."""
    return {weight.name: _fingerprint(weight.parameter) for weight in weights}


@torch.no_grad()
def _fingerprint(W: Tensor) -> Fingerprint:
    flat = W.detach().flatten()
    w = flat[:: max(1, flat.numel() // ENTRIES)][:ENTRIES].double().cpu()
    phase = torch.arange(1, WAVES + 1, dtype=torch.float64).sqrt()  # no two waves are alike
    waves = torch.cos(torch.outer(phase, torch.arange(1, len(w) + 1, dtype=torch.float64)))
    return [*(waves @ w).tolist(), float(w.norm())]


def differing(here: Mapping[str, Fingerprint], theirs: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """By how much of its norm each weight differs that differs by more than ``APART``.

    Entries that differ by ``δ`` give products that differ by about ``‖δ‖ / √2`` each.
    """
    found = {}
    for name in here.keys() & theirs.keys():
        *ours, norm = here[name]
        *others, other_norm = theirs[name]
        squares = sum((a - b) ** 2 for a, b in zip(ours, others, strict=True))
        apart = (2 * squares / WAVES) ** 0.5 / (max(norm, other_norm) or 1.0)
        if not apart <= APART:  # NaN, too
            found[name] = apart
    return found

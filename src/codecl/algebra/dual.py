"""A subspace in the smaller of two bases: its own, or its complement's (DualGPM; Liang, Li, CVPR 2023).

    remove     ∇W ← ∇W − ∇W B Bᵀ        B spans what is protected
    retain     ∇W ← ∇W B′ B′ᵀ           B′ spans all the rest

Both say the same, and the smaller one never has more than d/2 columns.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor

from codecl.algebra.moments import Moments
from codecl.algebra.subspace import EnergyRule, Subspace


@dataclass(frozen=True, eq=False, repr=False)
class DualSubspace:
    """A protected subspace: ``held`` is itself, or everything orthogonal to it if ``retains``. A value."""

    held: Subspace
    retains: bool = False

    @classmethod
    def of(cls, protected: Subspace) -> DualSubspace:
        """``protected`` in the smaller basis, its own if they are equally large."""
        if 2 * protected.rank <= protected.dim:
            return cls(protected)
        return cls(protected.complement(), retains=True)

    @property
    def dim(self) -> int:
        return self.held.dim

    @property
    def protected(self) -> Subspace:
        return self.held.complement() if self.retains else self.held

    def grow(self, rows: Tensor | Moments, energy: float, rule: EnergyRule = "reach") -> DualSubspace:
        """The protected subspace grown as ``Subspace.grow`` does, in whichever basis is smaller then.

        To grow it and to shrink its complement by the same directions are one thing.
        """
        return DualSubspace.of(self.protected.grow(rows, energy, rule))

    def widen(self, dim: int) -> DualSubspace:
        """The same protected subspace among ``dim`` dimensions; nothing is protected in the new ones."""
        B, new = self.held.basis, dim - self.dim
        if new < 0:
            raise ValueError(f"a subspace of dimension {self.dim} cannot be widened to {dim}.")
        if new == 0:
            return self
        if self.retains:
            B = F.pad(B, (0, new, 0, new))
            B[self.dim :, -new:].fill_diagonal_(1)
        else:
            B = F.pad(B, (0, 0, 0, new))
        return DualSubspace(Subspace(B), self.retains)

    def __repr__(self) -> str:
        return f"DualSubspace(d={self.dim}, {'retains' if self.retains else 'removes'} {self.held.rank})"

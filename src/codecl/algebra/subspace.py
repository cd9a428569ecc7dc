"""Hard subspaces, the memory of the GPM family: a conceptor whose singular values are all 1.

Saha et al., *Gradient Projection Memory for Continual Learning* (ICLR 2021), grow the basis until it holds a given
share of the energy of the new rows, and their code counts the share in two ways, both offered here by name:

- ``below``: as many directions as keep the share strictly *below* the threshold (their first task);
- ``reach``: directions are added while the share is below it, so it ends *at or above* (their later tasks).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from codecl.algebra.moments import Moments
from codecl.algebra.tolerances import ORTHONORMAL, WORKING_DTYPE

EnergyRule = Literal["below", "reach"]


@dataclass(frozen=True, eq=False, repr=False)
class Subspace:
    """The span of an orthonormal ``basis``, ``[d, r]``. A value: growing it returns another."""

    basis: Tensor

    def __post_init__(self) -> None:
        B = self.basis.to(WORKING_DTYPE)
        object.__setattr__(self, "basis", B)
        sound = B.ndim == 2 and B.shape[1] <= B.shape[0] and bool(torch.isfinite(B).all())
        if not sound or bool(
            (B.mT @ B - torch.eye(B.shape[1], dtype=B.dtype, device=B.device)).abs().gt(ORTHONORMAL).any()
        ):
            raise ValueError(f"a subspace needs an orthonormal basis [d, r] with r ≤ d; got {list(B.shape)}.")

    @classmethod
    def zero(cls, d: int, device: torch.device | str | None = None) -> Subspace:
        return cls(torch.zeros(d, 0, dtype=WORKING_DTYPE, device=device))

    @classmethod
    def fit(cls, rows: Tensor | Moments, energy: float, rule: EnergyRule = "below") -> Subspace:
        """The leading directions of ``rows`` that hold the share ``energy`` of them."""
        moments = rows if isinstance(rows, Moments) else Moments.of(rows)
        return cls.zero(moments.dim, moments.total.device).grow(moments, energy, rule)

    @property
    def dim(self) -> int:
        return self.basis.shape[0]

    @property
    def rank(self) -> int:
        return self.basis.shape[1]

    def grow(self, rows: Tensor | Moments, energy: float, rule: EnergyRule = "reach") -> Subspace:
        """This subspace and the residual directions of ``rows`` it takes to hold the share ``energy`` of them."""
        if not 0 < energy <= 1:
            raise ValueError(f"energy is a share in (0, 1]; got {energy}.")
        if rule not in ("below", "reach"):
            raise ValueError(f"rule must be 'below' or 'reach'; got {rule!r}.")
        moments = rows if isinstance(rows, Moments) else Moments.of(rows)
        if moments.dim != self.dim:
            raise ValueError(f"a subspace of dimension {self.dim} cannot grow by rows of dimension {moments.dim}.")
        total = moments.total
        if float(total) == 0:
            return self
        outside = moments.without(self.basis)
        U, sigma = outside.spectrum(reference=moments.largest)
        held = 1 - outside.total / total
        shares = held + sigma.square().cumsum(0) / total
        if rule == "reach":  # the share before each direction is added
            shares = torch.cat([held.reshape(1), shares])[:-1]
        return self.extend(U[:, : int((shares < energy).sum())])

    def residual(self, moments: Moments) -> tuple[Tensor, Tensor]:
        """The directions ``U: [d, k]`` of the rows outside this subspace, and their singular values, descending."""
        return moments.without(self.basis).spectrum(reference=moments.largest)

    def extend(self, columns: Tensor) -> Subspace:
        """This subspace and nearly orthonormal ``columns`` beside it, made orthonormal in their order."""
        columns = columns - self.basis @ (self.basis.mT @ columns)
        return Subspace(torch.cat([self.basis, torch.linalg.qr(columns).Q], dim=1))

    def project(self, rows: Tensor) -> Tensor:
        """``X B Bᵀ``: the part of ``rows``, ``[..., d]``, inside."""
        B = self.basis.to(rows.dtype)
        return (rows @ B) @ B.mT

    def remove(self, rows: Tensor) -> Tensor:
        """``X − X B Bᵀ``: the part of ``rows`` outside."""
        return rows - self.project(rows)

    def complement(self) -> Subspace:
        """Everything orthogonal to this subspace."""
        return Subspace(torch.linalg.qr(self.basis, mode="complete").Q[:, self.rank :])

    def overlap(self, other: Subspace) -> float:
        """The mean squared cosine of ``other`` with this subspace: 1 if it lies inside, 0 if orthogonal or empty."""
        if self.dim != other.dim:
            raise ValueError(
                f"cannot compare subspaces of dimension {self.dim} and {other.dim}: they describe different layers."
            )
        return float((self.basis.mT @ other.basis).square().sum()) / max(other.rank, 1)

    def __repr__(self) -> str:
        return f"Subspace(d={self.dim}, rank={self.rank})"

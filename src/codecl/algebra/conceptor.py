"""Conceptors, and their Boolean algebra, as arithmetic on odds.

A conceptor with correlation ``R = XᵀX/n`` and aperture ``a`` is ``C = R (R + a⁻² I)⁻¹`` (equation 2 of the paper).
Its **odds** operator

    Q = C (I − C)⁻¹ = a² R          C = Q (I + Q)⁻¹          s = 1 / (1 + 1/q)

turns the operations of the paper (equations 3–5) into arithmetic in which nothing is inverted:

    C ∨ B    Q_C + Q_B
    C ∧ B    (Q_C⁻¹ + Q_B⁻¹)⁻¹ on the directions that both contain
    ¬C       Q⁻¹
    a → γa   γ² Q

``Q = U diag(q) Uᵀ`` is kept as the factor ``F = U √q``, ``[d, k]``, so no ``d × d`` matrix is ever formed. Outside
the span of ``U`` a conceptor is worth ``rest``: 0, or 1 for the negation of a rank-deficient one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from codecl.algebra.gram import left_vectors, right_vectors
from codecl.algebra.moments import Moments
from codecl.algebra.tolerances import (
    HARD_ODDS,
    INTERSECTION,
    LARGEST_ROOT,
    ORTHONORMAL,
    WORKING_DTYPE,
    relative_rank_floor,
)

NOISE = relative_rank_floor(WORKING_DTYPE)


@dataclass(frozen=True, eq=False, repr=False)
class Conceptor:
    """``C = U s Uᵀ + rest (I − U Uᵀ)``: a soft projector onto the directions that some rows occupied.

    ``factor`` is ``[d, k]``: orthogonal columns of length ``√q``, longest first, ``0 < q < ∞``. A value: no operation
    changes it.
    """

    factor: Tensor
    rest: int = 0

    @classmethod
    def fit(cls, rows: Tensor | Moments, aperture: float) -> Conceptor:
        """Equation 2: the conceptor of ``rows``, ``[n, d]`` or streamed as ``Moments``."""
        _positive("aperture", aperture)
        moments = rows if isinstance(rows, Moments) else Moments.of(rows)
        U, sigma = moments.spectrum()
        return cls._of_roots(U, sigma * (aperture / math.sqrt(moments.count)))

    @classmethod
    def from_spectrum(cls, basis: Tensor, odds: Tensor, rest: int = 0) -> Conceptor:
        """The conceptor with eigenvectors ``basis``, ``[d, k]`` orthonormal, and odds ``[k]``, in any order."""
        if basis.ndim != 2 or odds.shape != basis.shape[1:]:
            raise ValueError(f"basis must be [d, k] and odds [k]; got {list(basis.shape)} and {list(odds.shape)}.")
        if rest not in (0, 1):
            raise ValueError(f"rest must be 0 or 1; got {rest}.")
        if not bool(((odds > 0) & torch.isfinite(odds)).all()):
            raise ValueError(
                "odds must lie strictly between 0 and ∞: s = 0 is left out of the basis, s = 1 is a Subspace."
            )
        U, q = basis.to(WORKING_DTYPE), odds.to(WORKING_DTYPE)
        if not _orthonormal(U):
            raise ValueError("the columns of basis must be orthonormal. Take the Q of torch.linalg.qr(basis).")
        return cls._of_roots(U, q.sqrt(), rest)

    @classmethod
    def zero(cls, d: int, device: torch.device | str | None = None) -> Conceptor:
        """The empty memory: everything is free."""
        return cls(torch.zeros(d, 0, dtype=WORKING_DTYPE, device=device))

    @classmethod
    def identity(cls, d: int, device: torch.device | str | None = None) -> Conceptor:
        """The full memory: nothing is free."""
        return ~cls.zero(d, device)

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor]) -> Conceptor:
        """The conceptor that ``tensors()`` described, to the last bit."""
        if set(tensors) != {"factor", "rest"}:
            raise ValueError(f"a stored conceptor has the tensors 'factor' and 'rest'; got {sorted(tensors)}.")
        factor, rest = tensors["factor"], tensors["rest"]
        if factor.ndim != 2 or factor.dtype != WORKING_DTYPE or rest.ndim != 0 or rest.item() not in (0, 1):
            raise ValueError(
                f"not a stored conceptor: factor {factor.dtype} {list(factor.shape)}, rest {rest.tolist()}."
            )
        stored = cls(factor, int(rest))
        if not bool((stored.odds > 0).all()) or not _orthonormal(stored.basis):
            raise ValueError("not a stored conceptor: the columns of factor must be orthogonal, finite and not 0.")
        return stored

    def tensors(self) -> dict[str, Tensor]:
        """Plain tensors that say everything, for saving."""
        return {"factor": self.factor, "rest": torch.tensor(self.rest)}

    @property
    def dim(self) -> int:
        return self.factor.shape[0]

    @property
    def rank(self) -> int:
        return self.factor.shape[1]

    @property
    def odds(self) -> Tensor:
        """``q = s / (1 − s)`` of each basis direction, ``[k]``."""
        return self.factor.square().sum(0)

    @property
    def basis(self) -> Tensor:
        """``U``, ``[d, k]``: the orthonormal directions whose value is not ``rest``."""
        return self.factor / self.odds.sqrt()

    @property
    def singular_values(self) -> Tensor:
        """``s`` of each basis direction, ``[k]``; the other ``d − k`` are ``rest``."""
        return 1 / (1 + 1 / self.odds)

    @property
    def capacity(self) -> float:
        """``Θ(C)``, equation 6: the mean singular value, 0 empty and 1 full."""
        return (float(self.singular_values.sum()) + self.rest * (self.dim - self.rank)) / self.dim

    def dense(self) -> Tensor:
        """``C`` as a ``[d, d]`` matrix, for looking at; nothing here needs it."""
        U = self.basis
        if self.rest == 0:
            return (U * self.singular_values) @ U.mT
        return torch.eye(self.dim, dtype=U.dtype, device=U.device) - (U / (1 + self.odds)) @ U.mT

    def __invert__(self) -> Conceptor:
        """``¬C = I − C`` (equation 3): ``Q⁻¹``."""
        return Conceptor((self.factor / self.odds).flip(1), 1 - self.rest)

    def __or__(self, other: Conceptor) -> Conceptor:
        """``C ∨ B`` (equation 5): ``Q_C + Q_B``, from the singular values and left vectors of ``[F_C, F_B]``.

        A direction whose ``√q`` is below ``8 eps`` of the largest is noise of the SVD and left out: where the odds of
        one operand are 1e30 times those of the other, so is all that the other has beside it.
        """
        if not isinstance(other, Conceptor):
            return NotImplemented
        self._same_dimension("OR", other)
        if self.rest or other.rest:
            return ~(~self & ~other)
        factors = torch.cat([self.factor, other.factor], dim=1)
        roots, U = right_vectors(factors.mT) if factors.shape[1] > self.dim else left_vectors(factors)
        return Conceptor._of_roots(U, roots, floor=NOISE)

    def __and__(self, other: Conceptor) -> Conceptor:
        """``C ∧ B`` (equation 4 and its general form in the supplement): what both contain."""
        if not isinstance(other, Conceptor):
            return NotImplemented
        return self.meet(other)

    def meet(self, other: Conceptor, tolerance: float = INTERSECTION) -> Conceptor:
        """``C ∧ B = D (Dᵀ (C† + B† − I) D)⁻¹ Dᵀ``, which on the odds is ``Q⁻¹ = Dᵀ (Q_C† + Q_B†) D``.

        ``D`` spans the directions that both contain; ``tolerance`` is the β of Algorithm 2.
        """
        self._same_dimension("AND", other)
        if self.rest and other.rest:
            return ~(~self | ~other)
        D = self._shared_directions(other, tolerance)
        halves = [(c.basis.mT @ D) / c.odds.sqrt().unsqueeze(1) for c in (self, other)]
        sigma, V = right_vectors(torch.cat(halves))
        return Conceptor._of_roots((D @ V).flip(1), (1 / sigma).flip(0), floor=NOISE)

    def adapt(self, gamma: float) -> Conceptor:
        """The same conceptor at ``γ`` times its aperture: ``γ² Q``."""
        _positive("gamma", gamma)
        return Conceptor._of_roots(self.basis, self.odds.sqrt() * gamma, self.rest)

    def cut(self, minimum: float) -> Conceptor:
        """Singular values below ``minimum`` become 0."""
        if not 0 <= minimum <= 1:
            raise ValueError(f"a singular value lies in [0, 1], and so must the minimum to keep; got {minimum}.")
        if minimum == 0 or bool((keep := self.singular_values >= minimum).all()):
            return self
        if self.rest == 0:
            return Conceptor(self.factor[:, keep])
        # Values 0, s and 1 beside each other: write the 1s out, with odds so high that s is exactly 1.
        ones = self._outside() * math.sqrt(HARD_ODDS)
        return Conceptor(torch.cat([ones, self.factor[:, keep]], dim=1))

    def top(self, k: int) -> Tensor:
        """The ``k`` directions of largest singular value, ``[d, min(k, how many are not 0)]``."""
        if k < 0:
            raise ValueError(f"k must not be negative; got {k}.")
        directions = torch.cat([self._outside(), self.basis], dim=1) if self.rest else self.basis
        return directions[:, :k]

    def similarity(self, other: Conceptor) -> float:
        """``tr(C B) / (‖C‖ ‖B‖)``: 1 for equal conceptors, 0 for orthogonal ones and for an empty one."""
        self._same_dimension("compare", other)
        norms = math.sqrt(self._inner(self) * other._inner(other))
        return self._inner(other) / norms if norms > 0 else 0.0

    def __repr__(self) -> str:
        return f"Conceptor(d={self.dim}, rank={self.rank}, rest={self.rest}, capacity={self.capacity:.4g})"

    @classmethod
    def _of_roots(cls, U: Tensor, roots: Tensor, rest: int = 0, floor: float = 0.0) -> Conceptor:
        """``√q`` along orthonormal ``U``, sorted; what differs from ``rest`` by no more than ``floor`` is left out."""
        if roots.numel() == 0:
            return cls(U, rest)
        roots, order = roots.clamp(1 / LARGEST_ROOT, LARGEST_ROOT).sort(descending=True, stable=True)
        weight = 1 / roots if rest else roots
        keep = weight > max(1 / LARGEST_ROOT, floor * float(weight.max()))
        return cls(U[:, order[keep]] * roots[keep], rest)

    def _shared_directions(self, other: Conceptor, tolerance: float) -> Tensor:
        """``D``, ``[d, m]``: Algorithm 2 by principal angles between the two ranges."""
        if other.rest:
            return self.basis
        if self.rest or self.rank == self.dim:
            return other.basis
        if other.rank == self.dim:
            return self.basis
        A, B = self.basis, other.basis
        Y, cosine, Zt = torch.linalg.svd(A.mT @ B, full_matrices=False)
        a, b = A @ Y, B @ Zt.mT
        sine = torch.linalg.vector_norm(b - a * cosine, dim=0)
        shared = sine.square() / (1 + cosine) <= tolerance  # 1 − cos θ, free of cancellation
        return F.normalize((a + b)[:, shared], dim=0)

    def _outside(self) -> Tensor:
        """An orthonormal basis of the complement of ``U``, ``[d, d − k]``."""
        Q: Tensor = torch.linalg.qr(self.basis, mode="complete").Q
        return Q[:, self.rank :]

    def _inner(self, other: Conceptor) -> float:
        """``tr(C B)``, each written as ``rest · I + U diag(s − rest) Uᵀ``."""
        # A full basis leaves nothing to the rest: adding and subtracting it would drown small s in rounding.
        r, p = (c.rest if c.rank < c.dim else 0 for c in (self, other))
        mine, its = self.singular_values - r, other.singular_values - p
        cosines = (self.basis.mT @ other.basis).square()
        flat = r * p * self.dim + r * its.sum() + p * mine.sum()
        return float(mine @ cosines @ its + flat)

    def _same_dimension(self, verb: str, other: Conceptor) -> None:
        if self.dim != other.dim:
            raise ValueError(
                f"cannot {verb} a conceptor of dimension {self.dim} with one of dimension {other.dim}: "
                "they describe different layers."
            )


def _orthonormal(U: Tensor) -> bool:
    identity = torch.eye(U.shape[1], dtype=U.dtype, device=U.device)
    return bool((U.mT @ U - identity).abs().le(ORTHONORMAL).all())


def _positive(name: str, value: float) -> None:
    if not (math.isfinite(value) and value > 0):
        raise ValueError(f"{name} must be a finite number above 0; got {value}.")

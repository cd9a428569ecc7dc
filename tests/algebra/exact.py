"""The paper's formulas in exact rational arithmetic, for odds at which float64 matrices are worthless.

At odds of 1e±14 a float64 ``C`` has lost the small ones before any formula sees them. A float is a rational number,
though, so equations 3–5 and the general AND can be evaluated without any rounding; only small ``d`` is affordable.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import torch
from torch import Tensor

Matrix = list[list[Fraction]]


def of(tensor: Tensor) -> Matrix:
    return [[Fraction(x) for x in row] for row in tensor.tolist()]


def to_float(a: Matrix) -> Tensor:
    return torch.tensor([[float(x) for x in row] for row in a], dtype=torch.float64)


def identity(d: int) -> Matrix:
    return [[Fraction(int(i == j)) for j in range(d)] for i in range(d)]


def transpose(a: Matrix) -> Matrix:
    return [list(column) for column in zip(*a, strict=True)]


def add(a: Matrix, b: Matrix, sign: int = 1) -> Matrix:
    return [[x + sign * y for x, y in zip(r, s, strict=True)] for r, s in zip(a, b, strict=True)]


def product(*factors: Matrix) -> Matrix:
    result = factors[0]
    for b in factors[1:]:
        columns = transpose(b)
        result = [[sum(x * y for x, y in zip(row, c, strict=True)) for c in columns] for row in result]
    return result


def inverse(a: Matrix) -> Matrix:
    """Gauss–Jordan; the matrices here are positive definite, so no pivot is zero."""
    n = len(a)
    rows = [row + unit for row, unit in zip(a, identity(n), strict=True)]
    for i in range(n):
        pivot = rows[i][i]
        rows[i] = [x / pivot for x in rows[i]]
        for j in range(n):
            if j != i and rows[j][i]:
                scale = rows[j][i]
                rows[j] = [x - scale * y for x, y in zip(rows[j], rows[i], strict=True)]
    return [row[n:] for row in rows]


@dataclass(frozen=True)
class Exact:
    """A conceptor by its range and its odds there; ``rest`` outside."""

    U: Matrix
    q: list[Fraction]
    rest: int

    @property
    def dim(self) -> int:
        return len(self.U)

    def negation(self) -> Exact:
        return Exact(self.U, [1 / q for q in self.q], 1 - self.rest)

    def _odds(self) -> Matrix:
        return product([[u * q for u, q in zip(row, self.q, strict=True)] for row in self.U], transpose(self.U))

    def matrix(self) -> Matrix:
        """``C = Q (I + Q)⁻¹``, or equation 3 where the rest is 1."""
        if not self.q:
            return [[self.rest * x for x in row] for row in identity(self.dim)]
        if self.rest:
            return add(identity(self.dim), self.negation().matrix(), -1)
        Q = self._odds()
        return product(Q, inverse(add(identity(self.dim), Q)))

    def pseudo_inverse(self) -> Matrix:
        """``C†``: the inverse if there is one, else ``U (UᵀU)⁻¹ K⁻¹ (UᵀU)⁻¹ Uᵀ`` where ``C = U K Uᵀ``."""
        C = self.matrix()
        if self.rest or len(self.q) == self.dim:
            return inverse(C)
        if not self.q:
            return C
        left = product(self.U, inverse(product(transpose(self.U), self.U)))  # U (UᵀU)⁻¹, so leftᵀ C left = K
        K = product(transpose(left), C, left)
        return product(left, inverse(K), transpose(left))


def conjoin(A: Exact, B: Exact, shared: Matrix) -> Matrix:
    """The general AND. ``shared`` is any basis of what two ranges with ``rest = 0`` have in common."""
    if A.rest and B.rest:
        D = identity(A.dim)
    elif A.rest or B.rest:
        D = B.U if A.rest else A.U
    else:
        D = shared
    if not D[0]:
        return Exact(D, [], 0).matrix()
    inner = add(add(A.pseudo_inverse(), B.pseudo_inverse()), identity(A.dim), -1)
    return product(D, inverse(product(transpose(D), inner, D)), transpose(D))


def disjoin(A: Exact, B: Exact, shared: Matrix) -> Matrix:
    """Equation 5."""
    return add(identity(A.dim), conjoin(A.negation(), B.negation(), shared), -1)

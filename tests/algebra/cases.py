"""Drawn conceptors: hypothesis draws the shape of a case and a seed, a generator makes the tensors from it."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from hypothesis import assume
from hypothesis import strategies as st
from torch import Tensor

from codecl.algebra import Conceptor
from tests.algebra import dense, exact

EPS = torch.finfo(torch.float64).eps

MILD = 2.0
"""Odds in 1e-2 … 1e2, where the dense formulas hold 12 digits."""
MILD_ATOL = 1e-12

WIDE = 14.0
"""Odds in 1e-14 … 1e14, within one operand."""
WIDE_ATOL = 16 * EPS * 10 ** (WIDE / 2)
"""3.6e-8. An SVD of factors is off by a few eps · σ_max, σ_max = √q = 1e7, and C is off by no more than its
factor is: for ``C = I − (I + F Fᵀ)⁻¹``, ``‖dC‖ ≤ ‖dF‖``, because ``‖Fᵀ (I + F Fᵀ)⁻¹‖ ≤ ½``."""

seeds = st.integers(0, 2**31 - 1)
dims = st.one_of(st.integers(1, 12), st.just(40))
rests = st.integers(0, 1)


@dataclass(frozen=True)
class Operand:
    """What a conceptor is made of, for the reference to start from."""

    basis: Tensor
    odds: Tensor
    rest: int

    @property
    def conceptor(self) -> Conceptor:
        return Conceptor.from_spectrum(self.basis, self.odds, self.rest)

    @property
    def matrix(self) -> Tensor:
        return dense.matrix(self.basis, self.odds, self.rest)

    @property
    def exact(self) -> exact.Exact:
        return exact.Exact(exact.of(self.basis), [exact.Fraction(q) for q in self.odds.tolist()], self.rest)


@dataclass(frozen=True)
class Pair:
    """Two operands, and directions that both of their bases span by construction."""

    A: Operand
    B: Operand
    shared: Tensor


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def normal(g: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=g, dtype=torch.float64)


def orthonormal(g: torch.Generator, d: int, k: int, beside: Tensor | None = None) -> Tensor:
    """``k`` random orthonormal columns, orthogonal to those of ``beside``."""
    M = normal(g, d, k)
    if beside is None:
        return torch.linalg.qr(M).Q
    return torch.linalg.qr(torch.cat([beside, M], dim=1)).Q[:, beside.shape[1] :]


def rotated(g: torch.Generator, basis: Tensor) -> Tensor:
    """Another orthonormal basis of the same span, so that no eigenvector gives the shared directions away."""
    return basis @ orthonormal(g, basis.shape[1], basis.shape[1])


def log_uniform(g: torch.Generator, k: int, decades: float) -> Tensor:
    """``k`` numbers in 10^±decades; with more than one, both ends are among them if the range is wide."""
    exponents = (2 * torch.rand(k, generator=g, dtype=torch.float64) - 1) * decades
    if decades > MILD and k > 1:
        exponents[:2] = torch.tensor([-decades, decades], dtype=torch.float64)
    return 10**exponents


@st.composite
def operands(draw, decades: float = MILD, dims: st.SearchStrategy[int] = dims) -> Operand:
    """One conceptor of any rank."""
    d, g = draw(dims), generator(draw(seeds))
    k = draw(st.integers(0, d))
    return Operand(orthonormal(g, d, k), log_uniform(g, k, decades), draw(rests))


@st.composite
def families(draw, count: int, decades: float = MILD) -> list[Operand]:
    """Operands whose ranges are spanned by subsets of one hidden basis: nested, equal, disjoint or crossing."""
    d, g = draw(dims), generator(draw(seeds))
    E = orthonormal(g, d, d)
    result = []
    for _ in range(count):
        chosen = sorted(draw(st.sets(st.integers(0, d - 1))))
        U = rotated(g, E[:, chosen])
        result.append(Operand(U, log_uniform(g, len(chosen), decades), draw(rests)))
    return result


@st.composite
def pairs(draw, decades: float = MILD, dims: st.SearchStrategy[int] = dims, margin: float = 1e-3) -> Pair:
    """Two ranges that share ``m`` directions exactly and are at random angles otherwise (``m = 0``: generic).

    No further directions of one: nested ranges; of neither: equal ranges. Where ``d`` has no room for all of them,
    generic ranges cross in more than ``m`` directions; wide odds leave that out, as ``shared`` must then be exact.
    Directions that are not shared stay ``margin`` away (``1 − cos θ``): the shared ones are determined to
    eps / margin.
    """
    d, g = draw(dims), generator(draw(seeds))
    m = draw(st.integers(0, d))
    a, b = draw(st.integers(0, d - m)), draw(st.integers(0, d - m))
    if decades > MILD:
        b = min(b, d - m - a)
    S = orthonormal(g, d, m)
    A, B = (
        Operand(
            rotated(g, torch.cat([S, orthonormal(g, d, k, S)], dim=1)),
            log_uniform(g, m + k, decades),
            draw(rests),
        )
        for k in (a, b)
    )
    cosines = torch.linalg.svdvals(A.basis.mT @ B.basis)
    together = m + max(0, a + b - (d - m))
    assume(bool((1 - cosines[together:] > margin).all()))
    return Pair(A, B, S)


@st.composite
def aligned_pairs(draw, decades: float = WIDE, dims: st.SearchStrategy[int] = dims) -> tuple[Operand, Operand, Tensor]:
    """Two operands with the same eigenvectors, and those, ``[d, d]``: results are known by direction."""
    d, g = draw(dims), generator(draw(seeds))
    E = orthonormal(g, d, d)
    result = []
    for _ in range(2):
        chosen = sorted(draw(st.sets(st.integers(0, d - 1))))
        result.append(Operand(E[:, chosen], log_uniform(g, len(chosen), decades), draw(rests)))
    return result[0], result[1], E


@st.composite
def row_sets(draw, dims: st.SearchStrategy[int] = dims) -> Tensor:
    """Rows ``[n, d]``, fewer or more than ``d``, often rank-deficient."""
    d, g = draw(dims), generator(draw(seeds))
    n = draw(st.integers(1, 2 * d + 3))
    r = draw(st.integers(1, d))
    return normal(g, n, r) @ normal(g, r, d) / math.sqrt(r)


def assert_matrix(got: Conceptor | Tensor, expected: Tensor, atol: float = MILD_ATOL) -> None:
    matrix = got.dense() if isinstance(got, Conceptor) else got
    torch.testing.assert_close(matrix, expected, rtol=0, atol=atol)

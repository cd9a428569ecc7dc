"""Every operation on conceptors against the paper's formulas: dense for mild odds, exact for wide ones."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from codecl.algebra import Conceptor, Moments
from tests.algebra import dense, exact
from tests.algebra.cases import (
    EPS,
    MILD_ATOL,
    WIDE,
    WIDE_ATOL,
    Operand,
    aligned_pairs,
    assert_matrix,
    generator,
    log_uniform,
    normal,
    operands,
    orthonormal,
    pairs,
    rests,
    rotated,
    row_sets,
    seeds,
)

apertures = st.sampled_from([0.1, 1.0, 6.0, 10.0])
gammas = st.sampled_from([0.03, 0.5, 1.0, 1.1, 20.0])
small = st.integers(1, 4)
wide_operands = operands(WIDE)
wide_pairs = pairs(WIDE, small, margin=0.2)


def odds_matrix(C: Conceptor) -> torch.Tensor:
    return (C.basis * C.odds) @ C.basis.mT


# Fitting


@given(row_sets(), apertures)
def test_fit_is_equation_2(X, aperture):
    C = Conceptor.fit(X, aperture)
    assert_matrix(C, dense.fit(X, aperture), atol=dense.fit_atol(X, aperture))
    assert C.rest == 0
    assert C.rank == torch.linalg.matrix_rank(X)


@given(row_sets(), apertures)
def test_fit_of_float32_rows_is_equation_2_of_those_rows(X, aperture):
    X = X.float()
    # What is cut off has σ ≤ 8 eps σ_max, and s = a² σ² / n at most: 1e-12 of a² R.
    assert_matrix(Conceptor.fit(X, aperture), dense.fit(X, aperture), atol=300 * dense.fit_atol(X, aperture))


@given(row_sets(), apertures)
def test_fit_of_moments_is_the_fit_of_the_rows(X, aperture):
    C = Conceptor.fit(Moments.of(X), aperture)
    assert_matrix(C, dense.fit(X, aperture), atol=dense.fit_atol(X, aperture))


@given(st.integers(1, 12), st.integers(0, 30), seeds)
def test_fit_of_rows_with_wide_odds(d, more, seed):
    """Rows built to have odds 1e-14 … 1e14 at aperture 1, as many as dimensions and more, of full rank or not."""
    g = generator(seed)
    k, n = max(1, d - more % 3), d + more
    U, q = orthonormal(g, d, k), log_uniform(g, k, WIDE)
    X = math.sqrt(n) * (orthonormal(g, n, k) * q.sqrt()) @ U.mT
    assert_matrix(Conceptor.fit(X, 1.0), dense.matrix(U, q, 0), atol=WIDE_ATOL)


@given(row_sets(), st.sampled_from([1e-20, 1e20]), st.sampled_from([torch.float32, torch.float64]))
def test_fit_at_uniform_scales(X, scale, dtype):
    """The odds are ``a² R``: rows on another scale have other odds, to the same number of digits."""
    X = X.to(dtype)
    scaled = X * scale
    Q, expected = Conceptor.fit(scaled, 1.0), scaled.double()
    R = expected.mT @ expected / len(X)
    torch.testing.assert_close(odds_matrix(Q) / scale**2, R / scale**2, rtol=0, atol=1e-11)
    assert_matrix(Conceptor.fit(scaled, 2 / scale), dense.fit(scaled.double() / scale, 2.0), atol=1e-10)


def test_rank_is_cut_at_the_noise_of_the_dtype_the_rows_came_in():
    """Directions at 1e-5 of the largest survive (max(n, d) · eps would delete them); rounding noise does not."""
    g = generator(0)
    d, n, k = 40, 5000, 12
    sigma = torch.logspace(0, -5, k, dtype=torch.float64)
    U = orthonormal(g, d, k)
    X = math.sqrt(n) * (orthonormal(g, n, k) * sigma) @ U.mT
    for rows in (X.float(), X):
        C = Conceptor.fit(rows, 1.0)
        assert C.rank == k
        torch.testing.assert_close(C.odds.sqrt(), sigma, rtol=2e-2 if rows.dtype == torch.float32 else 1e-9, atol=0)
    rounded = (normal(g, n, k) @ normal(g, k, d)).float()  # rank k but for the rounding
    assert Conceptor.fit(rounded, 1.0).rank == k
    assert Conceptor.fit(rounded[: d - 5], 1.0).rank == k


# One operand


@given(operands())
def test_dense(A):
    assert_matrix(A.conceptor, A.matrix, atol=16 * EPS)


@given(wide_operands)
def test_spectrum(A):
    """``basis``, ``odds`` and ``singular_values`` are what the conceptor was made of, largest first."""
    C = A.conceptor
    order = A.odds.argsort(descending=True)
    q = A.odds[order]
    torch.testing.assert_close(C.odds, q, rtol=16 * EPS, atol=0)
    torch.testing.assert_close(C.basis, A.basis[:, order], rtol=0, atol=16 * EPS)
    torch.testing.assert_close(C.singular_values, q / (1 + q), rtol=16 * EPS, atol=0)
    assert (C.dim, C.rank, C.rest) == (len(A.basis), len(q), A.rest)


@given(operands())
def test_not_is_equation_3(A):
    assert_matrix(~A.conceptor, dense.negate(A.matrix))


@given(wide_operands)
def test_not_with_wide_odds(A):
    """``1 − s`` is computed without subtracting: the odds keep all their digits."""
    C = ~A.conceptor
    torch.testing.assert_close(C.odds, (1 / A.odds).sort(descending=True).values, rtol=32 * EPS, atol=0)
    assert_matrix(C, dense.negate(A.matrix), atol=32 * EPS)
    assert C.rest == 1 - A.rest


@given(operands(), gammas)
def test_adapt_is_the_aperture_formula(A, gamma):
    assert_matrix(A.conceptor.adapt(gamma), dense.adapt(A.matrix, gamma), atol=1e-11)


@given(wide_operands, st.sampled_from([1e-10, 0.3, 7.0, 1e10]))
def test_adapt_with_wide_odds(A, gamma):
    adapted = A.conceptor.adapt(gamma)
    torch.testing.assert_close(adapted.odds, gamma**2 * A.conceptor.odds, rtol=32 * EPS, atol=0)
    assert_matrix(adapted.basis, A.conceptor.basis, atol=32 * EPS)
    assert adapted.rest == A.rest


@given(row_sets(), apertures, gammas)
def test_adapt_is_the_fit_at_the_other_aperture(X, aperture, gamma):
    adapted = Conceptor.fit(X, aperture).adapt(gamma)
    assert_matrix(adapted, Conceptor.fit(X, gamma * aperture).dense())


@given(operands())
def test_capacity_is_equation_6(A):
    assert A.conceptor.capacity == pytest.approx(dense.capacity(A.matrix), abs=MILD_ATOL)


@given(operands(), st.sampled_from([0.0, 0.2, 0.5, 0.9, 0.999]))
def test_cut(A, minimum):
    C = A.conceptor.cut(minimum)
    assert_matrix(C, dense.cut(A.matrix, minimum))
    assert_matrix(~C, dense.negate(dense.cut(A.matrix, minimum)))


def test_cut_keeps_the_value_it_is_given():
    """*Below* is strict: s = 0.5 stays at minimum 0.5, and the rest stays at minimum 1."""
    C = Conceptor.from_spectrum(torch.eye(3)[:, :2], torch.tensor([1.0, 0.25]), rest=1)
    assert_matrix(C.cut(0.5), torch.diag(torch.tensor([0.5, 0.0, 1.0], dtype=torch.float64)), atol=0)
    assert_matrix(C.cut(1.0), torch.diag(torch.tensor([0.0, 0.0, 1.0], dtype=torch.float64)), atol=0)


@given(operands(), st.integers(0, 50))
def test_top(A, k):
    """The columns are orthonormal eigenvectors with the ``k`` largest values, largest first."""
    U = A.conceptor.top(k)
    values = torch.linalg.svdvals(A.matrix)
    m = min(k, int((values > 1e-3).sum()))
    assert_matrix(U.mT @ A.matrix @ U, torch.diag(values[:m]))
    assert_matrix(U.mT @ U, dense.identity(m))


@given(operands(), st.booleans())
def test_tensors_round_trip_to_the_last_bit(tmp_path_factory, A, through_a_file):
    C = A.conceptor
    tensors = C.tensors()
    if through_a_file:
        path = tmp_path_factory.mktemp("tensors") / "conceptor.pt"
        torch.save(tensors, path)
        tensors = torch.load(path, weights_only=True)
    again = Conceptor.from_tensors(tensors)
    assert torch.equal(again.factor, C.factor)
    assert again.factor.dtype == C.factor.dtype
    assert type(again.rest) is int
    assert again.rest == C.rest


def test_repr_says_what_it_is():
    assert repr(Conceptor.identity(3)) == "Conceptor(d=3, rank=0, rest=1, capacity=1)"


# Two operands


@given(pairs())
def test_and_is_the_general_and(pair):
    assert_matrix(pair.A.conceptor & pair.B.conceptor, dense.conjoin(pair.A.matrix, pair.B.matrix), atol=1e-11)


@given(pairs())
def test_or_is_equation_5(pair):
    assert_matrix(pair.A.conceptor | pair.B.conceptor, dense.disjoin(pair.A.matrix, pair.B.matrix), atol=1e-11)


@given(st.integers(1, 12), st.tuples(rests, rests), seeds)
def test_and_is_equation_4_where_both_are_invertible(d, rests, seed):
    g = generator(seed)
    A, B = (Operand(orthonormal(g, d, d), log_uniform(g, d, 2.0), rest) for rest in rests)
    assert_matrix(A.conceptor & B.conceptor, dense.conjoin_invertible(A.matrix, B.matrix))


@given(wide_pairs)
def test_and_with_wide_odds(pair):
    expected = exact.conjoin(pair.A.exact, pair.B.exact, exact.of(pair.shared))
    assert_matrix(pair.A.conceptor & pair.B.conceptor, exact.to_float(expected), atol=WIDE_ATOL)


@given(wide_pairs)
def test_or_with_wide_odds(pair):
    expected = exact.disjoin(pair.A.exact, pair.B.exact, exact.of(pair.shared))
    assert_matrix(pair.A.conceptor | pair.B.conceptor, exact.to_float(expected), atol=WIDE_ATOL)


def values_along(E: torch.Tensor, A: Operand) -> torch.Tensor:
    """The odds of ``A`` along each column of its eigenbasis ``E``: 0 and ∞ outside, by ``rest``."""
    inside = (E.mT @ A.basis).abs() > 0.5
    outside = torch.tensor(math.inf if A.rest else 0.0, dtype=torch.float64)
    return torch.where(inside.any(1), inside.double() @ A.odds, outside)


@given(aligned_pairs())
def test_and_or_with_wide_odds_and_common_eigenvectors(case):
    """Along each direction the algebra is that of numbers: q + p, and 1 / (1/q + 1/p), 0 and ∞ included."""
    A, B, E = case
    q, p = values_along(E, A), values_along(E, B)
    s_or, s_and = 1 / (1 + 1 / (q + p)), 1 / (1 + (1 / q + 1 / p))
    assert_matrix(A.conceptor | B.conceptor, (E * s_or) @ E.mT, atol=WIDE_ATOL)
    assert_matrix(A.conceptor & B.conceptor, (E * s_and) @ E.mT, atol=WIDE_ATOL)


@given(pairs(), st.sampled_from([1e-20, 1e20]))
def test_and_or_at_uniform_scales(pair, scale):
    """Scaling all odds scales those of the result: as many digits at 1e±20 as at 1."""
    A, B = pair.A.conceptor, pair.B.conceptor
    for operation in (Conceptor.__or__, Conceptor.__and__):
        expected = operation(A, B)
        got = operation(A.adapt(math.sqrt(scale)), B.adapt(math.sqrt(scale)))
        assert (got.rank, got.rest) == (expected.rank, expected.rest)
        assert_matrix(odds_matrix(got) / scale, odds_matrix(expected), atol=1e-8)
        assert_matrix(odds_matrix(~got) * scale, odds_matrix(~expected), atol=1e-8)


@given(pairs())
def test_similarity_is_the_cosine_of_the_matrices(pair):
    expected = dense.similarity(pair.A.matrix, pair.B.matrix)
    got = pair.A.conceptor.similarity(pair.B.conceptor)
    empty = any(float(C.matrix.abs().sum()) == 0 for C in (pair.A, pair.B))
    assert got == pytest.approx(0.0 if empty else expected, abs=MILD_ATOL)


@given(operands(WIDE))
def test_similarity_with_itself_is_1_with_wide_odds(A):
    C = A.conceptor
    assert C.similarity(C) == pytest.approx(float(C.rank > 0 or C.rest == 1), abs=1e-12)


@pytest.mark.parametrize("rest", [0, 1])
def test_similarity_of_conceptors_with_small_values_only(rest):
    """Full rank leaves nothing to the rest, whichever it is."""
    U = orthonormal(generator(1), 6, 6)
    q = torch.logspace(-14, -12, 6, dtype=torch.float64)
    A = Conceptor.from_spectrum(U, q, rest)
    B = Conceptor.from_spectrum(U, q.flip(0), rest)
    assert A.similarity(A) == pytest.approx(1.0, abs=1e-12)
    assert A.similarity(B) == pytest.approx(float((q * q.flip(0)).sum() / q.square().sum()), rel=1e-9)


# The shared directions of Algorithm 2


def line(theta: float, odds: float = 4.0) -> Operand:
    direction = torch.tensor([[math.cos(theta)], [math.sin(theta)], [0.0]], dtype=torch.float64)
    return Operand(direction, torch.tensor([odds], dtype=torch.float64), 0)


@pytest.mark.parametrize("beta", [1e-6, 1e-3, 0.1])
@pytest.mark.parametrize(("share", "rank"), [(0.9, 1), (1.1, 0)])
def test_beta_is_one_minus_the_cosine(beta, share, rank):
    """Both sides of the threshold, decided as Algorithm 2 decides them.

    A shared direction lies in neither range exactly. The paper's ``C† + B† − I`` then counts cos θ where the odds
    count 1: the two differ by up to β.
    """
    A, B = line(0.0), line(math.acos(1 - share * beta), 3.0)
    D = dense.intersection(A.matrix, B.matrix, beta)
    met = A.conceptor.meet(B.conceptor, tolerance=beta)
    assert met.rank == D.shape[1] == rank
    assert_matrix(met, dense.conjoin(A.matrix, B.matrix, beta), atol=2 * beta)
    assert_matrix(met.basis @ met.basis.mT, D @ D.mT, atol=1e-8)
    if beta == 1e-6:
        assert (A.conceptor & B.conceptor).rank == rank


@pytest.mark.parametrize(("theta", "rank"), [(0.0, 1), (1e-9, 1), (2e-9, 0), (1e-8, 0)])
def test_angles_are_resolved_below_the_rounding_of_their_cosine(theta, rank):
    """1 − cos θ = 5e-19 at θ = 1e-9 and 2e-18 at 2e-9: both cosines are 1 in float64, the sines are not 0."""
    A, B = line(0.0).conceptor, line(theta).conceptor
    assert A.meet(B, tolerance=1e-18).rank == rank


def test_many_shared_directions_among_many():
    """40 dimensions, 7 of them shared by ranges of 20 and 15, found one and all."""
    g = generator(3)
    d, m = 40, 7
    S = orthonormal(g, d, m)
    A, B = (
        Operand(rotated(g, torch.cat([S, orthonormal(g, d, k, S)], 1)), log_uniform(g, m + k, 2.0), 0) for k in (13, 8)
    )
    met = A.conceptor & B.conceptor
    assert met.rank == A.conceptor.meet(B.conceptor, tolerance=1e-24).rank == m
    assert_matrix(met.basis @ met.basis.mT, S @ S.mT)
    Q_inverse = S.mT @ ((A.basis / A.odds) @ A.basis.mT + (B.basis / B.odds) @ B.basis.mT) @ S
    assert_matrix(met, S @ torch.linalg.inv(dense.identity(m) + Q_inverse) @ S.mT)

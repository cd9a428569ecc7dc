"""The laws of the algebra. Each is exact; what is allowed for is the rounding of a few decompositions.

Not laws of conceptors: idempotence (``C ∨ C`` has aperture √2), absorption, distributivity, ``C ∨ ¬C = I``.
"""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from codecl.algebra import Conceptor, Moments
from tests.algebra import dense
from tests.algebra.cases import (
    EPS,
    WIDE,
    WIDE_ATOL,
    assert_matrix,
    families,
    generator,
    operands,
    pairs,
    row_sets,
    seeds,
)

# Three decompositions in a row: the tolerances of one, three times over.
both_ranges = pytest.mark.parametrize(("decades", "atol"), [(2.0, 3e-12), (WIDE, 3 * WIDE_ATOL)])


def law(count, check):
    """``check`` holds for drawn conceptors, mild and wide, of every mix of rank and rest."""

    @both_ranges
    def test(decades, atol):
        @given(families(count, decades))
        def holds(drawn):
            left, right = check(*(A.conceptor for A in drawn))
            assert_matrix(left, right.dense(), atol)

        holds()

    return test


test_de_morgan_or = law(2, lambda A, B: (~(A | B), ~A & ~B))
test_de_morgan_and = law(2, lambda A, B: (~(A & B), ~A | ~B))
test_or_is_commutative = law(2, lambda A, B: (A | B, B | A))
test_and_is_commutative = law(2, lambda A, B: (A & B, B & A))
test_or_is_associative = law(3, lambda A, B, C: ((A | B) | C, A | (B | C)))
test_and_is_associative = law(3, lambda A, B, C: ((A & B) & C, A & (B & C)))
test_double_negation = law(1, lambda A: (~~A, A))
test_or_with_itself_is_aperture_root_2 = law(1, lambda A: (A | A, A.adapt(math.sqrt(2))))
test_and_with_itself_is_aperture_one_over_root_2 = law(1, lambda A: (A & A, A.adapt(math.sqrt(0.5))))
test_zero_is_neutral_for_or = law(1, lambda A: (A | Conceptor.zero(A.dim), A))
test_identity_is_neutral_for_and = law(1, lambda A: (A & Conceptor.identity(A.dim), A))
test_zero_absorbs_and = law(1, lambda A: (A & Conceptor.zero(A.dim), Conceptor.zero(A.dim)))
test_identity_absorbs_or = law(1, lambda A: (A | Conceptor.identity(A.dim), Conceptor.identity(A.dim)))
test_aperture_of_an_or = law(2, lambda A, B: ((A | B).adapt(1.7), A.adapt(1.7) | B.adapt(1.7)))
test_aperture_of_an_and = law(2, lambda A, B: ((A & B).adapt(1.7), A.adapt(1.7) & B.adapt(1.7)))
test_aperture_of_a_negation = law(1, lambda A: ((~A).adapt(4.0), ~A.adapt(0.25)))


@given(pairs())
def test_de_morgan_and_commutativity_of_oblique_ranges(pair):
    A, B = pair.A.conceptor, pair.B.conceptor
    for left, right in [(~(A | B), ~A & ~B), (~(A & B), ~A | ~B), (A | B, B | A), (A & B, B & A)]:
        assert_matrix(left, right.dense(), atol=1e-11)


@given(operands(WIDE))
def test_double_negation_keeps_every_number(A):
    C = A.conceptor
    again = ~~C
    torch.testing.assert_close(again.factor, C.factor, rtol=16 * EPS, atol=0)
    assert again.rest == C.rest


@given(operands(WIDE), st.sampled_from([1e-10, 0.1, 1.1, 6.0, 1e10]))
def test_aperture_round_trip(A, gamma):
    C = A.conceptor
    torch.testing.assert_close(C.adapt(gamma).adapt(1 / gamma).factor, C.factor, rtol=64 * EPS, atol=0)
    again = C.adapt(gamma).adapt(3.0)
    torch.testing.assert_close(again.factor, C.adapt(3.0 * gamma).factor, rtol=64 * EPS, atol=0)


@given(operands(WIDE))
def test_or_with_itself_doubles_the_odds(A):
    """By value; the root of the odds is what a decomposition gives, to eps of the largest."""
    C = A.conceptor
    doubled = C | C
    assert (doubled.rank, doubled.rest) == (C.rank, C.rest)
    largest = max([1.0, *C.odds.sqrt().tolist()])
    torch.testing.assert_close(doubled.odds.sqrt(), (2 * C.odds).sqrt(), rtol=0, atol=16 * EPS * largest)


def eigenvalues(C: Conceptor) -> torch.Tensor:
    return torch.linalg.eigvalsh(C.dense())


@pytest.mark.parametrize("decades", [2.0, WIDE])
def test_every_result_lies_between_0_and_the_identity(decades):
    @given(families(2, decades), st.sampled_from([0.1, 20.0]))
    def holds(drawn, gamma):
        A, B = (C.conceptor for C in drawn)
        for C in (A, ~A, A | B, A & B, A.adapt(gamma), A.cut(0.5)):
            assert bool((C.odds > 0).all())
            assert bool(torch.isfinite(C.factor).all())
            assert bool(((C.singular_values >= 0) & (C.singular_values <= 1)).all())
            assert 0 <= C.capacity <= 1
            assert C.rank <= C.dim
            assert_matrix(C.basis.mT @ C.basis, dense.identity(C.rank), atol=64 * EPS)
            assert bool((C.odds.diff() <= 1e-9 * C.odds[:-1]).all())  # largest first
            values = eigenvalues(C)
            assert float(values[0]) >= -64 * EPS
            assert float(values[-1]) <= 1 + 64 * EPS

    holds()


@given(families(2))
def test_and_is_below_and_or_is_above(drawn):
    """``A ∧ B ≼ A ≼ A ∨ B`` as quadratic forms."""
    A, B = (C.conceptor for C in drawn)
    assert float(torch.linalg.eigvalsh((A | B).dense() - A.dense())[0]) >= -1e-12
    assert float(torch.linalg.eigvalsh(A.dense() - (A & B).dense())[0]) >= -1e-12


@given(row_sets(), st.sampled_from([0.5, 2.0, 10.0]))
def test_gradient_of_equation_1_is_zero_at_the_fit(X, aperture):
    C = Conceptor.fit(X, aperture).dense().requires_grad_()
    dense.objective(C, X, aperture).backward()
    assert_matrix(C.grad, torch.zeros_like(C), atol=1e-12 * max(1.0, float(X.square().sum()) / len(X)))
    shifted = (C.detach() + 0.01 * dense.identity(len(C))).requires_grad_()
    dense.objective(shifted, X, aperture).backward()
    assert float(shifted.grad.abs().max()) > 1e-5  # so the zero above says something


@given(row_sets(), st.data(), seeds, st.sampled_from([torch.float32, torch.float64]))
def test_streams_equal_batches_in_any_order(X, data, seed, dtype):
    """Rows in any order, cut anywhere, added in any order: the same conceptor."""
    n = len(X)
    X = X.to(dtype)
    shuffled = X[torch.randperm(n, generator=generator(seed))]
    cuts = sorted(data.draw(st.sets(st.integers(1, n - 1)))) if n > 1 else []
    batches = [Moments.of(b) for b in shuffled.tensor_split(cuts)]
    pending = data.draw(st.permutations(batches))
    while len(pending) > 1:  # any bracketing, not only from left to right
        i = data.draw(st.integers(0, len(pending) - 2))
        pending = [*pending[:i], pending[i] + pending[i + 1], *pending[i + 2 :]]
    streamed = pending[0]
    assert streamed.count == n
    assert_matrix(Conceptor.fit(streamed, 3.0), Conceptor.fit(X, 3.0).dense(), atol=1e-10)
    assert_matrix(Conceptor.fit(streamed, 3.0), dense.fit(X, 3.0), atol=1e-10)


@given(row_sets())
def test_adding_moments_is_not_or(X):
    """Twice the same rows have the same correlation; OR with itself has twice the odds."""
    once, twice = Conceptor.fit(X, 1.0), Conceptor.fit(Moments.of(X) + Moments.of(X), 1.0)
    assert_matrix(twice, once.dense())
    assert_matrix(once | once, once.adapt(math.sqrt(2)).dense())
    assert (once | once).capacity > twice.capacity

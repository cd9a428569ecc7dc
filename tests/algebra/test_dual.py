"""A subspace in the smaller of two bases, against a plain basis and against DualGPM's own shrinking of the other."""

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from codecl.algebra import Subspace
from codecl.algebra.dual import DualSubspace
from tests.algebra import dense
from tests.algebra.cases import assert_matrix, dims, generator, normal, orthonormal, seeds

energies = st.sampled_from([0.3, 0.7, 0.9, 0.97, 1.0])


def projector(basis):
    return basis @ basis.mT


def removed(dual):
    """``P`` as a gradient meets it: of the two formulas, the one of the stored type."""
    eye, B = dense.identity(dual.dim), dual.held.basis
    return eye - eye @ B @ B.mT if dual.retains else eye @ B @ B.mT


def rows_of(g, d, rank):
    """Rows in ``rank`` directions, whose sizes are well apart."""
    n = rank + 2
    return (orthonormal(g, n, rank) * 0.6 ** torch.arange(rank, dtype=torch.float64)) @ orthonormal(g, d, rank).mT


@given(st.data(), dims, seeds)
def test_it_grows_as_a_plain_basis_does_in_no_more_than_half_of_the_columns(data, d, seed):
    g = generator(seed)
    plain, dual = Subspace.zero(d), DualSubspace(Subspace.zero(d))
    for _ in range(4):
        X, energy = rows_of(g, d, data.draw(st.integers(1, min(d, 6)))), data.draw(energies)
        residual = torch.linalg.svdvals(plain.remove(X)).square() / X.square().sum()
        shares = torch.cat([residual.new_zeros(1), residual.cumsum(0)]) + 1 - residual.sum()
        assume(bool(((shares - energy).abs() > 1e-9).all()) or energy == 1)
        plain, dual = plain.grow(X, energy), dual.grow(X, energy)
        assert_matrix(removed(dual), projector(plain.basis), atol=1e-10)
        assert_matrix(projector(dual.protected.basis), projector(plain.basis), atol=1e-10)
        assert dual.held.rank == min(plain.rank, d - plain.rank)
        assert dual.retains == (2 * plain.rank > d)


@given(st.integers(2, 12), seeds, st.sampled_from([0.5, 0.8, 0.95]))
def test_growing_is_the_shrinking_of_the_other_basis(d, seed, energy):
    """The update of a basis to retain, as published: drop from it the top directions of ``B′ B′ᵀ R``."""
    g = generator(seed)
    B = orthonormal(g, d, d // 2)  # what is retained
    R = rows_of(g, d, d).mT
    inside = B @ B.mT @ R
    U, s, _ = torch.linalg.svd(inside)
    left, total, r = s.square().sum() / R.square().sum(), R.square().sum(), 0
    while left > 1 - energy:
        left, r = left - s[r].square() / total, r + 1
    V = U[:, :r]
    W, _, _ = torch.linalg.svd(B - V @ V.mT @ B)
    kept = W[:, : B.shape[1] - r]
    got = DualSubspace(Subspace(B), retains=True).grow(R.mT, energy)
    assert_matrix(dense.identity(d) - removed(got), projector(kept), atol=1e-9)


@given(st.integers(0, 8), st.integers(0, 5), seeds)
def test_nothing_is_protected_in_new_dimensions(rank, new, seed):
    B = orthonormal(generator(seed), 8, rank)
    expected = torch.zeros(8 + new, 8 + new, dtype=torch.float64)
    expected[:8, :8] = projector(B)
    for dual in (DualSubspace(Subspace(B)), DualSubspace(Subspace(B).complement(), retains=True)):
        wide = dual.widen(8 + new)
        assert wide.retains == dual.retains
        assert_matrix(removed(wide), expected)
        assert_matrix(projector(wide.protected.basis), expected)


def test_the_extremes():
    d = 3
    everything = DualSubspace.of(Subspace(dense.identity(d)))
    assert everything.retains
    assert everything.held.rank == 0
    assert_matrix(removed(everything), dense.identity(d))
    assert_matrix(removed(everything.grow(normal(generator(0), 4, d), 0.9)), dense.identity(d))
    nothing = DualSubspace(Subspace.zero(d))
    assert_matrix(removed(nothing.grow(torch.zeros(4, d, dtype=torch.float64), 0.9)), 0 * dense.identity(d))


def test_it_cannot_become_narrower():
    with pytest.raises(ValueError, match="of dimension 3 cannot be widened to 2"):
        DualSubspace(Subspace.zero(3)).widen(2)


def test_it_says_how_it_is_held():
    assert repr(DualSubspace.of(Subspace(dense.identity(4)[:, :1]))) == "DualSubspace(d=4, removes 1)"
    assert repr(DualSubspace.of(Subspace(dense.identity(4)[:, :3]))) == "DualSubspace(d=4, retains 1)"

"""The two halves of growing: what rows have outside a subspace, and taking some of it in."""

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from codecl.algebra import Moments, Subspace
from tests.algebra import dense
from tests.algebra.cases import assert_matrix, dims, generator, normal, orthonormal, seeds


@given(dims, seeds, st.booleans())
def test_the_residual_is_the_spectrum_of_the_rows_outside(d, seed, in_parts):
    g = generator(seed)
    r, n = seed % (d + 1), 1 + seed % (2 * d)
    B, X = orthonormal(g, d, r), normal(g, n, d)
    parts = [Moments.of(part) for part in X.split(3)] if in_parts else [Moments.of(X)]
    U, sigma = Subspace(B).residual(sum(parts[1:], start=parts[0]))
    outside = X - X @ B @ B.mT
    expected = torch.linalg.svdvals(outside)
    expected = expected[expected > 1e-10]
    assert len(sigma) == len(expected) == U.shape[1]
    assert_matrix(sigma, expected, atol=1e-10)
    assert_matrix(U.mT @ U, dense.identity(len(sigma)))
    assert_matrix((U * sigma.square()) @ U.mT, outside.mT @ outside, atol=1e-10)
    assert_matrix(B.mT @ U, torch.zeros(r, len(sigma)).double(), atol=1e-9 / min([1.0, *sigma.tolist()]))


def test_the_residual_of_rows_inside_is_empty_however_large_they_are():
    g = generator(1)
    B = orthonormal(g, 9, 4)
    for scale in (1e-60, 1.0, 1e60):
        for dtype in (torch.float32, torch.float64):
            if dtype == torch.float32 and scale != 1.0:
                continue
            X = (scale * normal(g, 20, 4) @ B.mT).to(dtype)
            U, sigma = Subspace(B).residual(Moments.of(X))
            assert (U.shape, sigma.shape) == ((9, 0), (0,))


def test_rows_of_zeros_have_no_residual():
    for rank in (0, 2, 5):
        U, sigma = Subspace(torch.eye(5)[:, :rank]).residual(Moments.of(torch.zeros(3, 5)))
        assert (U.shape, sigma.shape) == ((5, 0), (0,))


@given(dims, seeds)
def test_extending_adds_the_columns_and_moves_nothing(d, seed):
    g = generator(seed)
    r = seed % (d + 1)
    k = (seed // 7) % (d - r + 1)
    B = orthonormal(g, d, r)
    new = orthonormal(g, d, k, beside=B)
    grown = Subspace(B).extend(new)
    assert torch.equal(grown.basis[:, :r], B)
    assert grown.rank == r + k
    assert_matrix(grown.basis @ grown.basis.mT, B @ B.mT + new @ new.mT)
    assert_matrix((grown.basis[:, r:] * new).sum(0).abs(), torch.ones(k).double())  # in their order, up to a sign


@pytest.mark.parametrize("leak", [1e-10, 1e-6, 1e-3])
def test_what_columns_have_inside_is_taken_out(leak):
    """Singular vectors of a small residual lean into the old basis, and then no longer stand at right angles."""
    g = generator(3)
    E = orthonormal(g, 20, 12)
    B, new = E[:, :8], E[:, 8:]
    grown = Subspace(B).extend(new + leak * B @ normal(g, 8, 4))
    assert_matrix(grown.basis.mT @ grown.basis, dense.identity(12))
    assert_matrix(grown.basis @ grown.basis.mT, E @ E.mT)


@given(dims, seeds, st.sampled_from([0.3, 0.9, 0.99]))
def test_growing_is_extending_by_the_leading_residual(d, seed, energy):
    g = generator(seed)
    B, X = orthonormal(g, d, seed % (d + 1)), normal(g, 1 + seed % (2 * d), d)
    U, sigma = Subspace(B).residual(Moments.of(X))
    total, held = float(X.square().sum()), float((X @ B).square().sum())
    k = 0
    assume(all(abs(held + float(sigma[:i].square().sum()) - energy * total) > 1e-9 for i in range(len(sigma) + 1)))
    while held + float(sigma[:k].square().sum()) < energy * total:
        k += 1
    grown = Subspace(B).grow(X, energy)
    assert torch.equal(grown.basis, Subspace(B).extend(U[:, :k]).basis)

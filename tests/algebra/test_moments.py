"""Streaming second moments against ``XᵀX`` of all rows at once."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from codecl.algebra import Moments
from tests.algebra.cases import assert_matrix, generator, normal, orthonormal, row_sets, seeds

DTYPES = [torch.bfloat16, torch.float16, torch.float32, torch.float64]
dtypes = st.sampled_from(DTYPES)


def gram(moments: Moments) -> torch.Tensor:
    """``ΣXᵀX``, through the spectrum."""
    U, sigma = moments.spectrum()
    return (U * sigma.square()) @ U.mT


def held(moments: Moments) -> torch.Tensor:
    (tensor,) = [t for t in (moments.root, moments.gram) if t is not None]
    return tensor


def noise(X: torch.Tensor) -> float:
    """Cutting ``σ ≤ 8 eps σ_max`` changes ``XᵀX`` by its square; float64 sums round at 1e-15."""
    energy = float(X.double().square().sum())
    return energy * (1e-14 + (8 * torch.finfo(X.dtype).eps) ** 2)


@given(row_sets(), dtypes)
def test_spectrum_is_that_of_the_gram_matrix(X, dtype):
    X = X.to(dtype)
    moments = Moments.of(X)
    U, sigma = moments.spectrum()
    R = X.double().mT @ X.double()
    assert_matrix(gram(moments), R, atol=noise(X))
    assert_matrix(U.mT @ U, torch.eye(len(sigma), dtype=torch.float64))
    assert bool((sigma.diff() <= 0).all())
    assert (moments.count, moments.dim) == X.shape
    assert float(moments.total) == pytest.approx(float(R.trace()), rel=1e-12)


@given(row_sets(), row_sets(), dtypes, dtypes)
def test_sum_of_streams(X, Y, one, other):
    """Every mix of dtypes and of how the two are held."""
    d = min(X.shape[1], Y.shape[1])
    X, Y = X[:, :d].to(one), Y[:, :d].to(other)
    both = Moments.of(X) + Moments.of(Y)
    R = X.double().mT @ X.double() + Y.double().mT @ Y.double()
    assert_matrix(gram(both), R, atol=noise(X) + noise(Y) + max(noise(X.to(other)), noise(Y.to(one))))
    assert both.count == len(X) + len(Y)
    assert float(both.total) == pytest.approx(float(R.trace()), rel=1e-12)
    wide = [torch.promote_types(dtype, torch.float32) for dtype in (one, other)]  # narrow rows count as float32
    assert both.floor == 8 * max(torch.finfo(dtype).eps for dtype in wide)


@pytest.mark.parametrize("dtype", DTYPES)
def test_memory_is_bounded_by_the_dimension(dtype):
    X = normal(generator(0), 50, 6).to(dtype)
    moments = Moments.of(X[:2])
    for batch in X[2:].split(4):
        moments = moments + Moments.of(batch)
        assert held(moments).numel() <= 36
    assert moments.count == 50
    assert held(Moments.of(X)).shape == (6, 6)
    assert held(Moments.of(X[:3])).shape == (3, 6)


def test_float64_streams_keep_the_digits_that_a_gram_matrix_loses():
    """σ from 1 to 1e-12 over many batches: squared, 1e-24 would drown in 1e-16."""
    g = generator(5)
    d, n = 4, 64
    sigma = torch.logspace(0, -12, d, dtype=torch.float64)
    X = (orthonormal(g, n, d) * sigma) @ orthonormal(g, d, d).mT
    moments = Moments.of(X[:1])
    for batch in X[1:].split(7):
        moments = moments + Moments.of(batch)
    torch.testing.assert_close(moments.spectrum()[1], sigma, rtol=1e-2, atol=0)
    torch.testing.assert_close(moments.spectrum()[1], sigma, rtol=0, atol=1e-14)


@given(row_sets(), seeds, dtypes)
def test_without_and_along(X, seed, dtype):
    X = X.to(dtype)
    rows = X.double()
    d = X.shape[1]
    B = orthonormal(generator(seed), d, seed % (d + 1))
    moments = Moments.of(X)
    residual = moments.without(B)
    left = rows - rows @ B @ B.mT
    scale = float(rows.square().sum())
    got = residual.root.mT @ residual.root if residual.root is not None else residual.gram
    assert_matrix(got, left.mT @ left, atol=1e-13 * scale)
    assert residual.count == len(X)
    torch.testing.assert_close(moments.along(B), (rows @ B).square().sum(0), rtol=0, atol=1e-13 * scale)


def test_spectrum_of_a_residual_is_cut_by_the_rows_it_came_from():
    """Rows inside the basis leave rounding noise; measured against itself it would look like directions."""
    g = generator(2)
    B = orthonormal(g, 6, 3)
    moments = Moments.of(normal(g, 20, 3) @ B.mT)
    largest = float(moments.spectrum()[1][0])
    assert moments.without(B).spectrum(reference=largest)[0].shape == (6, 0)


def test_moments_are_a_value():
    """The rows may live in a buffer that the caller fills again."""
    for n in (2, 9):
        X = normal(generator(1), n, 4)
        moments = Moments.of(X)
        before = gram(moments).clone()
        X.zero_()
        assert torch.equal(gram(moments), before)


def test_moments_cut_the_graph():
    X = normal(generator(1), 2, 4).requires_grad_()
    assert not held(Moments.of(X)).requires_grad


@pytest.mark.parametrize("d", [1, 191, 192, 193, 400])
@pytest.mark.parametrize("n", [2047, 2048, 2049])
def test_the_gram_matrix_is_whole_and_symmetric_at_the_seams_of_its_pieces(n, d):
    X = torch.randn(n, d, generator=torch.Generator().manual_seed(0))
    found = held(Moments.of(X))
    assert torch.equal(found, found.mT)
    torch.testing.assert_close(found, X.double().mT @ X.double(), rtol=1e-12, atol=1e-10)

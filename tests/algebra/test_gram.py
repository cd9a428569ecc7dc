"""Singular values and vectors by the Gram matrix, beside an SVD; and where the Gram matrix must not serve."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from codecl.algebra import Conceptor, gram
from codecl.algebra.tolerances import GRAM_LARGEST, GRAM_SPREAD
from tests.algebra.cases import generator, normal, orthonormal, seeds

EPS = torch.finfo(torch.float64).eps


def drawn(seed: int, n: int, k: int, largest: float, spread: float) -> Tensor:
    """``A: [n, k]`` whose σ² lie between ``largest`` and ``largest · spread``."""
    g = generator(seed)
    energy = largest * spread ** torch.linspace(0, 1, k, dtype=torch.float64)
    return (orthonormal(g, n, k) * energy.sqrt()) @ orthonormal(g, k, k).mT


@given(seeds, st.integers(1, 30), st.integers(0, 20), st.floats(-150, 150), st.floats(0, 40))
def test_what_is_found_is_what_an_svd_finds(seed: int, k: int, taller: int, size: float, decades: float) -> None:
    """Values to the rounding that a Gram matrix may cost, and vectors that are orthonormal and make up ``A``."""
    A = drawn(seed, k + taller, k, 10.0**size, 10.0**-decades)
    sigma, V = gram.right_vectors(A)
    _, exact, _ = torch.linalg.svd(A, full_matrices=False)
    top = float(exact[0])
    identity = torch.eye(k, dtype=A.dtype)
    slack = 64 * k * EPS
    torch.testing.assert_close(sigma, exact, rtol=slack / GRAM_SPREAD, atol=slack * top)
    torch.testing.assert_close(V.mT @ V, identity, rtol=0, atol=slack)
    images = A / top @ V
    torch.testing.assert_close(images.mT @ images, torch.diag((sigma / top).square()), rtol=0, atol=slack)

    roots, U = gram.left_vectors(A)
    torch.testing.assert_close(roots, exact, rtol=slack / GRAM_SPREAD, atol=slack * top)
    torch.testing.assert_close(U.mT @ U, identity, rtol=0, atol=slack / GRAM_SPREAD)
    torch.testing.assert_close(U @ (U.mT @ (A / top)), A / top, rtol=0, atol=slack / GRAM_SPREAD)


@given(seeds, st.integers(2, 40), st.floats(-2, 4), st.floats(0, 4.5))
def test_conceptors_are_those_of_an_svd(seed: int, d: int, size: float, decades: float) -> None:
    """OR and AND of full rank, where the Gram matrix serves, beside the same with the SVD alone."""
    g = generator(seed)
    odds = [10.0**size * 10.0 ** (-decades * torch.rand(d, generator=g, dtype=torch.float64)) for _ in range(2)]
    C, B = (Conceptor.from_spectrum(orthonormal(g, d, d), q) for q in odds)
    quick = (C | B).dense(), (C & B).dense()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gram, "_of_gram", lambda A: None)
        slow = (C | B).dense(), (C & B).dense()
    for fast, exact in zip(quick, slow, strict=True):
        torch.testing.assert_close(fast, exact, rtol=0, atol=64 * d * EPS * max(10.0**size, 10.0 ** (decades - size)))


@pytest.mark.parametrize(
    "A",
    [
        pytest.param(drawn(0, 9, 4, 4.0 * GRAM_LARGEST, 1.0), id="huge"),
        pytest.param(drawn(0, 9, 4, 1.0, 0.01 * GRAM_SPREAD), id="ill-conditioned"),
        pytest.param(torch.cat([normal(generator(0), 9, 2)] * 2, dim=1), id="rank-deficient"),
        pytest.param(torch.zeros(9, 4, dtype=torch.float64), id="zero"),
        pytest.param(torch.zeros(9, 0, dtype=torch.float64), id="empty"),
        pytest.param(torch.full((9, 2), 1e150, dtype=torch.float64), id="overflowing"),
    ],
)
def test_where_its_rounding_would_show_the_gram_matrix_does_not_serve(A: Tensor) -> None:
    assert gram._of_gram(A) is None
    torch.testing.assert_close(gram.right_vectors(A)[0], torch.linalg.svdvals(A))


def test_where_it_serves_it_is_taken() -> None:
    assert gram._of_gram(drawn(0, 9, 4, 1e3, 1e-3)) is not None

"""What a memory takes from new rows, against the dense ``C^½``."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from codecl.algebra import Conceptor, Moments
from codecl.algebra.taken import nearest_in, taken_factor

CLOSE = {"rtol": 0.0, "atol": 1e-9}


def drawn(seed: int, n: int, d: int, rank: int, scale: float = 1.0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randn(n, rank, generator=generator, dtype=torch.float64)
    return scale * rows @ torch.randn(rank, d, generator=generator, dtype=torch.float64)


def root(C: Tensor) -> Tensor:
    """``C^½``; an eigenvalue that is 0 but for rounding, 1e-17, would be 3e-9 in it."""
    values, vectors = torch.linalg.eigh(C)
    return (vectors * values.where(values > 1e-14, 0.0).sqrt()) @ vectors.mT


cases = {
    "seed": st.integers(0, 10_000),
    "d": st.integers(1, 9),
    "old": st.integers(1, 12),
    "new": st.integers(1, 12),
    "rank": st.integers(1, 9),
    "scale": st.sampled_from([1e-2, 1.0, 1e2]),
}


@given(**cases)
def test_the_two_parts_of_a_gradient_add_up_to_all_of_it(seed, d, old, new, rank, scale):
    X, past = drawn(seed, new, d, rank, scale), drawn(seed + 1, old, d, d)
    memory = Conceptor.fit(past, 3.0)
    F = taken_factor(memory, Moments.of(X))
    G = drawn(seed + 2, 4, new, new) @ X  # δᵀ X
    C = memory.dense()
    kept = G - G @ C + (G @ F.mT) @ F
    assert_close(kept / scale, G / scale, **CLOSE)
    assert len(F) == torch.linalg.matrix_rank(X @ root(C), rtol=1e-9)


@given(share=st.floats(0.05, 1.0), **cases)
def test_as_few_directions_as_hold_the_share(share, seed, d, old, new, rank, scale):
    X, memory = drawn(seed, new, d, rank, scale), Conceptor.fit(drawn(seed + 1, old, d, d), 3.0)
    F = taken_factor(memory, Moments.of(X), share)
    half = root(memory.dense())
    energy = torch.linalg.svdvals(X @ half).square()
    held = (energy.cumsum(0) / energy.sum()).tolist()
    k = len(F)
    assert held[k - 1] >= share - 1e-9
    assert k == 1 or held[k - 2] <= share + 1e-9
    # The rows of F are V^T C^1/2 with orthonormal V, the k leading directions.
    V = torch.linalg.lstsq(half, F.mT, driver="gelsd").solution if memory.rank == d else None
    if V is not None:
        assert_close(V.mT @ V, torch.eye(k, dtype=torch.float64), rtol=0.0, atol=1e-6)
        assert float((X @ half @ V).square().sum() / energy.sum()) == pytest.approx(held[k - 1], abs=1e-6)


def test_moments_that_are_sums_give_the_same():
    X, memory = drawn(0, 40, 6, 6).float(), Conceptor.fit(drawn(1, 5, 6, 6), 2.0)
    few, many = taken_factor(memory, Moments.of(X.double())), taken_factor(memory, Moments.of(X))
    assert Moments.of(X).gram is not None
    assert_close(many.mT @ many, few.mT @ few, rtol=0.0, atol=1e-6)


def test_an_empty_memory_takes_nothing():
    F = taken_factor(Conceptor.zero(4), Moments.of(torch.ones(2, 4)))
    assert F.shape == (0, 4)
    assert nearest_in(F, torch.ones(3, 4)).shape == (3, 0)


def test_orthogonal_rows_lose_nothing():
    eye = torch.eye(4, dtype=torch.float64)
    F = taken_factor(Conceptor.fit(eye[:2], 5.0), Moments.of(eye[2:]))
    assert F.shape == (0, 4)


@given(st.integers(0, 1000), st.integers(1, 6), st.integers(1, 6))
def test_the_nearest_is_a_projection(seed, k, d):
    F, D = drawn(seed, k, d, min(k, d)), drawn(seed + 1, 3, d, d)
    B = nearest_in(F, D)
    assert_close((D - B @ F) @ F.mT, torch.zeros(3, k, dtype=torch.float64), rtol=0.0, atol=1e-7)


@pytest.mark.parametrize("share", [0.0, -1.0, 1.5])
def test_a_share_is_a_share(share):
    with pytest.raises(ValueError, match=r"part of the energy in \(0, 1\]; got"):
        taken_factor(Conceptor.zero(2), Moments.of(torch.ones(1, 2)), share)


def test_a_negation_is_refused():
    with pytest.raises(ValueError, match="takes from every row"):
        taken_factor(Conceptor.identity(2), Moments.of(torch.ones(1, 2)))


@pytest.mark.parametrize("share", [0.99, 1.0])
def test_rounding_of_rows_beside_the_memory_is_no_direction(share):
    Q = torch.linalg.qr(drawn(0, 40, 40, 40))[0].float()
    memory, beside = Conceptor.fit(drawn(1, 30, 20, 20).float() @ Q[:, :20].mT, 6.0), drawn(2, 30, 20, 20).float()
    X = beside @ Q[:, 20:].mT
    assert torch.linalg.norm(X.double() @ memory.dense()) > 0  # in float32 they are not quite beside it
    assert taken_factor(memory, Moments.of(X), share).shape == (0, 40)

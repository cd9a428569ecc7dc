"""Hard subspaces against GPM's two rules, written as loops over singular values."""

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from codecl.algebra import Moments, Subspace
from tests.algebra import dense
from tests.algebra.cases import assert_matrix, dims, generator, normal, orthonormal, seeds

energies = st.sampled_from([0.3, 0.7, 0.9, 0.97, 0.997])


@st.composite
def decaying_rows(draw, d: int | None = None) -> torch.Tensor:
    """Rows whose singular values are well apart, so that each leading subspace is well defined."""
    d = draw(dims) if d is None else d
    g = generator(draw(seeds))
    n, k = draw(st.integers(1, 2 * d)), draw(st.integers(1, d))
    k = min(n, k)
    sigma = 0.7 ** torch.arange(k, dtype=torch.float64)
    return (orthonormal(g, n, k) * sigma) @ orthonormal(g, d, k).mT


def projector(basis: torch.Tensor) -> torch.Tensor:
    return basis @ basis.mT


def clear_of(shares: torch.Tensor, energy: float) -> None:
    """A share that equals the threshold is decided by rounding; such draws say nothing."""
    assume(bool(((shares - energy).abs() > 1e-9).all()))


def assert_orthonormal(S: Subspace) -> None:
    assert_matrix(S.basis.mT @ S.basis, dense.identity(S.rank))


@given(decaying_rows(), energies)
def test_first_task_keeps_the_share_strictly_below(X, energy):
    S2 = torch.linalg.svdvals(X).square()
    clear_of(S2.cumsum(0) / S2.sum(), energy)
    got = Subspace.fit(X, energy, "below")
    expected = dense.gpm_first_task(X, energy)
    assert got.rank == expected.shape[1]
    assert_matrix(projector(got.basis), projector(expected))
    assert_matrix(projector(Subspace.fit(X, energy).basis), projector(expected))  # the default for a first task
    assert_orthonormal(got)


@given(st.data(), energies)
def test_later_tasks_add_until_the_share_is_reached(data, energy):
    X = data.draw(decaying_rows())
    d = X.shape[1]
    B = orthonormal(generator(data.draw(seeds)), d, data.draw(st.integers(0, d)))
    S2 = torch.linalg.svdvals(X - X @ projector(B)).square() / X.square().sum()
    gaps = S2.sqrt().diff().abs()
    assume(bool((gaps > 1e-4).all()) or B.shape[1] in (0, d))
    held = 1 - S2.sum()
    clear_of(torch.cat([held.reshape(1), held + S2.cumsum(0)]), energy)
    got = Subspace(B).grow(X, energy, "reach")
    expected = dense.gpm_later_task(B, X, energy)
    assert got.rank == expected.shape[1]
    assert_matrix(projector(got.basis), projector(expected), atol=1e-10)
    assert torch.equal(got.basis[:, : B.shape[1]], B)
    assert_matrix(projector(Subspace(B).grow(X, energy).basis), projector(got.basis), atol=0)  # the default
    assert_orthonormal(got)
    assert float(got.project(X).square().sum() / X.square().sum()) >= energy - 1e-12


@given(decaying_rows(), energies)
def test_reach_holds_one_direction_more_than_below(X, energy):
    S2 = torch.linalg.svdvals(X).square()
    clear_of(S2.cumsum(0) / S2.sum(), energy)
    below, reach = Subspace.fit(X, energy, "below"), Subspace.fit(X, energy, "reach")
    assert reach.rank == below.rank + 1
    assert_matrix(
        projector(reach.basis),
        projector(dense.gpm_later_task(torch.zeros(X.shape[1], 0).double(), X, energy)),
    )


def test_the_two_rules_by_hand():
    """Energies 16, 4, 1 of 21: shares 0.762, 0.952, 1."""
    X = torch.diag(torch.tensor([4.0, 2.0, 1.0]))
    ranks = {
        energy: tuple(Subspace.fit(X, energy, rule).rank for rule in ("below", "reach")) for energy in (0.5, 0.8, 0.97)
    }
    assert ranks == {0.5: (0, 1), 0.8: (1, 2), 0.97: (2, 3)}
    tie = 2 * torch.eye(4)  # shares 1/4, 1/2, 3/4, 1, exact in binary
    assert [Subspace.fit(tie, 0.5, rule).rank for rule in ("below", "reach")] == [1, 2]
    assert Subspace.fit(torch.tensor([[2.0]]), 1.0, "below").rank == 0
    first = Subspace.fit(X, 0.8, "below")
    assert first.grow(X, 0.7).rank == 1  # 0.762 are held already
    assert first.grow(X, 0.8, "below").rank == 1
    assert first.grow(X, 0.96, "below").rank == 2
    assert first.grow(X, 0.8).rank == 2


@given(decaying_rows(), energies, st.sampled_from([1e-20, 1e20]), st.sampled_from([torch.float32, torch.float64]))
def test_uniform_scales_change_nothing(X, energy, scale, dtype):
    X = X.to(dtype)
    S2 = torch.linalg.svdvals(X.double()).square()
    assume(bool(((S2.cumsum(0) / S2.sum() - energy).abs() > 1e-5).all()))
    for rule in ("below", "reach"):
        expected = projector(Subspace.fit(X, energy, rule).basis)
        assert_matrix(projector(Subspace.fit(X * scale, energy, rule).basis), expected, atol=1e-4)
        assert Subspace.fit(X * scale, energy, rule).rank == Subspace.fit(X, energy, rule).rank


@given(decaying_rows(), energies)
def test_moments_of_a_stream_give_the_subspace_of_the_rows(X, energy):
    S2 = torch.linalg.svdvals(X).square()
    clear_of(S2.cumsum(0) / S2.sum(), energy)
    first, *others = (Moments.of(batch) for batch in X.split(3))
    moments = sum(others, start=first)
    assert_matrix(projector(Subspace.fit(moments, energy).basis), projector(Subspace.fit(X, energy).basis), 1e-11)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_growing_to_all_of_the_energy_takes_the_rank_of_the_rows_and_no_noise(dtype):
    g = generator(4)
    X, Y = (normal(g, 50, 3) @ normal(g, 3, 8) for _ in range(2))
    S = Subspace.zero(8)
    for rows, rank in ((X, 3), (Y, 6), (X + Y, 6)):
        S = S.grow(rows.to(dtype), 1.0)
        assert S.rank == rank
        assert_orthonormal(S)
    assert_matrix(S.remove(X), torch.zeros_like(X), atol=1e-12 if dtype == torch.float64 else 1e-5)


@pytest.mark.parametrize(("dtype", "small"), [(torch.float32, 1e-4), (torch.float64, 1e-6)])
def test_the_basis_stays_orthonormal_when_little_is_new(dtype, small):
    """A residual of 1e-6 of the rows points into the old basis by 1e-10 of its length, unless that is taken out."""
    g = generator(7)
    E = orthonormal(g, 30, 20)
    X = normal(g, 60, 10) @ E[:, :10].mT + small * normal(g, 60, 10) @ E[:, 10:].mT
    grown = Subspace(E[:, :10]).grow(X.to(dtype), 1.0)
    assert grown.rank == 20
    assert_orthonormal(grown)


@given(dims, seeds)
def test_project_remove_and_complement(d, seed):
    g = generator(seed)
    r = seed % (d + 1)
    B = orthonormal(g, d, r)
    S, X = Subspace(B), normal(g, 3, 2, d)
    assert_matrix(S.project(X), X @ projector(B))
    assert_matrix(S.remove(X), X - X @ projector(B))
    rest = S.complement()
    assert rest.rank == d - r
    assert_matrix(projector(rest.basis) + projector(B), dense.identity(d))
    assert S.project(X.float()).dtype == torch.float32
    torch.testing.assert_close(S.remove(X.float()).double(), S.remove(X), rtol=0, atol=1e-5)


@given(dims, seeds)
def test_overlap_is_the_mean_squared_cosine(d, seed):
    g = generator(seed)
    A, B = Subspace(orthonormal(g, d, seed % (d + 1))), Subspace(orthonormal(g, d, 1 + seed % d))
    expected = float(torch.trace(projector(A.basis) @ projector(B.basis))) / B.rank
    assert A.overlap(B) == pytest.approx(expected, abs=1e-12)
    assert B.overlap(B) == pytest.approx(1.0, abs=1e-12)
    assert B.complement().overlap(B) == pytest.approx(0.0, abs=1e-12)
    assert Subspace.zero(d).overlap(B) == 0
    assert B.overlap(Subspace.zero(d)) == 0


def test_a_float32_basis_grows():
    """A basis that was stored in float32 is orthonormal to 1e-7, and works."""
    g = generator(6)
    B, X = orthonormal(g, 8, 2), normal(g, 5, 8)
    stored = Subspace(B.float())
    grown = stored.grow(X, 0.9)
    assert_matrix(projector(grown.basis), projector(Subspace(B).grow(X, 0.9).basis), atol=1e-5)
    assert stored.overlap(Subspace(B)) == pytest.approx(1.0, abs=1e-6)


def test_repr_says_what_it_is():
    assert repr(Subspace.zero(3)) == "Subspace(d=3, rank=0)"

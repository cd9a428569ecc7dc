"""The aperture by budget against the dense formula, by definition and by a slow search."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from codecl.algebra import Conceptor, Moments
from codecl.algebra.budget import SMALLEST, aperture_within


def dense_capacity(past: torch.Tensor | None, rows: torch.Tensor, aperture: float) -> float:
    """``Θ`` by inverting: ``I − C = (I + Q)⁻¹`` with ``Q`` the sum of the odds."""
    d = rows.shape[1]
    Q = aperture**2 * rows.mT @ rows / len(rows)
    if past is not None:
        Q = Q + past
    return 1 - float(torch.linalg.inv(torch.eye(d).double() + Q).trace()) / d


@given(
    n=st.integers(1, 20),
    d=st.integers(1, 10),
    before=st.integers(0, 12),
    room=st.floats(0.05, 1.0),
    scale=st.sampled_from([1e-2, 1.0, 1e2]),
    seed=st.integers(0, 10_000),
)
def test_the_room_is_filled_and_not_exceeded(n: int, d: int, before: int, room: float, scale: float, seed: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    rows = scale * torch.randn(n, d, generator=draw).double()
    old = torch.randn(before, d, generator=draw).double() if before else None
    past = Conceptor.fit(old, 1.0) if old is not None else None
    odds = old.mT @ old / before if old is not None else None
    largest = 50.0

    aperture = aperture_within(past, Moments.of(rows), room, largest)

    capacity = dense_capacity(odds, rows, aperture)
    if aperture == largest:
        assert capacity <= room + 1e-9
    elif aperture > SMALLEST * 1.01:
        assert capacity == pytest.approx(room, abs=1e-7)
    else:  # there was no room left
        assert dense_capacity(odds, rows, SMALLEST) >= room - 1e-6


@given(seed=st.integers(0, 1000))
def test_a_larger_room_gives_a_larger_aperture(seed: int) -> None:
    rows = torch.randn(8, 5, generator=torch.Generator().manual_seed(seed)).double()
    found = [aperture_within(None, Moments.of(rows), room, 1e4) for room in (0.2, 0.5, 0.8)]
    assert found == sorted(found)
    assert found[0] < found[2]


@pytest.mark.parametrize("room", [0.0, -1.0, 1.1])
def test_room_is_a_share(room: float) -> None:
    with pytest.raises(ValueError, match="share of the input space"):
        aperture_within(None, Moments.of(torch.ones(2, 2)), room, 1.0)

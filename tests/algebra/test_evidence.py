"""The density of a row under a conceptor is that of a Gaussian."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.distributions import MultivariateNormal

from codecl.algebra import Conceptor
from codecl.algebra.evidence import log_density


@given(n=st.integers(1, 12), d=st.integers(1, 8), aperture=st.floats(0.1, 30), seed=st.integers(0, 10_000))
def test_it_is_the_log_density_of_a_gaussian(n: int, d: int, aperture: float, seed: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    rows, z = torch.randn(n, d, generator=draw).double(), torch.randn(5, d, generator=draw).double()
    covariance = rows.mT @ rows / n + torch.eye(d).double() / aperture**2
    density = MultivariateNormal(torch.zeros(d).double(), covariance).log_prob(z)

    found = log_density(Conceptor.fit(rows, aperture), aperture, z)

    torch.testing.assert_close(found, density, rtol=1e-8, atol=1e-8)


def test_a_negation_has_no_density() -> None:
    C = Conceptor.fit(torch.eye(3).double()[:1], 2.0)
    with pytest.raises(ValueError, match="negation"):
        log_density(~C, 2.0, torch.ones(1, 3))

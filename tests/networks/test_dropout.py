"""Dropout means what torch.nn.Dropout means: rates, independence, gradients and layouts, with fixed seeds."""

import copy
import math

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from codecl.networks import Dropout

N = 400_003  # odd: the last word is only partly used


def kept(p: float, *shape: int, seed: int = 0) -> torch.Tensor:
    """The mask of one call, as float64."""
    torch.manual_seed(seed)
    y: torch.Tensor = Dropout(p)(torch.ones(*shape))
    return (y != 0).double()


def in_force(p: float) -> float:
    """The probability of keeping: a multiple of 2⁻¹⁶ unless ``p`` is close to 0 or 1."""
    return 1 - round(p * 65536) / 65536 if 1 / 256 <= p <= 255 / 256 else 1 - p


def correlation(a: torch.Tensor, b: torch.Tensor) -> float:
    """In units of its standard deviation under independence."""
    a, b = a - a.mean(), b - b.mean()
    return float((a * b).mean() / (a.std() * b.std())) * math.sqrt(len(a))


@pytest.mark.parametrize("p", [0.01, 0.2, 0.25, 0.5, 0.9, 0.99])
def test_keep_rate_is_binomial(p: float) -> None:
    q = 1 - p
    rate = float(kept(p, N).mean())
    assert abs(rate - q) < 4 * math.sqrt(p * q / N)


@pytest.mark.parametrize("p", [0.2, 0.5, 0.9])
def test_every_position_of_the_word_has_the_same_rate(p: float) -> None:
    mask = kept(p, 50_000, 8)
    assert (mask.mean(0) - (1 - p)).abs().max() < 4.5 * math.sqrt(p * (1 - p) / 50_000)


@pytest.mark.parametrize("p", [0.2, 0.5, 0.9])
def test_mean_is_preserved(p: float) -> None:
    torch.manual_seed(0)
    x = torch.randn(N, dtype=torch.float64) + 3
    error = Dropout(p)(x).mean() - x.mean()
    assert abs(error) < 4 * math.sqrt(p / (1 - p) * float(x.square().mean()) / N)


@pytest.mark.parametrize("p", [0.2, 1 / 3, 0.5, 0.75, 0.9])
def test_kept_elements_are_scaled_by_the_probability_in_force(p: float) -> None:
    torch.manual_seed(0)
    y = Dropout(p)(torch.ones(1000, dtype=torch.float64))
    assert_close(y.unique(), torch.tensor([0, 1 / in_force(p)], dtype=torch.float64), rtol=1e-15, atol=0)


def test_the_words_span_all_64_bits() -> None:
    # With 63 random bits the last element of each word would be kept always at p = 1/2, or never.
    last = kept(0.5, 1000, 8)[:, 7]
    assert 400 < last.sum() < 600


@pytest.mark.parametrize("p", [0.2, 0.5, 0.9])
@pytest.mark.parametrize("lag", [1, 2, 3, 4, 7, 8, 64])
def test_elements_at_a_distance_are_uncorrelated(p: float, lag: int) -> None:
    mask = kept(p, N)
    assert abs(correlation(mask[lag:], mask[:-lag])) < 4


@pytest.mark.parametrize(("p", "per_word"), [(0.2, 4), (0.9, 4), (0.5, 8)])
def test_elements_of_one_word_are_uncorrelated(p: float, per_word: int) -> None:
    words = kept(p, 50_000, per_word)
    for i in range(per_word):
        for j in range(i):
            assert abs(correlation(words[:, i], words[:, j])) < 4.5


def test_calls_are_uncorrelated() -> None:
    torch.manual_seed(0)
    drop, ones = Dropout(0.5), torch.ones(N)
    first, second = (drop(ones).double() for _ in range(2))
    assert abs(correlation(first, second)) < 4


@pytest.mark.parametrize("p", [0.2, 0.5])
def test_same_seed_same_mask(p: float) -> None:
    assert torch.equal(kept(p, 1001, seed=3), kept(p, 1001, seed=3))
    assert not torch.equal(kept(p, 1001, seed=3), kept(p, 1001, seed=4))


@pytest.mark.parametrize("p", [0.2, 0.5, 0.001])
def test_gradient_is_the_scaled_mask(p: float) -> None:
    torch.manual_seed(0)
    x = (torch.rand(33, 7, dtype=torch.float64) + 1).requires_grad_()
    y = Dropout(p)(x)
    g = torch.randn_like(y)
    (grad,) = torch.autograd.grad(y, x, g)
    assert_close(grad, g * (y / x).detach())


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("p", [0.2, 0.5, 0.999])
def test_dtype_is_kept(dtype: torch.dtype, p: float) -> None:
    torch.manual_seed(0)
    x = torch.rand(500, dtype=dtype) + 1
    y = Dropout(p)(x)
    assert y.dtype == dtype
    assert_close(y, torch.where(y != 0, x / in_force(p), 0), check_dtype=False)


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 7, 8, 9, 63, 65])
@pytest.mark.parametrize("p", [0.2, 0.5])
def test_any_number_of_elements(n: int, p: float) -> None:
    torch.manual_seed(0)
    calls = torch.stack([Dropout(p)(torch.ones(n)) for _ in range(200)])
    assert ((calls == 0).any(0) & (calls != 0).any(0)).all()


@pytest.mark.parametrize("shape", [(0,), (0, 5), (3, 0, 2)])
def test_no_elements(shape: tuple[int, ...]) -> None:
    x = torch.empty(shape, requires_grad=True)
    y = Dropout(0.5)(x)
    y.sum().backward()
    assert y.shape == shape
    assert x.grad is not None


def test_scalar() -> None:
    torch.manual_seed(0)
    assert {float(Dropout(0.5)(torch.tensor(1.0))) for _ in range(50)} == {0.0, 2.0}


@pytest.mark.parametrize(
    "x",
    [
        torch.rand(6, 5, 4, 3).to(memory_format=torch.channels_last),
        torch.rand(40, 30).t(),
        torch.rand(40, 30)[::2, 1::3],
        torch.rand(40, 1).expand(40, 30),
        torch.rand(8, 9, 10).permute(2, 0, 1),
    ],
    ids=["channels_last", "transposed", "strided", "expanded", "permuted"],
)
@pytest.mark.parametrize("p", [0.2, 0.5])
def test_layouts(x: torch.Tensor, p: float) -> None:
    torch.manual_seed(0)
    before = x.clone()
    y = Dropout(p)(x)
    keep = y != 0
    assert_close(y, torch.where(keep, x / in_force(p), 0))
    assert abs(float(keep.double().mean()) - (1 - p)) < 4.5 * math.sqrt(p * (1 - p) / x.numel())
    assert torch.equal(x, before)
    torch.manual_seed(0)
    assert torch.equal(Dropout(p)(x.contiguous()), y)  # one seed, one mask


def test_channels_last_stays_channels_last() -> None:
    x = torch.rand(6, 5, 4, 3).to(memory_format=torch.channels_last)
    assert Dropout(0.5)(x).is_contiguous(memory_format=torch.channels_last)


def test_identity_in_eval_mode_and_for_p_zero() -> None:
    x = torch.rand(100)
    state = torch.get_rng_state()
    assert torch.equal(Dropout(0.5).eval()(x), x)
    assert torch.equal(Dropout(0.0)(x), x)
    assert torch.equal(torch.get_rng_state(), state)


def test_p_one_drops_everything() -> None:
    x = torch.rand(100, requires_grad=True)
    y = Dropout(1.0)(x)
    y.sum().backward()
    assert not y.any()
    assert x.grad is not None
    assert not x.grad.any()


@pytest.mark.parametrize("p", [-0.1, 1.1, float("nan")])
def test_p_outside_the_unit_interval_is_refused(p: float) -> None:
    with pytest.raises(ValueError, match=r"must lie in \[0, 1\], got"):
        Dropout(p)


@pytest.mark.parametrize("p", [0, 1])
def test_integer_p(p: int) -> None:
    assert torch.equal(Dropout(p)(torch.ones(5)), nn.Dropout(p)(torch.ones(5)))


def test_copies_and_prints() -> None:
    drop = copy.deepcopy(Dropout(0.2))
    assert repr(drop) == "Dropout(p=0.2)"
    assert not drop.state_dict()

"""Rows of narrow dtypes are the numbers they are: their rank is that of the same numbers in float32."""

import pytest
import torch
from torch import nn

from codecl import GPM, Conceptor, Moments

NARROW = [torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.float8_e5m2]


@pytest.mark.parametrize("n", [20, 200])
@pytest.mark.parametrize("dtype", NARROW, ids=str)
def test_moments_of_narrow_rows_are_those_of_the_same_numbers(dtype, n):
    X = torch.randn(n, 64, generator=torch.Generator().manual_seed(0)) * torch.logspace(0, -3, 64)
    rows = X.to(dtype)
    narrow, wide = Moments.of(rows), Moments.of(rows.float())
    assert narrow.floor == wide.floor
    for a, b in zip(narrow.spectrum(), wide.spectrum(), strict=True):
        assert torch.equal(a, b)
    assert Conceptor.fit(rows, 100.0).capacity == Conceptor.fit(rows.float(), 100.0).capacity


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_the_rank_does_not_fall_with_the_dtype(dtype):
    X = torch.randn(300, 64, generator=torch.Generator().manual_seed(1), dtype=torch.float64) * torch.logspace(
        0, -2, 64
    )
    assert Moments.of(X.to(dtype)).spectrum()[1].shape == (64,)


def test_autocast_protects_as_many_directions():
    ranks = []
    X = torch.randn(256, 32, generator=torch.Generator().manual_seed(2)) * torch.logspace(0, -2, 32)
    for enabled in (False, True):
        torch.manual_seed(0)
        method = GPM(nn.Sequential(nn.Linear(32, 32), nn.Linear(32, 3)), heads=["1"], threshold=1.0, samples=None)
        method.begin_task(0)
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            method.end_task([(X, None)])
        ranks.append(method.memory["0.weight"][0].rank)
    assert ranks == [32, 32]


def test_what_has_no_values_is_refused():
    with pytest.raises(ValueError, match=r"dense tensor with values; got one stored as torch.sparse_coo"):
        Moments.of(torch.eye(3).to_sparse())
    with pytest.raises(ValueError, match="got one on the meta device"):
        Moments.of(torch.empty(3, 3, device="meta"))

"""Effective weights, ``W (I + U M Uᵀ)``, on the weight side and on the input side."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

from codecl.attach import Mixing
from tests.layers.cases import effective, mixings, normal, orthonormal, seeds

VARIANTS = [(False, False), (False, True), (True, False), (True, True)]


@given(st.data(), st.integers(1, 3), st.integers(1, 6), seeds)
def test_effective_weight(data, g, d, seed):
    mixing, W = data.draw(mixings(g, d)), normal(seed, g, 4, d)
    assert_close(mixing.weight(W), effective(W, mixing))


@given(st.data(), st.integers(1, 6), seeds)
def test_changed_rows_on_the_shared_weight_are_rows_on_the_effective_weight(data, d, seed):
    mixing, W, X = data.draw(mixings(1, d)), normal(seed, 1, 4, d), normal(seed + 1, 5, d)
    if mixing.on_inputs:
        assert_close(mixing.rows(X) @ W[0].mT, X @ effective(W, mixing)[0].mT)


@pytest.mark.parametrize(("replace", "hold"), VARIANTS)
@pytest.mark.parametrize("g", [1, 2])
def test_where_it_can_be_applied(replace, hold, g):
    """A held component has two gradients for one value: only the weight side knows both."""
    mixing = Mixing(torch.zeros(g, 4, 2), torch.zeros(g, 2, 2), replace, hold)
    assert mixing.on_inputs == (g == 1 and not (replace and hold))


@pytest.mark.parametrize(("replace", "hold"), VARIANTS)
def test_empty_columns_change_nothing(replace, hold):
    """Groups of lower rank are filled up with zeros, whatever ``M`` holds there."""
    U, M, W = orthonormal(0, 5, 2)[None], normal(1, 1, 4, 4), normal(2, 1, 3, 5)
    padded = torch.cat([U, torch.zeros_like(U)], dim=2)
    narrow, wide = Mixing(U, M[:, :2, :2].clone(), replace, hold), Mixing(padded, M, replace, hold)
    assert_close(wide.weight(W), narrow.weight(W))
    assert_close(wide.rows(normal(3, 2, 5)), narrow.rows(normal(3, 2, 5)))


def test_it_starts_where_it_says():
    U, W = orthonormal(0, 5, 3)[None], normal(1, 1, 4, 5)
    zero = torch.zeros(1, 3, 3, dtype=torch.float64)
    assert torch.equal(Mixing(U, zero).weight(W), W)
    assert_close(Mixing(U, zero, replace=True).weight(W), W - W @ U @ U.mT)
    assert_close(Mixing(U, torch.eye(3).double()[None], replace=True).weight(W), W)


@pytest.mark.parametrize(("replace", "hold"), VARIANTS)
def test_state_makes_it_again(replace, hold):
    mixing = Mixing(orthonormal(0, 5, 2)[None], normal(1, 1, 2, 2), replace, hold)
    W = normal(2, 1, 3, 5)
    state = mixing.state()
    again = Mixing.from_state(state, like=W)
    assert torch.equal(again.weight(W), mixing.weight(W))
    assert again.on_inputs == mixing.on_inputs
    before = mixing.weight(W).detach().clone()
    with torch.no_grad():
        again.M.add_(1)
    assert torch.equal(mixing.weight(W), before)
    assert torch.equal(state["M"], mixing.M)
    assert [p is again.M for p in again.parameters()] == [True]

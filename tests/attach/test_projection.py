"""``A (I − C)`` against the dense matrix, and the gradient sides that are made of it."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

from codecl import Conceptor
from codecl.attach.projection import (
    Dense,
    Entrywise,
    LowRank,
    project_away,
    project_conceptors,
    projected_linear,
    projected_weight,
)
from tests.layers.cases import Memory, attached, memories, memory_of, normal, orthonormal, redrawn, seeds

EYE = torch.eye(8, dtype=torch.float64)


@given(st.data(), st.integers(1, 3), st.integers(1, 8), st.integers(1, 4), seeds)
def test_projection_is_multiplication_by_the_dense_matrix(data, g, d, m, seed):
    memory = data.draw(memories(g, d))
    A = normal(seed, g, m, d)
    assert_close(memory.projection(A)(A), A - A @ memory.dense, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("rest", [0, 1])
@pytest.mark.parametrize("k", [0, 3, 4, 5, 8])
def test_both_ways_of_holding_it(k, rest):
    """As a basis up to half of the dimension, as one matrix above it."""
    memory = memory_of(0, 8, [k], [rest])
    projection = memory.projection(EYE)
    assert isinstance(projection, Dense if k > 4 else LowRank)
    assert k > 4 or projection.basis.shape == (1, 8, k)
    assert_close(projection(EYE[None])[0], EYE - memory.dense[0], rtol=1e-12, atol=1e-12)


def test_projection_of_conceptors_of_different_rank_and_rest():
    some, none, all_but = Conceptor.fit(normal(0, 2, 8), 3.0), Conceptor.zero(8), ~Conceptor.fit(normal(1, 3, 8), 2.0)
    projection = project_conceptors([some, none, all_but], EYE)
    A = normal(2, 3, 5, 8)
    dense = torch.stack([some.dense(), none.dense(), all_but.dense()])
    assert_close(projection(A), A - A @ dense, rtol=1e-12, atol=1e-12)


def test_what_is_fully_remembered_is_removed_and_the_rest_untouched():
    U = orthonormal(0, 8, 3)
    projection = Memory([U], [torch.ones(3, dtype=torch.float64)], [0]).projection(EYE)
    assert_close(projection(U.mT[None])[0], torch.zeros(3, 8, dtype=torch.float64), rtol=0, atol=1e-14)
    outside = orthonormal(0, 8, 8)[:, 3:].mT
    assert_close(projection(outside[None])[0], outside)


@pytest.mark.parametrize(("dtype", "atol"), [(torch.float32, 1e-5), (torch.bfloat16, 3e-2), (torch.float16, 4e-3)])
@pytest.mark.parametrize("k", [2, 6])
def test_result_has_the_dtype_of_the_operand(dtype, atol, k):
    memory, A = memory_of(0, 8, [k], [0]), normal(1, 1, 4, 8).to(dtype)
    result = memory.projection(A)(A)
    assert result.dtype == dtype
    assert_close(result.double(), A.double() @ (EYE - memory.dense), rtol=0, atol=atol)


@pytest.mark.parametrize("k", [2, 6])
def test_narrow_operands_are_projected_in_float32(k):
    """One rounding of the result, and none of the basis: bfloat16 products would leak ten times this."""
    U = orthonormal(0, 8, k)
    A = normal(1, 1, 64, 8).bfloat16()
    projection = Memory([U], [torch.ones(k, dtype=torch.float64)], [0]).projection(A)
    exact = A.double() @ (EYE - U @ U.mT)
    assert_close(projection(A), exact.bfloat16(), rtol=2**-7, atol=1e-6)


@pytest.mark.parametrize("k", [2, 6])
def test_autocast_does_not_reach_the_projection(k):
    U = orthonormal(0, 8, k)
    A = normal(1, 1, 64, 8, dtype=torch.float32)
    projection = Memory([U], [torch.ones(k, dtype=torch.float64)], [0]).projection(A)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = projection(A)
        assert torch.is_autocast_enabled("cpu")
    assert torch.equal(inside, projection(A))


@given(st.data(), st.integers(1, 6), st.integers(1, 5), st.integers(0, 6), st.booleans(), seeds)
def test_input_side_and_gradient_side_are_the_slow_formula(data, d, o, n, with_bias, seed):
    """``dW = δᵀ X (I − C)``, ``dX = δ W``, ``db = Σ δ``."""
    memory = data.draw(memories(1, d))
    projection = memory.projection(EYE)
    X, W, delta = normal(seed, n, d), normal(seed + 1, o, d), normal(seed + 2, n, o)
    bias = normal(seed + 3, o) if with_bias else None
    leaves = [t.requires_grad_() for t in (X, W, bias) if t is not None]
    input_side = projected_linear(X, W, bias, projection)
    gradient_side = torch.nn.functional.linear(X, projected_weight(W[None], projection)[0], bias)
    C = memory.dense[0]
    slow = [delta @ W, delta.mT @ X @ (torch.eye(d, dtype=C.dtype) - C), delta.sum(0)][: len(leaves)]
    for Y in (input_side, gradient_side):
        assert_close(Y, X @ W.mT + (0 if bias is None else bias))
        for gradient, expected in zip(torch.autograd.grad(Y, leaves, delta), slow, strict=True):
            assert_close(gradient, expected.detach(), rtol=1e-11, atol=1e-11)


def test_a_gradient_penalty_is_projected_too():
    """The second derivative reaches ``W`` through ``dX``: without a projection there it moves old outputs."""
    memory = Memory([orthonormal(0, 8, 3)], [torch.ones(3, dtype=torch.float64)], [0])
    projection = memory.projection(EYE)
    X = normal(0, 4, 8).requires_grad_()
    found = []
    for side in (0, 1):
        W = normal(1, 5, 8).requires_grad_()
        Y = projected_linear(X, W, None, projection) if side == 0 else X @ projected_weight(W[None], projection)[0].mT
        (dX,) = torch.autograd.grad(Y.tanh().sum(), X, create_graph=True)
        found.append(torch.autograd.grad(dX.square().sum(), W)[0])
    W = normal(1, 5, 8).requires_grad_()
    (dX,) = torch.autograd.grad((X @ W.mT).tanh().sum(), X, create_graph=True)
    bare = torch.autograd.grad(dX.square().sum(), W)[0]
    for gradient in found:
        assert_close(gradient, bare @ (EYE - memory.dense[0]))
    assert (bare @ memory.bases[0]).abs().max() > 0.1


def test_entries_are_kept_one_by_one():
    kept, G = torch.rand(2, 3, 4, generator=torch.Generator().manual_seed(0)), normal(0, 2, 3, 4)
    projection = Entrywise(kept)
    assert_close(projection(G), G * kept.double())
    assert projection.capacity == pytest.approx(1 - float(kept.mean()))
    assert not projection.on_inputs
    assert not projection.removes(orthonormal(0, 4, 2).expand(2, -1, -1))


@pytest.mark.parametrize("n", [2, 40])
def test_what_is_kept_entry_by_entry_is_projected_on_the_gradient_side(n):
    layer, x = redrawn(torch.nn.Linear(4, 3)), normal(1, n, 4)
    kept = torch.rand(1, 3, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    with attached(layer) as weights:
        weights["weight"].projection = Entrywise(kept)
        layer(x).sum().backward()
    assert_close(layer.weight.grad, x.sum(0) * kept[0])


@pytest.mark.parametrize("k", [3, 6])
def test_directions_are_removed_if_they_are_wholly_remembered(k):
    U = orthonormal(0, 8, k)
    for s, removed in ((1.0, True), (0.999, False)):
        projection = Memory([U], [torch.full((k,), s, dtype=torch.float64)], [0]).projection(EYE)
        assert projection.removes(U[None]) == removed


def test_by_default_directions_are_projected_away_wholly_and_the_rest_not_at_all():
    U, A = orthonormal(0, 8, 3), normal(1, 1, 5, 8)
    assert_close(project_away([U], EYE)(A), A - A @ U @ U.mT)

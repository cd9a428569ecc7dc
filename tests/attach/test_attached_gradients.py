"""Gradients through attached forwards against the formulas written out.

dW = δᵀ X' (I − C)          dM = Uᵀ Wᵀ G_eff U,  G_eff = δᵀ X          dX = δ W (I + U M Uᵀ)
"""

import copy

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.testing import assert_close

from tests.attach.forward_cases import CLOSE, linear, mixing_of, remembered
from tests.layers.cases import (
    UNEVEN,
    Memory,
    attached,
    backward_nodes,
    convolutions,
    effective,
    linears,
    memories,
    memory_of,
    mixing_gradient,
    mixings,
    normal,
    redrawn,
    weight_gradient,
)

pytestmark = UNEVEN


@given(st.data(), linears())
def test_linear_gradients_are_the_formulas(data, case):
    """No autograd on the right-hand side."""
    layer, x = case
    d, o = layer.in_features, layer.out_features
    memory, mixing = data.draw(memories(1, d)), data.draw(mixings(1, d))
    delta = normal(0, *x.shape[:-1], o)
    with attached(layer) as weights:
        weights["weight"].projection, weights["weight"].change = memory.projection(layer.weight), mixing
        x.requires_grad_()
        y = layer(x)
        y.backward(delta)
    X, W, D = x.detach().reshape(-1, d), layer.weight.detach(), delta.reshape(-1, o)
    W_eff = effective(W[None], mixing)[0]
    assert_close(y.detach(), x.detach() @ W_eff.mT + (0 if layer.bias is None else layer.bias.detach()), **CLOSE)
    G_eff = (D.mT @ X)[None]
    assert_close(layer.weight.grad, weight_gradient(G_eff, mixing, memory.dense)[0], **CLOSE)
    assert_close(mixing.M.grad, mixing_gradient(G_eff, W[None], mixing), **CLOSE)
    assert_close(x.grad, delta @ W_eff, **CLOSE)
    if layer.bias is not None:
        assert_close(layer.bias.grad, D.sum(0), **CLOSE)


@given(st.data(), convolutions())
def test_convolution_gradients_are_the_formulas(data, case):
    """``G_eff`` from a bare layer that holds ``W_eff``; everything else by hand, with a conceptor for each group."""
    layer, x = case
    bare = copy.deepcopy(layer)
    g = layer.groups
    W = layer.weight.detach().reshape(g, layer.out_channels // g, -1)
    memory, mixing = data.draw(memories(g, W.shape[-1])), data.draw(mixings(g, W.shape[-1]))
    with torch.no_grad():
        bare.weight.copy_(effective(W, mixing).reshape(bare.weight.shape))
    inputs = [x.clone().requires_grad_() for _ in range(2)]
    with attached(layer) as weights:
        weights["weight"].projection, weights["weight"].change = memory.projection(layer.weight), mixing
        y, expected = layer(inputs[0]), bare(inputs[1])
        delta = normal(0, *y.shape)
        y.backward(delta)
        expected.backward(delta)
    G_eff = bare.weight.grad.reshape(W.shape)
    assert_close(y, expected, **CLOSE)
    assert_close(inputs[0].grad, inputs[1].grad, **CLOSE)
    assert_close(layer.weight.grad, weight_gradient(G_eff, mixing, memory.dense).reshape(layer.weight.shape), **CLOSE)
    assert_close(mixing.M.grad, mixing_gradient(G_eff, W, mixing), **CLOSE)
    if layer.bias is not None:
        assert_close(layer.bias.grad, bare.bias.grad, **CLOSE)


@pytest.mark.parametrize("kind", ["projection", "both", "replace", "hold"])
@pytest.mark.parametrize("n", [2, 5, 6, 40])
def test_association_is_chosen_by_cost_and_does_not_matter(n, kind):
    """Up to as many rows as outputs are projected on the input side; what is held back knows the weight side only."""
    layer, memory, x = linear(), memory_of(0, 8, [3], [0]), normal(1, n, 8)
    mixing = {
        "projection": None,
        "both": mixing_of(),
        "replace": mixing_of(replace=True),
        "hold": mixing_of(replace=True, hold=True),
    }[kind]
    with attached(layer) as weights:
        weights["weight"].projection, weights["weight"].change = memory.projection(layer.weight), mixing
        y = layer(x)
        y.square().sum().backward()
    on_inputs = n <= 5 and kind != "hold"
    assert ("ProjectedLinearBackward" in backward_nodes(y)) == on_inputs
    assert ("ProjectedWeightBackward" in backward_nodes(y)) != on_inputs
    G_eff = (2 * y.detach().mT @ x)[None]
    assert_close(layer.weight.grad, weight_gradient(G_eff, mixing, memory.dense)[0], **CLOSE)


@pytest.mark.parametrize("n", [2, 40])
def test_accumulated_gradients_are_projected_once(n):
    layer, memory = linear(), memory_of(0, 8, [3], [0])
    xs = [normal(i, n, 8) for i in range(3)]
    with attached(layer) as weights:
        weights["weight"].projection = memory.projection(layer.weight)
        for x in xs:
            layer(x).sum().backward()
    G = torch.ones(5, 3 * n, dtype=torch.float64) @ torch.cat(xs)
    assert_close(layer.weight.grad, weight_gradient(G[None], None, memory.dense)[0], **CLOSE)


@pytest.mark.parametrize("n", [2, 40])
def test_a_module_used_twice_in_one_pass(n):
    layer, memory, mixing = linear(8, 8), memory_of(0, 8, [5], [1]), mixing_of()
    x = normal(1, n, 8)
    with attached(layer) as weights:
        weights["weight"].projection, weights["weight"].change = memory.projection(layer.weight), mixing
        layer(layer(x).tanh()).sum().backward()
    bare = copy.deepcopy(layer)
    with torch.no_grad():
        bare.weight.copy_(effective(layer.weight, mixing)[0])
    bare.zero_grad()
    bare(bare(x).tanh()).sum().backward()
    G_eff = bare.weight.grad[None]
    assert_close(layer.weight.grad, weight_gradient(G_eff, mixing, memory.dense)[0], **CLOSE)
    assert_close(mixing.M.grad, mixing_gradient(G_eff, layer.weight.detach()[None], mixing), **CLOSE)


@pytest.mark.parametrize("n", [3, 60])
def test_exact_with_dropout(n):
    """The same mask on both sides: the projected gradient is the bare one times ``I − C``."""
    model = nn.Sequential(nn.Dropout(0.5), linear(), nn.Dropout(0.5))
    memory, x = memory_of(0, 8, [3], [0]), normal(1, n, 8)

    def gradient() -> torch.Tensor:
        model.zero_grad()
        with torch.random.fork_rng():
            torch.manual_seed(3)
            model(x).square().sum().backward()
        return model[1].weight.grad

    bare = gradient()
    with attached(model) as weights:
        weights["1.weight"].projection = memory.projection(model[1].weight)
        assert_close(gradient(), weight_gradient(bare[None], None, memory.dense)[0], **CLOSE)
    assert bare.abs().max() > 1


@pytest.mark.parametrize("n", [3, 60])
def test_inputs_that_are_not_contiguous(n):
    layer, memory, mixing = linear(), memory_of(0, 8, [3], [0]), mixing_of()
    x = normal(1, 8, n).mT
    assert not x.is_contiguous()
    found = []
    with attached(layer) as weights:
        weights["weight"].projection, weights["weight"].change = memory.projection(layer.weight), mixing
        for given_x in (x, x.contiguous(), x.reshape(1, n, 8).expand(1, n, 8)):
            layer.zero_grad()
            y = layer(given_x).reshape(n, 5)
            y.mT.contiguous().mT.square().sum().backward()
            found.append((y.detach(), layer.weight.grad.clone()))
    for y, gradient in found[1:]:
        assert_close(y, found[0][0], **CLOSE)
        assert_close(gradient, found[0][1], **CLOSE)


@pytest.mark.parametrize("n", [2, 40])
def test_gradient_flows_where_it_is_wanted_and_nowhere_else(n):
    """A frozen input, a frozen weight, a frozen bias."""
    layer, memory, mixing, x = linear(), memory_of(0, 8, [3], [0]), mixing_of(), normal(1, n, 8)
    with attached(layer) as weights:
        weights["weight"].projection, weights["weight"].change = memory.projection(layer.weight), mixing
        layer(x).sum().backward()
        full = layer.weight.grad.clone(), mixing.M.grad.clone()
        assert x.grad is None
        layer.bias.requires_grad_(False)
        layer.zero_grad()
        mixing.M.grad = None
        layer(x).sum().backward()
        assert layer.bias.grad is None
        assert_close((layer.weight.grad, mixing.M.grad), full)
        layer.weight.requires_grad_(False)
        layer.zero_grad()
        layer(x).sum().backward()
        assert layer.weight.grad is None
        mixing.M.requires_grad_(False)
        x.requires_grad_()
        layer(x).sum().backward()
    assert_close(x.grad, torch.ones(n, 5).double() @ effective(layer.weight, mixing)[0], **CLOSE)


@pytest.mark.parametrize("n", [2, 40])
def test_a_guard_that_projects_the_update_leaves_the_gradient_alone(n):
    layer, x = linear(), normal(1, n, 8)
    with attached(layer) as weights:
        weights["weight"].projection = remembered().projection(layer.weight)
        weights["weight"].projects_gradient = False
        layer(x).sum().backward()
    assert_close(layer.weight.grad, x.sum(0).expand(5, 8))


def test_projection_of_a_tensor_in_the_shape_of_the_parameter():
    layer = redrawn(nn.Conv1d(4, 6, 2, groups=2))
    memory, value = memory_of(0, 4, [2, 3], [0, 1]), normal(5, 6, 2, 2)
    with attached(layer) as weights:
        assert weights["weight"].project(value) is value
        weights["weight"].projection = memory.projection(layer.weight)
        expected = weight_gradient(value.reshape(2, 3, 4), None, memory.dense).reshape(6, 2, 2)
        assert_close(weights["weight"].project(value), expected)


@pytest.mark.parametrize("layer", [nn.Linear(8, 5), nn.Conv1d(4, 5, 2)])
def test_protected_outputs_stay_when_every_direction_of_the_old_inputs_is_remembered(layer):
    layer = redrawn(layer)
    old, new = normal(1, 3, 8), normal(2, 6, 8)
    shape = (-1, 8) if isinstance(layer, nn.Linear) else (-1, 4, 2)
    U = torch.linalg.qr(old.mT).Q
    before_old, before_new = layer(old.reshape(shape)).detach(), layer(new.reshape(shape)).detach()
    layer.bias.requires_grad_(False)
    with attached(layer) as weights:
        weights["weight"].projection = Memory([U], [torch.ones(3, dtype=torch.float64)], [0]).projection(layer.weight)
        optimizer = torch.optim.SGD(layer.parameters(), lr=0.02)
        for _ in range(20):
            optimizer.zero_grad()
            layer(new.reshape(shape)).square().sum().backward()
            optimizer.step()
    assert_close(layer(old.reshape(shape)), before_old, rtol=0, atol=1e-12)
    assert (layer(new.reshape(shape)) - before_new).abs().max() > 0.3

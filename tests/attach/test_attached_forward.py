"""Training through attached forwards against the formulas written out.

dW = δᵀ X' (I − C)          dM = Uᵀ Wᵀ G_eff U,  G_eff = δᵀ X          dX = δ W (I + U M Uᵀ)
"""

import copy

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.func import functional_call
from torch.testing import assert_close

from codecl.attach import Mixing, attach, survey
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
    orthonormal,
    redrawn,
    weight_gradient,
)

pytestmark = UNEVEN
CLOSE = {"rtol": 1e-10, "atol": 1e-10}


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


def linear(n_in: int = 8, n_out: int = 5, **settings) -> nn.Linear:
    return redrawn(nn.Linear(n_in, n_out, **settings))


def remembered(d: int = 8, k: int = 3) -> Memory:
    """Directions that are remembered for good, ``s = 1``."""
    return Memory([orthonormal(7, d, k)], [torch.ones(k, dtype=torch.float64)], [0])


def mixing_of(d: int = 8, K: int = 2, **variant: bool) -> Mixing:
    return Mixing(orthonormal(8, d, K)[None], normal(9, 1, K, K), **variant)


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
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, torch.enable_grad])
def test_outputs_are_those_of_the_effective_weight_in_every_mode(n, mode):
    layer, mixing, x = linear().eval(), mixing_of(), normal(1, n, 8)
    bare = layer(x).detach()
    expected = x @ effective(layer.weight.detach(), mixing)[0].mT + layer.bias.detach()
    with attached(layer) as weights:
        weights["weight"].projection = remembered().projection(layer.weight)
        with mode():
            assert_close(layer(x), bare, **CLOSE)
            weights["weight"].change = mixing
            assert_close(layer(x), expected, **CLOSE)
            assert layer(x).requires_grad == (mode is torch.enable_grad)
        assert_close(weights["weight"].effective(), effective(layer.weight.detach(), mixing)[0], **CLOSE)
    assert_close(layer(x), bare, **CLOSE)
    assert (expected - bare).abs().max() > 0.1


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


@pytest.mark.parametrize("backward_inside", [False, True])
@pytest.mark.parametrize("layer", [nn.Linear(8, 5), nn.Linear(8, 80), nn.Conv1d(4, 5, 2)], ids=["few", "many", "conv"])
def test_under_autocast_the_weight_side_stays_in_float32(layer, backward_inside):
    layer = redrawn(layer, dtype=torch.float32)
    memory, mixing = remembered(), mixing_of()
    mixing = Mixing(mixing.U.float(), mixing.M.detach().float())
    x = normal(1, 16, 8, dtype=torch.float32) if isinstance(layer, nn.Linear) else normal(1, 16, 4, 6).float()
    with attached(layer) as weights:
        weights["weight"].projection, weights["weight"].change = memory.projection(layer.weight), mixing
        seen = []
        layer.register_forward_hook(lambda *_: seen.append(torch.is_autocast_enabled("cpu")))
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = layer(x)
            loss = y.float().square().sum()
            if backward_inside:
                loss.backward()
        if not backward_inside:
            loss.backward()
        assert y.dtype == torch.bfloat16
        assert seen == [True]
        G = layer.weight.grad.flatten(1).double()
        leak = (G @ memory.bases[0]).abs().max() / G.abs().max()
        assert G.abs().max() > 1
        assert leak < 1e-6  # bfloat16 would leak 5e-3
        assert layer.weight.grad.dtype == torch.float32


def test_the_effective_weight_is_not_rounded_by_autocast():
    conv, x = redrawn(nn.Conv1d(4, 5, 2), dtype=torch.float32), normal(1, 2, 4, 6, dtype=torch.float32)
    mixing = Mixing(orthonormal(8, 8, 2)[None].float(), normal(9, 1, 2, 2).float())
    with attached(conv) as weights:
        weights["weight"].change = mixing
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = conv(x)
            exact = weights["weight"].effective()
            baked = nn.functional.conv1d(x, exact, conv.bias)
        assert torch.equal(y, baked)


def test_bfloat16_weights_are_projected_on_the_weight_side():
    layer, memory = redrawn(nn.Linear(8, 5), dtype=torch.bfloat16), remembered()
    with attached(layer) as weights:
        weights["weight"].projection = memory.projection(layer.weight)
        y = layer(normal(1, 2, 8).bfloat16())
        y.sum().backward()
    assert "ProjectedLinearBackward" not in backward_nodes(y)
    bare = normal(1, 2, 8).bfloat16().sum(0)
    expected = bare.double() @ (torch.eye(8).double() - memory.dense[0])
    assert_close(layer.weight.grad[0].double(), expected, rtol=2e-2, atol=2e-3)


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


def test_an_empty_batch_passes():
    for layer, x in ((linear(), torch.zeros(2, 0, 8)), (nn.Conv1d(4, 5, 2), torch.zeros(0, 4, 6))):
        layer.double()
        with attached(layer) as weights:
            weights["weight"].projection = remembered().projection(layer.weight)
            y = layer(x.double())
            y.sum().backward()
        assert y.shape == layer(x.double()).shape
        assert layer.weight.grad.abs().sum() == 0


def test_an_input_of_another_dtype_fails_as_it_does_bare():
    layer = linear()
    with attached(layer) as weights:
        weights["weight"].projection = remembered().projection(layer.weight)
        with pytest.raises(RuntimeError, match="dtype"):
            layer(torch.zeros(2, 8, dtype=torch.float32))
        with pytest.raises(TypeError):
            layer("text")
        assert set(layer._parameters) == {"weight", "bias"}
        assert isinstance(layer.weight, nn.Parameter)


@pytest.mark.parametrize("n", [2, 40])
def test_keyword_calls_and_hooks_are_those_of_the_module(n):
    layer, mixing, x = linear(), mixing_of(), normal(1, n, 8)
    seen = []
    layer.register_forward_pre_hook(lambda module, args: (2 * args[0],) if args else None)
    layer.register_forward_hook(lambda module, args, output: seen.append(output.detach()) or output + 1)
    with attached(layer) as weights:
        weights["weight"].change = mixing
        W_eff = effective(layer.weight.detach(), mixing)[0]
        assert_close(layer(x), 2 * x @ W_eff.mT + layer.bias + 1, **CLOSE)
        assert_close(layer(input=x), x @ W_eff.mT + layer.bias + 1, **CLOSE)
    assert_close(seen[0], (2 * x @ W_eff.mT + layer.bias).detach(), **CLOSE)


@pytest.mark.parametrize("n", [2, 40])
def test_functional_call_puts_other_weights_in_place(n):
    """They are projected and changed like the module's own."""
    layer, mixing, memory, x = linear(), mixing_of(), remembered(), normal(1, n, 8)
    other = {"weight": normal(20, 5, 8).requires_grad_(), "bias": normal(21, 5)}
    with attached(layer) as weights:
        weights["weight"].projection, weights["weight"].change = memory.projection(layer.weight), mixing
        y = functional_call(layer, other, (x,))
    assert_close(y, x @ effective(other["weight"], mixing)[0].mT + other["bias"], **CLOSE)
    (gradient,) = torch.autograd.grad(y.sum(), other["weight"])
    G_eff = torch.ones(1, 5, n, dtype=torch.float64) @ x
    assert_close(gradient, weight_gradient(G_eff, mixing, memory.dense)[0], **CLOSE)


class ByItself(nn.Linear):
    """Calls itself for each part of its input."""

    def forward(self, x):
        return super().forward(x) if x.ndim == 2 else torch.stack([self(part) for part in x])


def test_a_forward_that_calls_its_own_module_is_changed_once():
    layer, mixing, memory = redrawn(ByItself(8, 5)), mixing_of(), remembered()
    x = normal(1, 2, 3, 8)
    with attached(layer) as weights:
        weights["weight"].projection, weights["weight"].change = memory.projection(layer.weight), mixing
        y = layer(x)
        y.sum().backward()
    assert_close(y, x @ effective(layer.weight.detach(), mixing)[0].mT + layer.bias, **CLOSE)
    G_eff = x.sum((0, 1)).expand(1, 5, 8)
    assert_close(layer.weight.grad, weight_gradient(G_eff, mixing, memory.dense)[0], **CLOSE)


def test_a_forward_that_fails_leaves_the_module_as_it_was():
    layer = redrawn(nn.Conv1d(4, 5, 2))
    weight = layer.weight
    with attached(layer) as weights:
        weights["weight"].projection = remembered().projection(weight)
        with pytest.raises(RuntimeError):
            layer(torch.zeros(1, 3, 6, dtype=torch.float64))
        assert layer.weight is weight
        assert weights["weight"].calls == 0
        layer(normal(0, 1, 4, 6)).sum().backward()
        assert (weight.grad.flatten(1) @ remembered().bases[0]).abs().max() < 1e-12
        assert weight.grad.abs().max() > 0.1


def test_gradient_checkpointing_recomputes_the_same():
    model = nn.Sequential(linear(8, 8), nn.Tanh(), linear(8, 5))
    x = normal(1, 3, 8).requires_grad_()
    found = []
    with attached(model) as weights:
        for weight in weights.values():
            weight.projection = memory_of(0, 8, [3], [0]).projection(weight.parameter)
            weight.change = mixing_of()
        for again in (False, True):
            model.zero_grad()
            y = torch.utils.checkpoint.checkpoint(model, x, use_reentrant=False) if again else model(x)
            y.square().sum().backward()
            found.append([p.grad.clone() for p in model.parameters()])
    assert_close(found[0], found[1], **CLOSE)


def test_a_model_is_attached_to_once():
    model = nn.Sequential(linear())
    with attached(model):
        for again in (model, copy.deepcopy(model)):
            with pytest.raises(RuntimeError, match=r"another method is attached.*'0'.*detach\(\)"):
                attach(again, survey(again).protected)
    with attached(model) as weights:
        assert list(weights) == ["0.weight"]

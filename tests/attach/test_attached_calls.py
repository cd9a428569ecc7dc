"""However an attached module is called, it answers as one with the effective weight, and fails as the bare one does."""

import copy

import pytest
import torch
from torch import nn
from torch.func import functional_call
from torch.testing import assert_close

from codecl.attach import attach, survey
from tests.attach.forward_cases import CLOSE, linear, mixing_of, remembered
from tests.layers.cases import UNEVEN, attached, effective, memory_of, normal, redrawn, weight_gradient

pytestmark = UNEVEN


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

"""Attention against itself written out: the rows of every weight, effective weights on every path, gradients."""

import copy

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.testing import assert_close

from codecl import UnseenUse
from codecl.attach import Mixing, capture_moments
from tests.attach.capture_cases import gram
from tests.layers.attention_cases import Case, attentions, by_hand
from tests.layers.cases import (
    attached,
    effective,
    memories,
    memory_of,
    mixing_gradient,
    mixings,
    normal,
    orthonormal,
    redrawn,
    weight_gradient,
)

CLOSE = {"rtol": 1e-9, "atol": 1e-9}


@given(attentions())
def test_every_weight_sees_its_rows(case):
    output, rows = by_hand(case)
    with attached(case.layer) as weights:
        assert_close(case(), output, **CLOSE)
        seen = capture_moments(case.layer, weights, [case], lambda model, batch: batch(model))
    assert set(seen) == set(rows)
    for name, several in seen.items():
        for moments, X in zip(several, rows[name], strict=True):
            assert moments.count == len(X)
            assert_close(gram(moments), X.mT @ X, rtol=1e-8, atol=1e-8)


@given(st.data(), attentions())
def test_gradients_are_the_formulas(data, case):
    """``G_eff`` of each weight from a bare layer that holds the effective weights; the rest by hand."""
    bare = copy.deepcopy(case.layer)
    delta = normal(0, *case.inputs[0].shape)
    with attached(case.layer) as weights:
        held = {}
        for name, weight in weights.items():
            g, _, d = weight.shape
            held[name] = data.draw(memories(g, d)), data.draw(mixings(g, d))
            weight.projection, weight.change = held[name][0].projection(weight.parameter), held[name][1]
            W = weight.matrices().detach()
            bare.get_parameter(name).data = effective(W, weight.change).reshape(weight.parameter.shape)
        output, expected = case(), case(bare)
        output.backward(delta)
        expected.backward(delta)
        assert_close(output, expected, **CLOSE)
        for name, weight in weights.items():
            memory, mixing = held[name]
            G = weight.matrices(bare.get_parameter(name).grad)
            wanted = weight_gradient(G, mixing, memory.dense).reshape(weight.parameter.shape)
            assert_close(weight.parameter.grad, wanted, **CLOSE)
            assert_close(mixing.M.grad, mixing_gradient(G, weight.matrices().detach(), mixing), **CLOSE)
    for name, parameter in case.layer.named_parameters():
        if name not in weights:
            assert_close(parameter.grad, bare.get_parameter(name).grad, **CLOSE)


@given(attentions(), st.integers(1, 3))
def test_the_first_inputs_of_a_call_have_the_first_rows(case, n):
    with attached(case.layer) as weights:
        for weight in weights.values():
            (kind,) = weight.uses
            x = kind.call(case.inputs, case.masks)
            B = kind.inputs(x)
            for whole, part in zip(kind.rows(x), kind.rows(kind.first(x, n)), strict=True):
                assert_close(part, whole[: len(whole) // B * min(n, B)], **CLOSE)


def self_attention(**settings) -> Case:
    layer = redrawn(nn.MultiheadAttention(4, 2, batch_first=True, **settings))
    x = normal(3, 2, 5, 4)
    return Case(layer, (x, x, x), {})


def test_the_output_projection_sees_what_the_effective_weights_make():
    """The rows of one weight depend on the change of another."""
    case = self_attention()
    with attached(case.layer) as weights:
        weight = weights["in_proj_weight"]
        weight.change = mixing_of(weight)
        baked = copy.deepcopy(case)
        baked.layer.__dict__.pop("forward", None)
        baked.layer.in_proj_weight.data = weight.effective()
        seen = capture_moments(case.layer, weights, [case], lambda model, batch: batch(model))
    _, rows = by_hand(baked)
    X = rows["out_proj.weight"][0]
    assert_close(gram(seen["out_proj.weight"][0]), X.mT @ X, rtol=1e-8, atol=1e-8)
    _, unchanged = by_hand(case)
    assert (X - unchanged["out_proj.weight"][0]).abs().max() > 1e-3


def mixing_of(weight, seed: int = 5) -> Mixing:
    g, _, d = weight.shape
    return Mixing(torch.stack([orthonormal(seed + i, d, 2) for i in range(g)]), normal(seed, g, 2, 2))


def test_rows_under_dropout_are_those_of_the_call_that_follows():
    case = self_attention(dropout=0.5)
    with attached(case.layer) as weights:
        heard = []
        weight = weights["out_proj.weight"]
        weight.listeners.append(lambda _, kind, x: heard.append(kind.rows(x)))
        torch.manual_seed(0)
        output = case()
        after = torch.rand(1)
    (stack,) = heard
    bias = case.layer.out_proj.bias
    assert_close(output, (stack[0] @ case.layer.out_proj.weight.mT + bias).reshape(output.shape), **CLOSE)
    torch.manual_seed(0)
    assert_close(case(), output, **CLOSE)
    assert torch.equal(torch.rand(1), after)


MODELS = {
    "encoder layer": lambda: nn.TransformerEncoderLayer(4, 2, 6, batch_first=True),
    "pre-norm": lambda: nn.TransformerEncoderLayer(4, 2, 6, batch_first=True, norm_first=True, activation="gelu"),
    "encoder": lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(4, 2, 6, batch_first=True), 2),
    "attention": lambda: nn.MultiheadAttention(4, 2, batch_first=True),
}


def run(model: nn.Module, x, **masks):
    return model(x, x, x, **masks)[0] if isinstance(model, nn.MultiheadAttention) else model(x, **masks)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")  # the plain encoder's own
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("name", MODELS)
def test_fused_evaluation_runs_on_effective_weights(name, padded):
    """Under ``eval()`` and ``no_grad`` torch calls none of the inner modules; ours are the exported ones."""
    model, x = redrawn(MODELS[name]()).eval(), normal(1, 3, 5, 4)
    masks = {}
    if padded:
        hidden = torch.zeros(3, 5, dtype=torch.bool)
        hidden[1, 3:] = True
        masks = {"key_padding_mask" if name == "attention" else "src_key_padding_mask": hidden}
    before = run(model, x, **masks).detach()
    plain = copy.deepcopy(model)
    with attached(model) as weights:
        for i, (inner, weight) in enumerate(weights.items()):
            weight.change = mixing_of(weight, i)
            plain.get_parameter(inner).data = weight.effective()
        with torch.no_grad():
            fast = run(model, x, **masks)
            expected = run(plain, x, **masks)  # fused
        slow = run(model, x, **masks)
        assert torch.backends.mha.get_fastpath_enabled()
    seen = ~masks.popitem()[1] if masks else torch.ones(3, 5, dtype=torch.bool)
    assert_close(fast[seen], expected[seen], **CLOSE)
    assert_close(slow[seen].detach(), expected[seen], **CLOSE)
    assert (fast - before)[seen].abs().max() > 1e-3
    assert not any("forward" in vars(module) for module in model.modules())


def test_all_layers_of_a_fused_encoder_are_captured():
    model, x = redrawn(MODELS["encoder"]()).eval(), normal(1, 3, 5, 4)
    with attached(model) as weights, torch.no_grad():
        seen = capture_moments(model, weights, [x])
        assert set(seen) == set(weights)
        inner = {}
        for name, module in model.named_modules():
            if isinstance(module, nn.Linear) and "linear" in name:
                module.register_forward_pre_hook(lambda m, a, name=name: inner.setdefault(f"{name}.weight", a[0]))
        model(x)
    assert len(inner) == 4
    for name, X in inner.items():
        assert_close(gram(seen[name][0]), X.reshape(-1, X.shape[-1]).mT @ X.reshape(-1, X.shape[-1]), **CLOSE)


def test_a_decoder_sees_the_memory_it_attends_to():
    model = redrawn(nn.TransformerDecoderLayer(4, 2, 6)).eval()
    x, memory = normal(1, 3, 2, 4), normal(2, 5, 2, 4)
    with attached(model) as weights:
        seen = capture_moments(model, weights, [(x, memory)], lambda m, batch: m(*batch))
    _, keys, values = seen["multihead_attn.in_proj_weight"]
    X = memory.reshape(-1, 4)
    assert_close(gram(keys), X.mT @ X, **CLOSE)
    assert_close(gram(values), X.mT @ X, **CLOSE)


class Doubled(nn.MultiheadAttention):
    def forward(self, *args, **kwargs):
        output, weights = super().forward(*args, **kwargs)
        return 2 * output, weights


class Same(nn.MultiheadAttention):
    def forward(self, *args, **kwargs):
        return super().forward(*args, **kwargs)


def test_a_subclass_that_computes_something_else_is_refused():
    x = normal(1, 2, 3, 4)
    for layer, refused in ((Same(4, 2), False), (Doubled(4, 2), True)):
        model = redrawn(nn.ModuleDict({"a": layer}))
        with attached(model) as weights:
            see = [lambda m, batch: m["a"](batch, batch, batch)]
            if refused:
                with pytest.raises(UnseenUse, match="'a' is Doubled, whose forward is not the weight times its rows"):
                    capture_moments(model, weights, [x], see[0])
            else:
                assert set(capture_moments(model, weights, [x], see[0])) == {"a.in_proj_weight", "a.out_proj.weight"}


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_nested_inputs_are_named():
    case = self_attention()
    x = torch.nested.nested_tensor([torch.zeros(2, 4), torch.zeros(3, 4)])
    with attached(case.layer) as weights, pytest.raises(ValueError, match="'in_proj_weight': its inputs are nested"):
        capture_moments(case.layer, weights, [x], lambda m, batch: m(batch, batch, batch))


def test_memory_of_a_packed_weight_is_three_memories():
    case = self_attention()
    with attached(case.layer) as weights:
        weight = weights["in_proj_weight"]
        memory = memory_of(0, 4, [1, 2, 3], [0, 0, 0])
        weight.projection = memory.projection(weight.parameter)
        V = normal(1, 12, 4)
        eye = torch.eye(4, dtype=torch.float64)
        expected = torch.cat([part @ (eye - C) for part, C in zip(V.chunk(3), memory.dense, strict=True)])
        assert_close(weight.project(V), expected, **CLOSE)

"""Weights that a layer normalises: rows, gradients and updates against the formulas, and whole second tasks."""

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn.utils.parametrizations import orthogonal, spectral_norm, weight_norm
from torch.testing import assert_close

from codecl import API, GPM, OWM, TRGP, CodeCL, UncoveredWeights
from codecl.attach import capture_moments, survey
from tests.layers.cases import attached, memory_of, normal, redrawn, seeds

CLOSE = {"rtol": 1e-9, "atol": 1e-9}


class ScaledStdConv2d(nn.Conv2d):
    """Each filter less its mean, over its deviation, times a gain and 1/√d, as timm has it."""

    __module__ = "timm.layers.std_conv"
    eps, gamma = 1e-6, 1.7

    def __init__(self, *args, **settings):
        super().__init__(*args, **settings)
        self.scale = self.gamma / math.sqrt(self.weight[0].numel())
        self.gain = nn.Parameter(torch.ones(self.out_channels, 1, 1, 1))

    def forward(self, x):
        w = self.weight
        centred = w - w.mean((1, 2, 3), keepdim=True)
        deviation = (centred.square().mean((1, 2, 3), keepdim=True) + self.eps).sqrt()
        weight = self.gain * self.scale * centred / deviation
        return F.conv2d(x, weight, self.bias, self.stride, self.padding, self.dilation, self.groups)


LAYERS = {
    "Linear": (lambda: weight_norm(nn.Linear(5, 4)), (3, 5)),
    "Linear, one norm": (lambda: weight_norm(nn.Linear(5, 4), dim=None), (3, 5)),
    "Linear, inputs": (lambda: weight_norm(nn.Linear(5, 4), dim=1), (3, 5)),
    "Conv2d": (lambda: weight_norm(nn.Conv2d(4, 6, 3, groups=2)), (2, 4, 4, 4)),
    "Conv1d, kernel": (lambda: weight_norm(nn.Conv1d(4, 6, 3), dim=2), (2, 4, 5)),
    "ConvTranspose1d": (lambda: weight_norm(nn.ConvTranspose1d(4, 6, 3, stride=2, groups=2)), (2, 4, 4)),
    "ConvTranspose1d, outputs": (lambda: weight_norm(nn.ConvTranspose1d(4, 6, 3, groups=2), dim=1), (2, 4, 4)),
    "Embedding": (lambda: weight_norm(nn.Embedding(6, 3)), None),
    "ScaledStdConv2d": (lambda: ScaledStdConv2d(4, 6, 3, stride=2, padding=1, groups=2), (2, 4, 5, 5)),
}


def drawn(name, seed):
    make, shape = LAYERS[name]
    layer = redrawn(make(), seed)
    ids = torch.randint(0, 6, (3, 2), generator=torch.Generator().manual_seed(seed))
    return layer, ids if shape is None else normal(seed + 9, *shape)


@given(st.sampled_from(sorted(LAYERS)), seeds)
def test_rows_times_the_weight_in_use_are_the_output(name, seed):
    layer, x = drawn(name, seed)
    with attached(layer) as weights, torch.no_grad():
        (weight,) = weights.values()
        kind = weight.kind
        if not isinstance(layer, nn.Embedding):
            assert kind.describes(kind.call((x,), {}), lambda: layer(x))
            assert not kind.describes(kind.call((x,), {}), lambda: 1.1 * layer(x))
        assert len(capture_moments(layer, weights, [x])) == 1


@given(st.sampled_from(sorted(LAYERS)), seeds)
def test_allowed_updates_move_no_old_output(name, seed):
    """Any update that the projection lets through, in the parameter; the gain follows it."""
    layer, x = drawn(name, seed)
    before = layer(x).detach()
    with attached(layer) as weights, torch.no_grad():
        ((_, weight),) = weights.items()
        (seen,) = capture_moments(layer, weights, [x]).values()
        bases = [moments.spectrum()[0] for moments in seen]
        old, W = weight.snapshot(), weight.matrices()
        step = normal(seed + 5, *W.shape)
        step = torch.stack([s - s @ B @ B.mT for s, B in zip(step, bases, strict=True)])
        weight.parameter += weight.kind.parameter(step)
        weight.restrict(old)
        assert weight.always_restricts
        assert_close(layer(x), before, rtol=1e-7, atol=1e-7)


@given(st.sampled_from(sorted(LAYERS)), seeds)
def test_a_projected_weight_is_used_linearly(name, seed):
    """While it is projected, the gradient of ``V`` is that of ``a ∘ V`` with the factors held, projected."""
    layer, x = drawn(name, seed)
    with attached(layer) as weights:
        (weight,) = weights.values()
        (g, _, d), kind = weight.shape, weight.kind
        delta = normal(seed + 6, *layer(x).shape)
        held = kind._factors
        memory = memory_of(seed, d, [min(1, d - 1)] * g, [0] * g)
        weight.projection = memory.projection(weight.parameter)
        y = layer(x)
        y.backward(delta)
        # The reference: the bare function of the weight in use, linear in V.
        V = weight.parameter.detach().clone().requires_grad_(True)
        if isinstance(layer, ScaledStdConv2d):
            use = held * (V - V.mean((1, 2, 3), keepdim=True))
            out = F.conv2d(x, use, layer.bias, layer.stride, layer.padding, layer.dilation, layer.groups)
        elif isinstance(layer, nn.Embedding):
            out = F.embedding(x, held * V)
        elif isinstance(layer, nn.Linear):
            out = F.linear(x, held * V, layer.bias)
        else:
            transposed = isinstance(layer, nn.ConvTranspose1d)
            function = F.conv_transpose1d if transposed else getattr(F, f"conv{x.ndim - 2}d")
            out = function(x, held * V, layer.bias, layer.stride, layer.padding, groups=layer.groups)
        assert_close(y, out, **CLOSE)
        out.backward(delta)
        eye = torch.eye(d, dtype=torch.float64)
        wanted = kind.parameter(kind.matrices(V.grad) @ (eye - memory.dense))
        assert_close(weight.parameter.grad, wanted, **CLOSE)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = ScaledStdConv2d(2, 12, 3, padding=1)
        self.up = weight_norm(nn.ConvTranspose2d(12, 8, 2, stride=2, groups=2))
        self.fc = weight_norm(nn.Linear(128, 12))
        self.head = nn.Linear(12, 3)

    def forward(self, x):
        return self.head(torch.tanh(self.fc(torch.tanh(self.up(torch.tanh(self.stem(x)))).flatten(1))))


SGD, DECAY = {"lr": 0.1, "momentum": 0.9}, {"lr": 0.05, "weight_decay": 0.1}
METHODS = {
    "gpm": lambda model, **s: GPM(model, threshold=1.0, **s),
    "code-cl": lambda model, **s: CodeCL(model, aperture=1e7, overlap=0.0, free_dims=2, **s),
    "trgp": lambda model, **s: TRGP(model, threshold=1.0, **s),
    "api": lambda model, **s: API(model, threshold=1.0, **s),
}


@pytest.mark.parametrize("method_name", METHODS)
@pytest.mark.parametrize("optimizer", ["sgd", "decay", "adamw"])
def test_a_second_task_moves_nothing_of_the_first(method_name, optimizer):
    model = redrawn(Net())
    method = METHODS[method_name](model, heads=["head"])
    make = {"sgd": lambda p: torch.optim.SGD(p, **SGD), "decay": lambda p: torch.optim.SGD(p, **DECAY)}
    step = make.get(optimizer, lambda p: torch.optim.AdamW(p, lr=0.02))(model.parameters())
    method.guard(step)
    tasks = [(normal(t, 2, 2, 2, 2), torch.tensor([t, 2])) for t in range(2)]
    for t, (x, y) in enumerate(tasks):
        method.begin_task(t, [(x, y)])
        start = model.fc.parametrizations.weight.original1.detach().clone()
        for _ in range(8):
            step.zero_grad(set_to_none=optimizer != "adamw")  # with gradients of zero, AdamW shrinks gains by itself
            F.cross_entropy(model(x), y).backward()
            step.step()
        assert (model.fc.parametrizations.weight.original1 - start).abs().max() > 1e-3
        method.end_task([(x, y)])
        if t == 0:
            before = model(x).detach()
    with method.task(0):
        assert_close(model(tasks[0][0]), before, rtol=1e-6, atol=1e-6)
    assert_close(method.export(0)(tasks[0][0]), before, rtol=1e-6, atol=1e-6)
    after = model(tasks[1][0])
    assert_close(method.export(1)(tasks[1][0]), after, rtol=1e-6, atol=1e-6)


def test_owm_projects_from_the_first_step_and_holds_the_factors():
    model = redrawn(Net()).train()
    method = OWM(model, heads=["head"])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    method.guard(optimizer)
    x, y = normal(0, 2, 2, 2, 2), torch.tensor([0, 2])
    method.begin_task(0, [(x, y)])
    factors = [weight.kind._factors for weight in method.weights.values()]
    for _ in range(3):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    for weight, held in zip(method.weights.values(), factors, strict=True):
        assert_close(weight.kind._factors, held, **CLOSE)


def test_the_table_says_what_becomes_of_a_gain():
    table = survey(nn.Sequential(weight_norm(nn.Linear(3, 2))))
    assert table["0.parametrizations.weight.original1"].note == "2 outputs × 3 inputs"
    row = table["0.parametrizations.weight.original0"]
    assert (row.role, row.note) == ("scale", "follows the weight that it scales, once that is protected")


@pytest.mark.parametrize("rest", [None, "freeze"])
@pytest.mark.parametrize("apply", [spectral_norm, nn.utils.spectral_norm])
def test_a_spectral_norm_is_refused_whatever_becomes_of_the_rest(apply, rest):
    model = nn.Sequential(nn.Linear(3, 3), apply(nn.Linear(3, 3)))
    with pytest.raises(UncoveredWeights, match="its spectral_norm divides by an estimate that changes in training"):
        GPM(model, rest=rest)


def test_other_parametrizations_are_refused_and_can_be_held():
    model = nn.Sequential(orthogonal(nn.Linear(3, 3)), weight_norm(weight_norm(nn.Linear(3, 3))))
    with pytest.raises(UncoveredWeights, match=r"'0.parametrizations.weight.original' \(.*\): no layer kind"):
        GPM(model)
    assert survey(model, rest="freeze")["0.parametrizations.weight.original"].role == "rest"

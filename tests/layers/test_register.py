"""A layer type of one's own in a few lines: GPT-2's Linear with a transposed weight."""

import copy

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from codecl import CodeCL, LayerKind, UncoveredWeights, register, register_norm
from codecl.attach import Mixing, capture_moments, survey
from codecl.layers import base as kinds
from codecl.layers import kind_of, norms
from tests.layers.cases import (
    attached,
    effective,
    memory_of,
    mixing_gradient,
    normal,
    orthonormal,
    redrawn,
    weight_gradient,
)


class Conv1D(nn.Module):
    """``y = x W + b``, ``W: [d, o]``, as transformers writes it."""

    def __init__(self, d: int, o: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(d, o))
        self.bias = nn.Parameter(torch.empty(o))

    def forward(self, x):
        return torch.addmm(self.bias, x.flatten(0, -2), self.weight).view(*x.shape[:-1], -1)


class TransposedLinear(LayerKind):
    pointwise = True

    def matrices(self, weight):
        return weight.mT.unsqueeze(0)

    def parameter(self, matrices):
        return matrices.squeeze(0).mT

    def rows(self, x):
        return x.flatten(0, -2).unsqueeze(0)


@pytest.fixture(autouse=True)
def own_registry(monkeypatch):
    """What a test registers is gone after it."""
    monkeypatch.setattr(kinds, "_KINDS", dict(kinds._KINDS))
    monkeypatch.setattr(norms, "_NORMS", list(norms._NORMS))


def test_unregistered_it_is_uncovered():
    with pytest.raises(UncoveredWeights, match=r"'0.weight' \(Conv1D\): no layer kind is registered"):
        survey(nn.Sequential(Conv1D(4, 3)))


@pytest.mark.parametrize("n", [1, 20])
@pytest.mark.parametrize("pointwise", [True, False])
def test_gradients_are_the_formulas_on_both_sides(n, pointwise):
    register(Conv1D)(type("Kind", (TransposedLinear,), {"pointwise": pointwise}))
    layer, x = redrawn(Conv1D(6, 4)), normal(1, n, 2, 6)
    memory, mixing = memory_of(0, 6, [2], [0]), Mixing(orthonormal(3, 6, 2)[None], normal(4, 1, 2, 2))
    delta = normal(5, n, 2, 4)
    with attached(layer) as weights:
        assert weights["weight"].shape == (1, 4, 6)
        weights["weight"].projection, weights["weight"].change = memory.projection(layer.weight), mixing
        y = layer(x)
        y.backward(delta)
        assert_close(weights["weight"].effective(), effective(layer.weight.detach().mT, mixing)[0].mT)
    W = layer.weight.detach().mT[None]
    G_eff = (delta.flatten(0, 1).mT @ x.flatten(0, 1))[None]
    assert_close(y.detach(), x @ effective(W, mixing)[0].mT + layer.bias.detach())
    assert_close(layer.weight.grad, weight_gradient(G_eff, mixing, memory.dense)[0].mT)
    assert_close(mixing.M.grad, mixing_gradient(G_eff, W, mixing))
    assert_close(layer.bias.grad, delta.sum((0, 1)))


def test_it_learns_without_forgetting():
    register(Conv1D)(TransposedLinear)
    model = redrawn(nn.Sequential(Conv1D(12, 10), nn.Tanh(), nn.Linear(10, 2)))
    bare, start = copy.deepcopy(model), copy.deepcopy(model)
    method = CodeCL(model, heads=["2"], aperture=1e4, free_dims=0)
    old, new = normal(1, 4, 12), normal(2, 4, 12)
    for net in (model, bare):
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        if net is model:
            method.guard(optimizer)
            method.begin_task(0, [old])
            method.end_task([old])
            method.begin_task(1, [new])
        before = net[0](old).detach()
        for _ in range(10):
            optimizer.zero_grad()
            net(new).square().sum().backward()
            optimizer.step()
        drift = (net[0](old) - before).abs().max()
        assert drift < 1e-6 if net is model else drift > 1e-2
    assert (model[0].weight - start[0].weight).abs().max() > 1e-2


def test_its_rows_are_captured():
    register(Conv1D)(TransposedLinear)
    model, x = redrawn(nn.Sequential(Conv1D(4, 3))), normal(1, 2, 3, 4)
    with attached(model) as weights:
        (moments,) = capture_moments(model, weights, [x])["0.weight"]
    U, sigma = moments.spectrum()
    X = x.flatten(0, 1)
    assert moments.count == 6
    assert_close((U * sigma**2) @ U.mT, X.mT @ X)


def test_subclasses_follow_and_the_nearest_wins():
    class Own(Conv1D):
        pass

    class Nearer(TransposedLinear):
        pass

    register(Conv1D)(TransposedLinear)
    assert kind_of(Own(2, 2)) is TransposedLinear
    assert register(Own)(Nearer) is Nearer
    assert kind_of(Own(2, 2)) is Nearer
    assert kind_of(Conv1D(2, 2)) is TransposedLinear


class Two(nn.Module):
    """Two weights and a bias under names of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down, self.shift = nn.Linear(3, 5).weight, nn.Linear(5, 3).weight, nn.Parameter(torch.zeros(3))

    def forward(self, x):
        return (x @ self.up.mT) @ self.down.mT + self.shift


class TwoKind(LayerKind):
    weights, biases = ("up", "down"), ("shift",)

    def matrices(self, weight):
        return weight.unsqueeze(0)

    def rows(self, x):
        return (x if self.name == "up" else x @ self.module.up.mT).unsqueeze(0)


def test_a_module_may_hold_several_weights():
    register(Two)(TwoKind)
    layer, x = redrawn(Two()), normal(1, 4, 3)
    assert {row.name: row.role for row in survey(layer)} == {"up": "protected", "down": "protected", "shift": "bias"}
    bare = copy.deepcopy(layer)
    bare(x).square().sum().backward()
    memories = {"up": memory_of(0, 3, [1], [0]), "down": memory_of(1, 5, [2], [1])}
    with attached(layer) as weights:
        for name, memory in memories.items():
            weights[name].projection = memory.projection(weights[name].parameter)
        layer(x).square().sum().backward()
        seen = capture_moments(layer, weights, [x])
    for name, memory in memories.items():
        gradient = bare.get_parameter(name).grad[None]
        assert_close(layer.get_parameter(name).grad, weight_gradient(gradient, None, memory.dense)[0])
    assert_close(float(seen["down"][0].total), float((x @ layer.up.mT.detach()).square().sum()))


def test_a_norm_of_ones_own():
    @register_norm
    class Scale(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gain = nn.Parameter(torch.ones(3))

        def forward(self, x):
            return x * self.gain

    model = nn.Sequential(nn.Linear(3, 3), Scale())
    assert survey(model)["1.gain"].role == "norm"
    assert register_norm(Scale) is Scale
    assert norms._NORMS.count(Scale) == 1


@pytest.mark.parametrize("method", ["matrices", "rows"])
def test_a_kind_must_say_what_its_matrices_and_rows_are(method):
    with pytest.raises(NotImplementedError):
        getattr(LayerKind(nn.Linear(2, 2), "weight"), method)(torch.zeros(2, 2))

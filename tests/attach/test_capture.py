"""Seeing what a model feeds its weights: all of it, and without a trace."""

import random

import numpy as np
import pytest
import torch
from torch import nn
from torch.testing import assert_close

from codecl import CodeCL
from codecl.attach import Mixing, capture_moments
from codecl.layers import convolution
from tests.attach.capture_cases import X, captured, gram, square
from tests.layers.cases import attached, normal, redrawn


class Noisy(nn.Module):
    """Draws from all three random states as it runs, and fails on demand."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.drop, self.second = nn.Linear(4, 4), nn.Dropout(0.5), nn.Linear(4, 2)
        self.norm = nn.BatchNorm1d(4)
        self.fail = False
        self.seen: list[bool] = []

    def forward(self, x):
        self.seen += [self.training, self.drop.training, torch.is_grad_enabled()]
        torch.rand(3), random.random(), np.random.rand()
        y = self.second(self.drop(self.norm(self.first(x))))
        if self.fail:
            raise ArithmeticError("no")
        return y


@pytest.mark.parametrize("fail", [False, True])
def test_flags_and_random_states_are_as_they_were(fail):
    model = redrawn(Noisy()).train()
    model.drop.eval()
    model.second.eval()
    model.fail = fail
    flags = {name: module.training for name, module in model.named_modules()}
    before = {name: value.clone() for name, value in model.state_dict().items()}
    states = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].copy()
    with attached(model) as weights:
        if fail:
            with pytest.raises(ArithmeticError):
                capture_moments(model, weights, [normal(0, 3, 4)])
        else:
            assert set(capture_moments(model, weights, [normal(0, 3, 4)])) == {"first.weight", "second.weight"}
        assert all(weight.listeners == [] and weight.calls == 0 for weight in weights.values())
    assert model.seen == [False, False, False]
    assert {name: module.training for name, module in model.named_modules()} == flags
    assert set(flags.values()) == {True, False}
    assert torch.equal(torch.get_rng_state(), states[0])
    assert random.getstate() == states[1]
    assert (np.random.get_state()[1] == states[2]).all()
    assert torch.is_grad_enabled()
    assert_close(dict(model.state_dict()), before, rtol=0, atol=0)  # running statistics included
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_rows_that_are_not_finite_name_the_weight(bad):
    model = redrawn(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2)))
    with torch.no_grad():
        model[0].weight[0, 0] = bad
    with (
        attached(model) as weights,
        pytest.raises(ValueError, match=r"'1.weight': rows hold NaN or infinite values \(6 of 6"),
    ):
        capture_moments(model, weights, [X.abs()])


def test_batches_add_up_and_an_empty_one_adds_nothing():
    model = redrawn(nn.Linear(4, 2))
    with attached(model) as weights:
        (moments,) = capture_moments(model, weights, [X[:1], X[:0], X[1:]])["weight"]
    assert moments.count == 6
    assert_close(gram(moments), square(X))


@pytest.mark.parametrize("groups", [1, 2])
def test_rows_of_a_convolution_in_parts(monkeypatch, groups):
    model, x = redrawn(nn.Conv2d(4, 4, 2, groups=groups)), normal(0, 5, 4, 4, 4)
    whole = captured(model, [x])
    monkeypatch.setattr(convolution, "NUMBERS_AT_ONCE", 1)
    assert_close(captured(model, [x]), whole)
    expected = [square(nn.functional.unfold(part, 2).mT.flatten(0, 1)) for part in x.chunk(groups, dim=1)]
    assert_close(whole["weight"], expected)


class Twice(nn.Module):
    """One module, called twice in a pass; and another that shares its weight."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)
        self.b.weight = self.a.weight

    def forward(self, x):
        one = self.a(x).tanh()
        two = self.a(one).tanh()
        return self.b(two)


def test_all_uses_of_a_weight_are_one_set_of_rows():
    model = redrawn(Twice())
    with torch.no_grad():
        one = model.a(X).tanh()
        two = model.a(one).tanh()
    with attached(model) as weights:
        seen = capture_moments(model, weights, [X])
    assert list(seen) == ["a.weight"]
    (moments,) = seen["a.weight"]
    assert moments.count == 18
    assert_close(gram(moments), square(torch.cat([X, one, two])))


def test_rows_are_those_of_the_changed_network():
    """What a layer sees depends on the effective weights before it."""
    model = redrawn(nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 2)))
    mixing = Mixing(torch.eye(4).double()[None], torch.eye(4).double()[None])  # W (I + I)
    with attached(model) as weights:
        weights["0.weight"].change = mixing
        seen = capture_moments(model, weights, [X])
    assert_close(gram(seen["1.weight"][0]), square(2 * X @ model[0].weight.detach().mT))


def test_protected_outputs_of_a_tied_weight_hold():
    """A conceptor for each module, each from its own rows, would let the other's rows move."""

    class Pair(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(12, 3, bias=False), nn.Linear(12, 3, bias=False)
            self.b.weight = self.a.weight

        def forward(self, x):
            return self.a(x[:, :12]) * self.b(x[:, 12:]).tanh()

    model, old, new = redrawn(Pair()), normal(1, 3, 24), normal(2, 3, 24)
    method = CodeCL(model, aperture=1e5, free_dims=0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    method.guard(optimizer)
    before, learned = model(old).detach(), model(new).detach()
    for task, data in enumerate((old, new)):
        method.begin_task(task, [data])
        for _ in range(20 * task):
            optimizer.zero_grad()
            (model(data) - 1).square().sum().backward()
            optimizer.step()
        method.end_task([data])
    assert_close(model(old), before, rtol=0, atol=1e-7)
    assert (model(new) - learned).abs().max() > 0.05


def test_a_module_never_called_is_left_out():
    model = redrawn(nn.ModuleDict({"a": nn.Linear(4, 4), "b": nn.Linear(4, 4)}))
    assert list(captured(model, [X], forward=lambda model, batch: model["b"](batch))) == ["b.weight"]

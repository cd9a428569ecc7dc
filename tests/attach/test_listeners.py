"""Several may listen to a weight at a time."""

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from codecl.attach import capture_moments, listen
from codecl.attach.capture import listening
from tests.layers.cases import attached, memory_of, normal, redrawn


def network() -> nn.Module:
    return redrawn(nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2)))


def test_all_listeners_are_told_of_every_call_in_their_order():
    model, x, told = network(), normal(0, 5, 4), []
    with attached(model) as weights:
        first, second = weights.values()
        for name in "ab":
            first.listeners.append(lambda weight, kind, x, name=name: told.append((name, weight, kind, x)))
        model(x)
        assert [name for name, *_ in told] == ["a", "b"]
        assert all(weight is first and kind is first.kind and seen is x for _, weight, kind, seen in told)
        with listening([second], lambda weight, kind, x: told.append(("c", weight, kind, x))):
            model[2](input=x[:, :3])
        model(x)
    assert [name for name, *_ in told] == ["a", "b", "c", "a", "b"]
    assert torch.equal(told[2][3], x[:, :3])


def test_capturing_leaves_other_listeners_in_place():
    model, x, told = network(), normal(0, 5, 4), []

    def listener(weight, kind, x):
        told.append((weight.name, x))

    with attached(model) as weights:
        weights["0.weight"].listeners.append(listener)
        (moments,) = capture_moments(model, weights, [x])["0.weight"]
        assert moments.count == 5
        assert [name for name, _ in told] == ["0.weight"]
        assert [weight.listeners for weight in weights.values()] == [[listener], []]
        with pytest.raises(ZeroDivisionError):
            listen(model, weights, [x], lambda *_: 1 / 0)
        assert [weight.listeners for weight in weights.values()] == [[listener], []]


@pytest.mark.parametrize("n", [2, 40], ids=["input side", "gradient side"])
def test_listeners_see_the_inputs_on_both_sides(n):
    model, x, told = network(), normal(0, n, 4), []
    with attached(model) as weights:
        weight = weights["0.weight"]
        weight.projection = memory_of(0, 4, [1], [0]).projection(weight.parameter)
        weight.listeners.append(lambda _, kind, x: told.append(kind.rows(x)))
        model(x)
    assert_close(told, [x[None]])

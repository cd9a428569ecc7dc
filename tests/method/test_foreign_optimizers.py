"""Old momentum is dropped where it comes back, fused optimizers train on, and one of another model is refused."""

import copy

import pytest
import torch
from torch import optim

from tests.method.foreign_cases import FULL, ONE, TWO, one_task
from tests.methods.cases import drift, inputs, mlp, outputs_of, train


@pytest.mark.parametrize("fused", [None, True])
@pytest.mark.parametrize("when", ["before guard", "after guard"])
def test_momentum_from_before_the_end_of_a_task_is_dropped_where_it_comes_back(when, fused):
    method, _ = one_task(FULL["gpm"], momentum=0.9, fused=fused)
    before, model = outputs_of(method, 0, inputs(ONE)), method.model
    other = mlp()
    old = optim.SGD(other.parameters(), lr=0.05, momentum=0.9, fused=fused)
    train(other, ONE, old, epochs=2)
    saved = old.state_dict()
    method.begin_task(1, TWO)
    fresh = optim.SGD(model.parameters(), lr=0.05, momentum=0.9, fused=fused)
    if when == "before guard":
        fresh.load_state_dict(saved)
    method.guard(fresh)
    if when == "after guard":
        fresh.load_state_dict(saved)
    train(model, TWO, fresh)
    assert drift(outputs_of(method, 0, inputs(ONE)), before) < 1e-9


def test_momentum_of_the_task_itself_comes_back():
    def run(saved):
        method, _ = one_task(FULL["gpm"])
        method.begin_task(1, TWO)
        method.guard(optimizer := optim.SGD(method.model.parameters(), lr=0.05, momentum=0.9))
        train(method.model, TWO, optimizer, epochs=2)
        if saved:
            kept = copy.deepcopy(optimizer.state_dict())
            method.guard(optimizer := optim.SGD(method.model.parameters(), lr=0.05, momentum=0.9))
            optimizer.load_state_dict(kept)
        train(method.model, TWO, optimizer, epochs=2)
        return method.model.state_dict()

    whole, resumed = run(False), run(True)
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)


@pytest.mark.parametrize("name", ["gpm", "code-cl"])  # which adds parameters
def test_a_fused_optimizer_trains_a_second_task(name):
    ended = []
    for fused in (None, True):
        method, optimizer = one_task(FULL[name], momentum=0.9, fused=fused)
        method.begin_task(1, TWO)
        train(method.model, TWO, optimizer)
        ended.append(method.model.first.weight)
    torch.testing.assert_close(*ended)


def test_the_guard_refuses_an_optimizer_of_another_model():
    method, _ = one_task(FULL["gpm"])
    with pytest.raises(ValueError, match="this SGD trains no parameter of the model that gpm is attached to"):
        method.guard(optim.SGD(mlp().parameters(), lr=0.1))

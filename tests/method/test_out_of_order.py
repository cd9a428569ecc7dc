"""What is done in the wrong order or place: it is refused with its remedy, and nothing is lost by it."""

import copy
import io
import pickle

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.testing import assert_close

from codecl import API, EWC, GPM, CodeCL, Method
from codecl.method.state import ForeignState
from tests.methods.cases import inputs, learn, mlp, outputs_of, task_data

TASKS = [task_data(t) for t in range(3)]


def learned(make=CodeCL, tasks=2):
    method = make(mlp(), heads=["head"])
    learn(method, TASKS[:tasks])
    return method


@pytest.mark.parametrize("make", [CodeCL, GPM, CodeCL.own])
def test_a_state_is_refused_by_a_model_with_other_weights_and_taken_by_its_own(make):
    method = learned(make)
    told = outputs_of(method, 0, inputs(TASKS[0]))
    state, weights = method.state_dict(), copy.deepcopy(method.model.state_dict())
    torch.manual_seed(7)
    fresh = make(mlp(), heads=["head"])
    for module in fresh.model.modules():
        if isinstance(module, nn.Linear):
            module.reset_parameters()
    with pytest.raises(ForeignState, match=r"does not hold the weights .* Load the model's own state first"):
        fresh.load_state_dict(state)
    assert fresh.tasks == []
    fresh.model.load_state_dict(weights)
    fresh.load_state_dict(state)
    assert_close(outputs_of(fresh, 0, inputs(TASKS[0])), told, atol=0, rtol=0)


def test_a_state_fits_its_weights_in_another_dtype():
    method = learned()
    other = CodeCL(mlp(), heads=["head"])
    other.model.load_state_dict(method.model.state_dict())
    other.model.bfloat16()
    other.load_state_dict(method.state_dict())
    assert other.tasks == [0, 1]


def test_a_state_from_before_models_were_told_apart_is_taken():
    state = learned().state_dict()
    del state["model"]
    other = CodeCL(mlp(), heads=["head"])
    other.load_state_dict(state)
    assert other.tasks == [0, 1]


def begin(method, optimizer):
    method.begin_task(1, TASKS[1])


def step(method, optimizer):
    x, y = TASKS[1][0]
    cross_entropy(method.model(x), y).backward()
    optimizer.step()


def end(method, optimizer):
    method.end_task(TASKS[1])


def detach(method, optimizer):
    method.detach()


@pytest.mark.parametrize("act", [begin, step, end, detach])
def test_nothing_is_learned_where_a_task_is_shown(act):
    method = learned(tasks=1)
    optimizer = torch.optim.SGD(method.model.parameters(), lr=0.1)
    method.guard(optimizer)
    if within := act in (step, end):
        method.begin_task(1, TASKS[1])
    with method.task(0), pytest.raises(RuntimeError, match="begin, train, end tasks and detach outside of it"):
        act(method, optimizer)
    assert method.is_learning == within
    assert len(method.per_task.stored) == 1


def test_a_copy_clears_its_own_gradients():
    model = nn.Linear(4, 2)
    Method(model)
    copied = copy.deepcopy(model)
    for network in (model, copied):
        network(torch.ones(1, 4)).sum().backward()
    copied.zero_grad()
    assert copied.weight.grad is None
    assert torch.equal(model.weight.grad, torch.ones(2, 4))


@pytest.mark.parametrize("save", [pickle.dumps, lambda what: torch.save(what, io.BytesIO())])
def test_what_cannot_be_pickled_says_what_to_save(save):
    method = learned(tasks=1)
    for what in (method, method.model):
        with pytest.raises(TypeError, match=r"code-cl is attached .* save model.state_dict\(\) and method.state_dict"):
            save(what)
    method.detach()
    save(method.model)


@pytest.mark.parametrize(("first", "second"), [(EWC, CodeCL), (CodeCL, EWC), (EWC, EWC), (Method, GPM)])
def test_a_second_method_is_refused_whatever_either_protects(first, second):
    model = mlp()
    method = first(model, heads=["head"])
    with pytest.raises(RuntimeError, match="another method is attached to this model"):
        second(model, heads=["head"])
    with pytest.raises(RuntimeError, match=r"another method is attached to this model"):
        second(nn.Sequential(model), heads=["0.head"])
    method.detach()
    assert "zero_grad" not in vars(model)
    second(model, heads=["head"])


def test_a_promise_looks_at_layers_that_have_got_more_inputs():
    method = learned(API)
    assert any(weight.columns for weight in method.weights.values())
    promise = method.promise(0, TASKS[0])
    learn(method, TASKS[2:])
    report = promise.check()
    assert set(report.layers) == set(method.weights)
    assert all(0 <= layer.free <= 1 for layer in report.layers.values())
    assert report.moved < 0.2

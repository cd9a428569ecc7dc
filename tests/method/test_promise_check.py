"""``method.promise`` tells how far old outputs moved, in numbers that are known otherwise."""

import pytest
import torch
from torch import nn, optim

from codecl import GPM, CodeCL, Method
from tests.methods.cases import inputs, mlp, outputs_of, task_data, train

ONE, TWO = task_data(0, n=4, batch=2), task_data(1)


def after_one(method):
    method.guard(optimizer := optim.SGD(method.model.parameters(), lr=0.1))
    method.begin_task(0, ONE)
    train(method.model, ONE, optimizer, epochs=2)
    method.end_task(ONE)
    return optimizer


@pytest.mark.parametrize(
    "make",
    [
        lambda m: GPM(m, heads=["head"], threshold=1.0),
        lambda m: CodeCL(m, heads=["head"], aperture=1e8, free_dims=2, overlap=0.0),
    ],
)
def test_where_everything_is_held_nothing_is_free_and_nothing_moves(make):
    method = make(mlp())
    optimizer = after_one(method)
    promise = method.promise(0, ONE)
    method.begin_task(1, TWO)
    train(method.model, TWO, optimizer)
    method.end_task(TWO)
    report = promise.check()
    assert report.layers.keys() == method.weights.keys()
    assert report.moved < 1e-9
    assert report.free < 1e-6
    assert "outputs of task 0" in str(report)


def test_what_moves_is_measured():
    method = GPM(mlp(), heads=["head"], threshold=0.5)
    optimizer = after_one(method)
    X = inputs(ONE)
    before = outputs_of(method, 0, X)
    promise = method.promise(0, ONE)
    first = method.model.first(X).detach()
    B = method.memory["first.weight"][0]
    method.begin_task(1, TWO)
    train(method.model, TWO, optimizer)
    report = promise.check()
    after = outputs_of(method, 0, X)
    assert report.moved == pytest.approx(float((after - before).norm() / before.norm()))
    layer = report.layers["first.weight"]
    assert layer.free == pytest.approx(float(B.remove(X).norm() / X.norm()))
    with torch.no_grad():
        now = method.model.first(X)
    assert layer.moved == pytest.approx(float((now - first).norm() / first.norm()))
    assert layer.moved > 0


def test_a_method_that_protects_nothing_can_be_asked_too():
    method = Method(mlp(), heads=["head"])
    optimizer = after_one(method)
    promise = method.promise(0, ONE)
    method.begin_task(1, TWO)
    train(method.model, TWO, optimizer)
    report = promise.check()
    assert report.layers == {}
    assert report.moved > 1e-2


def test_an_unknown_task_is_refused():
    method = GPM(nn.Linear(8, 3).double())
    with pytest.raises(ValueError, match="task"):
        method.promise(0, ONE)

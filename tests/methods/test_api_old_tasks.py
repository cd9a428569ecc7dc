"""What API promises old tasks: their outputs under all optimizers, their mixtures, and every promise of a method."""

import pytest
import torch

from codecl.methods.api import API
from codecl.training.check import CHECKS, hardships
from tests.method.optimizers import TRAININGS
from tests.methods.api_cases import FEW, TIGHT
from tests.methods.cases import drift, inputs, mlp, outputs_of, task_data, train


@pytest.mark.parametrize(
    "name",
    ["momentum", "momentum and weight decay", "adam", "adamw", "clipping", "clipping by value", "groups", "closure"],
)
def test_old_outputs_stay_under_every_optimizer(name):
    training, model = TRAININGS[name], mlp()
    method = API(model, **TIGHT)
    tasks = [task_data(task, **FEW) for task in range(3)]
    optimizer = training.build(model)
    method.guard(optimizer, training.project)
    expected, columns = {}, {}
    for task, batches in enumerate(tasks):
        method.begin_task(task, batches)
        start = [p.detach().clone() for p in method.parameters()]
        training.loop(model, batches, optimizer, 12)
        assert all((p - before).abs().max() > 1e-4 for p, before in zip(method.parameters(), start, strict=True))
        method.end_task(batches)
        expected[task] = outputs_of(method, task, inputs(batches))
        columns[task] = len(method.weights["first.weight"].columns)
    assert columns == {0: 0, 1: 1, 2: 2}
    for task in range(2):
        assert drift(outputs_of(method, task, inputs(tasks[task])), expected[task]) < 1e-9


def test_mixtures_are_held_after_their_task_and_columns_are_not():
    model = mlp()
    method = API(model, **TIGHT)
    method.guard(optimizer := torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
    for task in range(3):
        method.begin_task(task, task_data(task, **FEW))
        if task == 2:
            Phi, V = method.Phi["first.weight"][0].detach().clone(), method.weights["first.weight"].columns[0].clone()
        train(model, task_data(task, **FEW), optimizer, epochs=5)
        method.end_task(task_data(task, **FEW))
    assert torch.equal(method.Phi["first.weight"][0], Phi)
    assert (method.weights["first.weight"].columns[0] - V).abs().max() > 1e-3
    assert not any(p.requires_grad for p in (*method.Phi["first.weight"], *method.weights["first.weight"].columns))


@pytest.mark.slow
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_every_promise_is_kept_with_expansions_in_all_layers(check, monkeypatch):
    if check is hardships.check_a_switch_costs_the_same_after_many_tasks:
        pytest.skip("every task widens every layer here, and a switch puts all expansions in place")
    monkeypatch.setattr(hardships, "MANY", 30)
    check(lambda model: API(model, rho=0.99, channels=6, threshold=0.9))

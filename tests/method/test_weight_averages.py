"""Averages and states made of guarded steps are left alone, and not warned of."""

import copy
import warnings

import pytest
import torch
from torch import optim

from codecl import GPM, OWM, SGP, CodeCL
from tests.marks import slow_but
from tests.method.foreign_cases import FULL, ONE, TWO, one_task, watched
from tests.methods.cases import drift, inputs, mlp, outputs_of, task_data, train

SOFT = {
    "code-cl, 2": lambda model: CodeCL(model, heads=["head"], aperture=2.0, free_dims=2, overlap=0.0),
    "code-cl, 6": lambda model: CodeCL(model, heads=["head"], aperture=6.0, free_dims=2, overlap=0.0),
    "sgp": lambda model: SGP(model, heads=["head"]),
    "owm": lambda model: OWM(model, heads=["head"]),
    "full": lambda model: GPM(model, heads=["head"], threshold=1.0),
}


@pytest.mark.parametrize("shift", [0.0, 2.0])  # a large mean: most of a gradient lies in one direction, firmly held
@pytest.mark.parametrize("way", ["lookahead", "average", "begin again", "sharpness-aware"])
@pytest.mark.parametrize("name", slow_but(SOFT, "code-cl, 2"))
def test_averages_of_states_are_not_warned_of_where_little_is_held_firmly(name, way, shift):
    """Warnings are errors in these tests."""
    one, two = ([(x + shift, y) for x, y in task_data(task, n=32, dtype=torch.float32)] for task in range(2))
    model = mlp(dtype=torch.float32)
    method = SOFT[name](model)
    method.guard(optimizer := optim.SGD(model.parameters(), lr=0.05, momentum=0.9))
    model.train()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "the inputs of .* are protected to")
        for task, batches in enumerate((one, two)):
            method.begin_task(task, batches)
            start = {name: p.detach().clone() for name, p in model.named_parameters()}
            sums, count = copy.deepcopy(start), [1]

            @torch.no_grad()
            def after_step(start=start, sums=sums, count=count):
                count[0] += 1
                for name, p in model.named_parameters():
                    sums[name] += p
                    if way == "lookahead" and count[0] % 5 == 0:
                        start[name].lerp_(p, 0.5)
                        p.copy_(start[name])
                    if way == "sharpness-aware" and p.requires_grad:
                        there = 0.1 * torch.ones_like(p)
                        p.add_(there)
                        p.sub_(there)

            watched(method, optimizer, batches, after_step, epochs=6)
            if way == "average":
                model.load_state_dict({name: value / count[0] for name, value in sums.items()})
            if way == "begin again":
                model.load_state_dict(start)
            method.end_task(batches)


@pytest.mark.parametrize("name", ["code-cl", "gpm"])
@pytest.mark.parametrize("late", [False, True])
def test_averages_and_states_of_the_task_are_left_alone(name, late):
    """Restoring the best epoch, stochastic weight averaging, Lookahead: all made of guarded steps."""
    method, optimizer = one_task(FULL[name])
    before, model = outputs_of(method, 0, inputs(ONE)), method.model
    method.begin_task(1, TWO)
    slow = copy.deepcopy(model.state_dict())
    train(model, TWO, optimizer, epochs=20 if late else 1)
    with torch.no_grad():  # Lookahead
        for key, parameter in model.named_parameters():
            if parameter.requires_grad:
                parameter.lerp_(slow[key], 0.5)
    averaged = model.first.weight.detach().clone()
    train(model, TWO, optimizer, epochs=1)
    best = copy.deepcopy(model.state_dict())
    train(model, TWO, optimizer, epochs=3)
    model.load_state_dict(best)
    method.end_task(TWO)
    assert torch.equal(model.first.weight, best["first.weight"])
    assert not torch.equal(averaged, best["first.weight"])
    assert drift(outputs_of(method, 0, inputs(ONE)), before) < 1e-9


def test_averaged_models_of_torch():
    """The average is a model of its own; its weights are loaded into the model as the task ends."""
    method, optimizer = one_task(FULL["gpm"])
    before, model = outputs_of(method, 0, inputs(ONE)), method.model
    method.begin_task(1, TWO)
    sums, count = {}, 0

    def average():
        nonlocal count
        count += 1
        for key, value in model.state_dict().items():
            sums[key] = sums.get(key, 0) + value

    watched(method, optimizer, TWO, average)
    model.load_state_dict({key: value / count for key, value in sums.items()})
    method.end_task(TWO)
    assert drift(outputs_of(method, 0, inputs(ONE)), before) < 1e-9

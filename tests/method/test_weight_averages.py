"""Averages and states made of guarded steps are left alone, and not warned of."""

import copy
import warnings

import pytest
import torch
from torch import optim

from codecl import GPM, OWM, SGP, CodeCL, ProtectionWarning
from codecl.method.watch import WeightWatch
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


def lookahead(steps, p, slow, mean):
    if steps % 5 == 0:
        p.copy_(slow.lerp_(p, 0.5))


def mean_after_every_step(steps, p, slow, mean):
    p.copy_(mean)


def begin_again(steps, p, slow, mean):
    if steps % 6 == 0:
        p.copy_(slow)


@pytest.mark.parametrize("way", slow_but([None, lookahead, mean_after_every_step, begin_again], None))
@pytest.mark.parametrize("aperture", slow_but([2.0, 6.0, 30.0], 6.0))
def test_what_is_repeated_through_a_task_and_made_of_steps_is_not_touched(way, aperture, monkeypatch):
    """To the last bit what comes without anybody looking at the weights."""

    def learned():
        model = mlp(dtype=torch.float32)
        method = CodeCL(model, heads=["head"], aperture=aperture, free_dims=0)
        method.guard(optimizer := optim.SGD(model.parameters(), lr=0.05, momentum=0.9))
        for task in range(2):
            batches, steps = task_data(task, n=32, dtype=torch.float32), [0]
            method.begin_task(task, batches)
            slow, mean = ([p.detach().clone() for p in model.parameters()] for _ in range(2))

            @torch.no_grad()
            def after_step(steps=steps, slow=slow, mean=mean):
                steps[0] += 1
                for p, s, m in zip(model.parameters(), slow, mean, strict=True):
                    m.lerp_(p, 0.1)
                    if way is not None and p.requires_grad:
                        way(steps[0], p, s, m)

            watched(method, optimizer, batches, after_step, epochs=12)
            method.end_task(batches)
        return [p.detach().clone() for p in model.parameters()]

    looked_at = learned()
    monkeypatch.setattr(WeightWatch, "repair", lambda self: False)
    assert all(torch.equal(a, b) for a, b in zip(looked_at, learned(), strict=True))


def test_averages_are_left_alone_in_the_task_after_one_with_changes_by_hand():
    model = mlp(dtype=torch.float32)
    method = CodeCL(model, heads=["head"], aperture=6.0, free_dims=0)
    method.guard(optimizer := optim.SGD(model.parameters(), lr=0.05))
    tasks = [task_data(task, n=32, dtype=torch.float32) for task in range(3)]
    change = [lambda p: p, lambda p: p.mul_(0.9), lambda p: p]
    kept = []
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always", ProtectionWarning)
        for task, batches in enumerate(tasks):
            method.begin_task(task, batches)
            start = model.first.weight.detach().clone()

            @torch.no_grad()
            def after_step(change=change[task]):
                change(model.first.weight)

            watched(method, optimizer, batches, after_step, epochs=4)
            with torch.no_grad():
                average = model.first.weight.lerp_(start, 0.5).clone()
            method.end_task(batches)
            kept.append(torch.equal(model.first.weight, average))
    assert kept == [True, False, True]
    assert ["'first.weight' changed since the last step" in str(w.message) for w in told] == [True]

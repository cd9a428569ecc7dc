"""Under every optimizer and loop: what was protected stays, what was frozen stays, and the rest learns."""

import copy

import pytest
import torch

from codecl import AGEM, DFGP, ER, EWC, HAT, CodeCL, UnsafeOptimizer
from tests.marks import slow_but
from tests.method.optimizers import TRAININGS, Training, plain, sgd
from tests.methods.cases import drift, inputs, loss_on, mlp, outputs_of, task_data

QUICK = ("momentum", "weight decay", "adam", "adamw", "clipping", "accumulation with adam", "groups with adamw")
"""Of ``TRAININGS``, one of a kind."""
FIRST = {"n": 4, "batch": 2}  # four inputs: at most four directions in any layer


def learn_two(training, dtype=torch.float64, aperture=1e8, fresh=False, late=False, guarded=True):
    """Task 0 on four inputs, task 1 on others; returns drifts and losses of task 1 before and after it."""
    model = mlp(dtype=dtype)
    method = CodeCL(model, heads=["head"], aperture=aperture, free_dims=4, overlap=0.0)
    one, two = task_data(0, dtype=dtype, **FIRST), task_data(1, dtype=dtype)
    optimizer = training.build(model)
    method.guard(optimizer, training.project)
    method.begin_task("one", one)
    training.loop(model, one, optimizer, 10)
    method.end_task(one)
    expected = outputs_of(method, "one", inputs(one))
    frozen = copy.deepcopy([row.parameter.detach() for row in method.layers.of_role("norm", "bias")])
    weights = {name: weight.parameter.detach().clone() for name, weight in method.weights.items()}
    if fresh:
        optimizer = training.build(model)
        if not late and guarded:
            method.guard(optimizer, training.project)
    method.begin_task("two", two)
    if fresh and late and guarded:
        method.guard(optimizer, training.project)
    mixings = [parameter.detach().clone() for parameter in method.parameters()]
    start = loss_on(model, two)
    training.loop(model, two, optimizer, 30)
    assert len(mixings) == 2
    if guarded:
        for before, parameter in zip(mixings, method.parameters(), strict=True):
            assert (parameter - before).abs().max() > 1e-3  # M learns
    for name, weight in method.weights.items():
        assert (weight.parameter - weights[name]).abs().max() > 1e-3  # and so does W
    for row, before in zip(method.layers.of_role("norm", "bias"), frozen, strict=True):
        assert torch.equal(row.parameter, before)
    return drift(outputs_of(method, "one", inputs(one)), expected), start, loss_on(model, two)


@pytest.mark.parametrize("name", slow_but(TRAININGS, *QUICK))
def test_a_protected_input_stays_and_the_rest_learns(name):
    moved, start, end = learn_two(TRAININGS[name])
    assert moved < 1e-9
    assert end < 0.8 * start


@pytest.mark.parametrize("late", [False, True], ids=["guard then begin", "begin then guard"])
@pytest.mark.parametrize(
    "name", slow_but(["momentum", "momentum and weight decay", "adam", "groups with adamw", "one cycle"], "adam")
)
def test_a_new_optimizer_for_each_task(name, late):
    moved, start, end = learn_two(TRAININGS[name], fresh=True, late=late)
    assert moved < 1e-9
    assert end < 0.8 * start


@pytest.mark.parametrize("name", ["momentum", "momentum and weight decay", "adam", "adamw", "accumulation"])
def test_float32_is_protected_to_its_rounding(name):
    moved, start, end = learn_two(TRAININGS[name], dtype=torch.float32, aperture=1e6)
    assert moved < 2e-5
    assert end < 0.8 * start


@pytest.mark.parametrize(
    "name", ["weight decay", "momentum and weight decay", "adam", "adamw", "rmsprop", "clipping by value"]
)
def test_projecting_the_gradient_alone_would_not_protect(name):
    """What the guard is for: the same training with the gradient projected and the step left as it is."""
    training = TRAININGS[name]
    moved, _, _ = learn_two(Training(training.build, training.loop, "gradient"))
    assert moved > 1e-3


def test_weights_that_are_changed_by_hand_are_warned_of():
    model, one = mlp(), task_data(0, **FIRST)
    method = CodeCL(model, heads=["head"], aperture=1e8, free_dims=0)
    method.begin_task("one", one)
    plain(model, one, sgd()(model), 5)
    method.end_task(one)  # nothing to protect yet, nothing to warn of
    method.begin_task("two", one)
    expected = outputs_of(method, "one", inputs(one))
    with torch.no_grad():
        model.first.weight.mul_(0.9)
    with (
        pytest.warns(UserWarning, match=r"task 'two' was trained by an optimizer that is not guarded.*method\.guard"),
        pytest.warns(UserWarning, match="'first.weight' changed since the last step"),
    ):
        method.end_task(one)
    assert drift(outputs_of(method, "one", inputs(one)), expected) < 1e-9


@pytest.mark.parametrize("make", [EWC, HAT, AGEM, ER, DFGP], ids=lambda make: make.name)
def test_a_method_that_takes_part_in_steps_warns_from_the_first_task_on(make):
    model = mlp(norm=False)
    method = make(model) if make in (AGEM, ER) else make(model, heads=["head"])
    for task in range(2):
        data = task_data(task)
        method.begin_task(task, data)
        if task and make.protects:
            with pytest.raises(UnsafeOptimizer, match="is not guarded"):
                plain(model, data, sgd()(model), 1)
            return
        plain(model, data, sgd()(model), 1)
        with pytest.warns(UserWarning, match=f"task {task} was .* not guarded: {make.name} took no part in its steps"):
            method.end_task(data)


def test_a_task_that_trains_nothing_does_not_warn():
    model, one = mlp(), task_data(0)
    method = CodeCL(model, heads=["head"])
    for task in range(3):
        method.begin_task(task, one)
        method.end_task(one)
    assert method.tasks == [0, 1, 2]

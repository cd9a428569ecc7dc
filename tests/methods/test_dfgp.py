"""DFGP against its equations written out: the same λ, the same step, and nothing left of the perturbation."""

import copy
from collections import OrderedDict

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn, optim
from torch.nn.functional import cross_entropy
from torch.testing import assert_close

from codecl import check_method
from codecl.methods.dfgp import DFGP
from codecl.methods.gpm import GPM
from tests.marks import slow_but
from tests.methods.cases import CLASSES, mlp, task_data
from tests.methods.gpm_reference import SlowDFGP, images, networks

SETTINGS = {
    "default": {},
    "strong": {"alpha": 1.0, "mixup": 2.0, "eta": 0.3, "rho": 0.5},
    "swapped": {"alpha": 1.0, "mixup": 2.0, "swapped": True},
    "at the ends": {"alpha": 0.1, "mixup": 2.0, "eta": 0.9},  # λ leaves [0, 1] and is held there
    "no mixing": {"mixup": 0.0},
    "fixed mixing": {"mixup": 1.0, "eta": 0.0},
    "no perturbation": {"mixup": 1.0, "rho": 0.0},
}


def one_task(method, batches, task=0, lr=0.1, seed=0):
    """Learn ``batches`` once; the losses that the optimizer returns."""
    optimizer = optim.SGD(method.model.parameters(), lr=lr)
    method.guard(optimizer)
    method.begin_task(task, batches)
    returned = []
    for _ in method.watch(batches):
        torch.manual_seed(seed)
        returned.append(optimizer.step(lambda: pytest.fail("the closure was called")))
    method.end_task(batches)
    return returned


def first_step(settings, batch, model=None, lr=0.1):
    """The parameters after one step on ``batch``, by name."""
    model = mlp() if model is None else model
    method = DFGP(model, heads=["head"], **settings)
    one_task(method, [batch], lr=lr)
    return {name: value.detach() for name, value in model.named_parameters()}


@pytest.mark.parametrize("case", slow_but(SETTINGS, "default", "strong"))
@settings(max_examples=4)
@given(model=networks(), seed=st.integers(0, 9))
def test_two_tasks_end_with_the_same_weights(case, model, seed):
    slow = SlowDFGP(copy.deepcopy(model), 0.2, 0.8, **SETTINGS[case], seed=seed)
    method = DFGP(model, heads=["head"], threshold=0.8, samples=None, **SETTINGS[case])
    for task in range(2):
        batches = images(task, n=9, batch=3)
        returned = one_task(method, batches, task, lr=0.2, seed=seed)
        for (x, y), loss in zip(batches, returned, strict=True):
            slow.step(x, y)
            assert float(loss) == pytest.approx(slow.returned, abs=1e-9)
        slow.end(batches)
        for ours, theirs in zip(model.parameters(), slow.model.parameters(), strict=True):
            assert_close(ours, theirs, atol=1e-9, rtol=0)


def test_every_setting_matters():
    """What the comparison above is worth: no two of its cases take the same step."""
    steps = [first_step(of, task_data(0)[0]) for of in SETTINGS.values()]
    for i, step in enumerate(steps):
        for other in steps[:i]:
            assert (step["first.weight"] - other["first.weight"]).abs().max() > 1e-5


def test_without_mixing_and_perturbation_it_is_gpm():
    models = [mlp(), mlp()]
    ours = DFGP(models[0], heads=["head"], mixup=0.0, rho=0.0)
    theirs = GPM(models[1], heads=["head"], threshold=0.95, increment=0.0)
    for task in range(2):
        one_task(ours, task_data(task), task)
        optimizer = optim.SGD(models[1].parameters(), lr=0.1)
        theirs.guard(optimizer)
        theirs.begin_task(task, task_data(task))
        for x, y in task_data(task):
            optimizer.zero_grad()
            cross_entropy(models[1](x), y).backward()
            optimizer.step()
        theirs.end_task(task_data(task))
    for a, b in zip(models[0].parameters(), models[1].parameters(), strict=True):
        assert_close(a, b, atol=1e-12, rtol=0)


def test_without_a_gradient_there_is_no_step():
    after = first_step({"loss": lambda output, _: 0 * output.sum()}, task_data(0)[0])
    for name, value in mlp().named_parameters():
        assert torch.equal(value, after[name])


def test_the_perturbation_is_taken_back_bit_for_bit():
    model = mlp(dtype=torch.float32)
    before = copy.deepcopy(model.state_dict())
    first_step({"rho": 7.3}, task_data(0, dtype=torch.float32)[0], model, lr=0.0)
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name])


def test_the_perturbation_is_taken_back_where_the_second_pass_fails():
    model, passes = mlp(), []

    def third_fails(*_):
        if not torch.is_grad_enabled():  # the method looks at the model before it learns
            return
        passes.append(copy.deepcopy(model.state_dict()))
        if len(passes) == 3:
            raise ArithmeticError

    model.register_forward_pre_hook(third_fails)
    with pytest.raises(ArithmeticError):
        first_step({}, task_data(0)[0], model)
    for name, value in model.state_dict().items():
        assert torch.equal(value, passes[0][name])
        assert not torch.equal(value, passes[2][name])


def test_all_that_learns_is_perturbed_by_rho_together_and_the_step_alone_is_projected():
    model, seen = mlp(), []
    method = DFGP(model, heads=["head"], rho=0.25, threshold=0.6)
    one_task(method, task_data(0)[:1])
    B = method.memory["first.weight"][0].basis

    def look(*_):
        if torch.is_grad_enabled():  # in a step, not where inputs are captured
            seen.append(copy.deepcopy(model.state_dict()))

    model.register_forward_pre_hook(look)
    one_task(method, task_data(1)[:1], 1)
    moved = {name: seen[2][name] - seen[0][name] for name in seen[0]}
    held = {"first.bias", "norm.weight", "norm.bias", "second.bias"}
    assert {name for name, change in moved.items() if not change.any()} == held
    assert sum(float(change.square().sum()) for change in moved.values()) ** 0.5 == pytest.approx(0.25)
    assert (moved["first.weight"] @ B).norm() > 1e-3
    step = model.first.weight - seen[0]["first.weight"]
    assert_close(step @ B, torch.zeros(16, B.shape[1], dtype=torch.float64), atol=1e-15, rtol=0)
    assert step.norm() > 1e-3


def test_an_optimizer_that_projects_its_update_is_served_too():
    """With weight decay the guard projects the update, and the gradient is left as it is."""
    model = mlp()
    method = DFGP(model, heads=["head"], threshold=0.6)
    one_task(method, task_data(0)[:1])
    B, before = method.memory["first.weight"][0].basis, model.first.weight.detach().clone()
    optimizer = optim.SGD(model.parameters(), lr=0.1, weight_decay=0.1)
    method.guard(optimizer)
    method.begin_task(1, task_data(1))
    for _ in method.watch(task_data(1)):
        optimizer.step()
    assert (model.first.weight.grad @ B).norm() > 1e-3
    step = model.first.weight - before
    assert_close(step @ B, torch.zeros(16, B.shape[1], dtype=torch.float64), atol=1e-14, rtol=0)
    assert step.norm() > 1e-3


def test_a_step_without_a_closure_replaces_the_gradients_that_stand_there():
    model, batch = mlp(), task_data(0)[0]
    method = DFGP(model, heads=["head"])
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    method.guard(optimizer)
    method.begin_task(0)
    for x, y in method.watch([batch]):
        (100 * cross_entropy(model(x), y)).backward()
        torch.manual_seed(0)
        optimizer.step()
    for name, value in first_step({}, batch).items():
        assert torch.equal(value, model.get_parameter(name))


def test_a_step_outside_a_watched_loader_is_refused():
    method = DFGP(mlp(), heads=["head"])
    optimizer = optim.SGD(method.model.parameters(), lr=0.1)
    method.guard(optimizer)
    method.begin_task(0)
    with pytest.raises(RuntimeError, match=r"dfgp looks at the batches .* `for batch in method.watch\(loader\):`"):
        optimizer.step()


def test_an_optimizer_of_held_parameters_alone_does_nothing():
    model = mlp()
    method = DFGP(model, heads=["head"])
    one_task(method, task_data(0)[:1])
    optimizer = optim.SGD([model.first.bias, model.second.bias], lr=0.1)
    method.guard(optimizer)
    before = model.first.bias.detach().clone()
    method.begin_task(1, task_data(1))
    for _ in method.watch(task_data(1)):
        assert optimizer.step(lambda: "the user's own") == "the user's own"
    assert torch.equal(model.first.bias, before)


def test_running_statistics_see_four_passes():
    model = nn.Sequential(OrderedDict(a=nn.Linear(8, 4), norm=nn.BatchNorm1d(4), head=nn.Linear(4, CLASSES))).double()
    first_step({}, task_data(0)[0], model)
    assert int(model.norm.num_batches_tracked) == 4


@pytest.mark.parametrize(
    ("batch", "found"),
    [
        ((torch.zeros(4, 8, dtype=torch.int64), torch.zeros(4)), r"\['torch.int64\[4, 8\]', 'torch.float32\[4\]'\]"),
        ((torch.zeros(4, 8), torch.zeros(3)), r"\['torch.float32\[4, 8\]', 'torch.float32\[3\]'\]"),
        ((torch.zeros(4, 8), torch.zeros(4), torch.zeros(4)), r"'torch.float32\[4\]', 'torch.float32\[4\]'\]"),
        ((torch.zeros(4, 8), "labels"), r"\['torch.float32\[4, 8\]', 'str'\]"),
        (torch.zeros(2, 8), r"torch.float32\[2, 8\]"),
        ({"x": torch.zeros(4, 8)}, "dict"),
    ],
)
def test_a_batch_that_cannot_be_mixed_is_refused(batch, found):
    method = DFGP(mlp(), heads=["head"])
    optimizer = optim.SGD(method.model.parameters(), lr=0.1)
    method.guard(optimizer)
    method.begin_task(0)
    next(watched := method.watch([batch]))
    with pytest.raises(TypeError, match=rf"a batch must be \(inputs, labels\): .*; got .*{found}"):
        optimizer.step()
    watched.close()


@pytest.mark.parametrize(
    ("argument", "value", "expected"),
    [
        ("alpha", 0, "alpha must be a number from 1e-6 to 1e6; got 0"),
        ("alpha", float("inf"), "alpha must be a number from 1e-6 to 1e6; got inf"),
        ("mixup", -0.1, "mixup must be a finite number, 0 or more; got -0.1"),
        ("eta", float("nan"), "eta must be a finite number, 0 or more; got nan"),
        ("rho", -1, "rho must be a finite number, 0 or more; got -1"),
        ("threshold", 1.5, r"threshold must be a share in \(0, 1\]; got 1.5"),
    ],
)
def test_a_bad_setting_is_named_and_leaves_the_model_alone(argument, value, expected):
    model = mlp()
    with pytest.raises(ValueError, match=expected):
        DFGP(model, heads=["head"], **{argument: value})
    assert not any("forward" in vars(module) for module in model.modules())


def test_readings_and_a_threshold_that_does_not_grow():
    assert DFGP.preset("paper") == {}
    assert DFGP.preset("official") == {"first_rule": "below", "swapped": True}
    method = DFGP(mlp(), heads=["head"])
    assert (set(method.threshold.values()), method.increment, method.first_rule) == ({0.95}, 0.0, "reach")


@pytest.mark.slow
def test_it_keeps_what_every_method_promises():
    check_method(DFGP)

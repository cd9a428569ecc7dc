"""What the guard does to an optimizer: groups, decay of M, leftovers, refusals, replacement."""

import pytest
import torch
from torch import nn, optim
from torch.nn.functional import cross_entropy
from torch.testing import assert_close

from codecl import CodeCL, UnsafeOptimizer
from tests.method.optimizers import grouped, sgd
from tests.methods.cases import drift, inputs, mlp, outputs_of, task_data, train


def first_task_done(build=None, **settings):
    """A method that has learned task 0, its optimizer, and the data of task 1."""
    model, one, two = mlp(), task_data(0, n=4, batch=2), task_data(1)
    method = CodeCL(model, heads=["head"], **{"aperture": 1e8, "free_dims": 3, "overlap": 0.0} | settings)
    optimizer = (build or sgd(momentum=0.9))(model)
    method.guard(optimizer)
    method.begin_task(0, one)
    train(model, one, optimizer)
    method.end_task(one)
    return method, optimizer, two


def groups(optimizer):
    return [list(map(id, group["params"])) for group in optimizer.param_groups]


def test_mixings_join_the_group_of_their_weight_and_leave_after_the_task():
    method, optimizer, two = first_task_done(grouped(optim.SGD, lr=0.05, momentum=0.9))
    bare = groups(optimizer)
    method.begin_task(1, two)
    first, second = (method.weights[name].change.M for name in ("first.weight", "second.weight"))
    assert groups(optimizer) == [[*bare[0], id(first)], [*bare[1], id(second)], bare[2]]
    train(method.model, two, optimizer, 1)
    assert first in optimizer.state
    assert groups(optimizer) == [[*bare[0], id(first)], [*bare[1], id(second)], bare[2]]
    method.end_task(two)
    assert groups(optimizer) == bare
    assert first not in optimizer.state
    assert not first.requires_grad


def test_mixings_are_named_after_their_weight_where_parameters_are():
    method, optimizer, two = first_task_done(lambda model: optim.SGD(model.named_parameters(), lr=0.05))
    names = list(optimizer.param_groups[0]["param_names"])
    method.begin_task(1, two)
    train(method.model, two, optimizer, 1)
    assert optimizer.param_groups[0]["param_names"] == [*names, "first.weight.extra", "second.weight.extra"]
    method.end_task(two)
    assert optimizer.param_groups[0]["param_names"] == names


@pytest.mark.parametrize(
    ("kind", "decay", "settings"),
    [
        (optim.SGD, 0.05, {"lr": 0.05, "momentum": 0.9}),
        (optim.SGD, 0.05, {"lr": 0.05, "momentum": 0.9, "foreach": True}),
        (optim.Adam, 0.5, {"lr": 0.01}),
        (optim.AdamW, 2.0, {"lr": 0.01}),
    ],
)
def test_mixings_never_decay(kind, decay, settings):
    method, optimizer, two = first_task_done(lambda model: kind(model.parameters(), weight_decay=decay, **settings))
    method.begin_task(1, two)
    M = method.weights["first.weight"].change.M
    twin = nn.Parameter(M.detach().clone())
    alone = kind([twin], weight_decay=0.0, **settings)
    for x, y in two * 5:
        optimizer.zero_grad()
        cross_entropy(method.model(x), y).backward()
        twin.grad = M.grad.clone()
        optimizer.step()
        alone.step()
    assert_close(M, twin, atol=1e-15, rtol=1e-13)
    assert M.abs().max() > 5e-3


@pytest.mark.parametrize("schedule", [optim.lr_scheduler.StepLR, optim.lr_scheduler.ExponentialLR])
def test_a_schedule_made_before_the_task_drives_the_mixings_too(schedule):
    options = {"step_size": 1} if schedule is optim.lr_scheduler.StepLR else {}
    method, optimizer, two = first_task_done(sgd(lr=0.1, weight_decay=0.1))
    scheduler = schedule(optimizer, gamma=0.0, **options)  # from the second step on nothing moves
    method.begin_task(1, two)
    M = method.weights["first.weight"].change.M
    train(method.model, two[:1], optimizer, 1)
    scheduler.step()
    after_one = M.detach().clone()
    assert after_one.abs().max() > 1e-4
    train(method.model, two, optimizer, 2)
    assert torch.equal(M, after_one)


def test_leftover_momentum_is_cleared_at_the_end_of_a_task():
    method, optimizer, two = first_task_done()
    kept = {id(p) for p, state in optimizer.state.items() if state}
    assert kept == {id(p) for p in method.model.head.parameters()}
    method.begin_task(1, two)
    before = {name: weight.parameter.detach().clone() for name, weight in method.weights.items()}
    for parameter in method.model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    for name, weight in method.weights.items():
        assert torch.equal(weight.parameter, before[name])


def test_leftover_gradients_are_cleared_at_the_end_of_a_task():
    method, _, _ = first_task_done()
    assert all(weight.parameter.grad is None for weight in method.weights.values())


def test_frozen_parameters_ignore_a_gradient_planted_on_them():
    method, optimizer, two = first_task_done(sgd(momentum=0.9, weight_decay=0.1))
    method.begin_task(1, two)
    frozen = [row.parameter for row in method.layers.of_role("norm", "bias")]
    before = [parameter.detach().clone() for parameter in frozen]
    for parameter in frozen:
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    for parameter, value in zip(frozen, before, strict=True):
        assert torch.equal(parameter, value)


class Renamed(optim.SGD):
    """A subclass may do anything in its step."""


@pytest.mark.parametrize(
    "build", [lambda p: optim.LBFGS(p), lambda p: Renamed(p, lr=0.1), lambda p: optim.Rprop(p), lambda p: optim.ASGD(p)]
)
def test_an_unknown_optimizer_is_refused_and_left_alone(build):
    model = mlp()
    method, optimizer = CodeCL(model, heads=["head"]), build(model.parameters())
    with pytest.raises(UnsafeOptimizer, match=rf"{type(optimizer).__name__} .*project='both'"):
        method.guard(optimizer)
    assert not optimizer._optimizer_step_pre_hooks


def test_what_is_not_an_optimizer_is_refused():
    model = mlp()
    method = CodeCL(model, heads=["head"])
    scheduler = optim.lr_scheduler.StepLR(sgd()(model), 1)
    with pytest.raises(TypeError, match=r"torch\.optim\.Optimizer; got StepLR"):
        method.guard(scheduler)
    with pytest.raises(ValueError, match="project must be 'gradient', 'update' or 'both'; got 'all'"):
        method.guard(sgd()(model), project="all")


@pytest.mark.parametrize("project", ["update", "both"])
def test_project_lets_an_unknown_optimizer_in(project):
    model, one, two = mlp(), task_data(0, n=4, batch=2), task_data(1)
    method = CodeCL(model, heads=["head"], aperture=1e8, free_dims=0)
    optimizer = Renamed(model.parameters(), lr=0.05, weight_decay=0.1)
    method.guard(optimizer, project=project)
    for task, batches in enumerate([one, two]):
        method.begin_task(task, batches)
        train(model, batches, optimizer)
        if task == 0:
            method.end_task(batches)
            before = outputs_of(method, 0, inputs(one))
            W = model.first.weight.detach().clone()
    assert drift(outputs_of(method, 0, inputs(one)), before) < 1e-9
    assert (model.first.weight - W).abs().max() > 1e-3


@pytest.mark.parametrize(("project", "powers"), [("gradient", 1), ("update", 1), ("both", 2), (None, 1)])
def test_project_says_how_often_a_step_meets_the_conceptor(project, powers):
    """By value, at a soft aperture: one SGD step is ``−lr G (I − C)`` once, or twice for ``both``."""
    method, _, two = first_task_done(aperture=1.0, free_dims=0)
    optimizer = optim.SGD(method.model.parameters(), lr=0.1)
    method.guard(optimizer, project)
    method.begin_task(1, two)
    W = method.model.first.weight
    before = W.detach().clone()
    x, y = two[0]
    plain = method.export(1)
    cross_entropy(plain(x), y).backward()
    cross_entropy(method.model(x), y).backward()
    optimizer.step()
    free = torch.eye(8, dtype=torch.float64) - method.memory["first.weight"][0].dense()
    expected = before - 0.1 * plain.first.weight.grad @ torch.linalg.matrix_power(free, powers)
    assert_close(W.detach(), expected, atol=1e-14, rtol=0)


@pytest.mark.parametrize(
    ("build", "projected"),
    [(sgd(momentum=0.9), True), (sgd(weight_decay=0.1), False), (lambda model: optim.Adam(model.parameters()), True)],
)
def test_the_gradient_is_projected_unless_the_update_alone_is(build, projected):
    """Projecting the update alone would protect under Adam too, but learn badly."""
    method, _, two = first_task_done(aperture=1.0, free_dims=0)
    method.guard(build(method.model))
    method.begin_task(1, two)
    x, y = two[0]
    plain = method.export(1)
    cross_entropy(plain(x), y).backward()
    cross_entropy(method.model(x), y).backward()
    C, G = method.memory["first.weight"][0].dense(), plain.first.weight.grad
    assert_close(method.model.first.weight.grad, G - G @ C if projected else G, atol=1e-14, rtol=0)


def test_weight_decay_changed_after_guarding_is_refused_until_guarded_again():
    method, optimizer, two = first_task_done()
    method.begin_task(1, two)
    optimizer.param_groups[0]["weight_decay"] = 0.1
    W = method.model.first.weight.detach().clone()
    with pytest.raises(UnsafeOptimizer, match=r"weight decay of the group of 'first\.weight' changed.*again"):
        train(method.model, two, optimizer, 1)
    assert torch.equal(method.model.first.weight, W)
    before = outputs_of(method, 0, inputs(task_data(0, n=4)))
    method.guard(optimizer)
    train(method.model, two, optimizer, 5)
    assert drift(outputs_of(method, 0, inputs(task_data(0, n=4))), before) < 1e-9


def test_a_replaced_optimizer_refuses_to_step_until_it_is_guarded_again():
    method, old, two = first_task_done()
    bare = groups(old)
    new = sgd(momentum=0.9, weight_decay=0.1)(method.model)
    method.begin_task(1, two)
    method.guard(new)
    assert groups(old) == bare
    W = method.model.first.weight.detach().clone()
    with pytest.raises(UnsafeOptimizer, match="this optimizer was replaced"):
        train(method.model, two, old, 1)
    assert torch.equal(method.model.first.weight, W)
    method.guard(old)
    before = outputs_of(method, 0, inputs(task_data(0, n=4)))
    train(method.model, two, old, 5)
    assert drift(outputs_of(method, 0, inputs(task_data(0, n=4))), before) < 1e-9
    with pytest.raises(UnsafeOptimizer, match="this optimizer was replaced"):
        train(method.model, two, new, 1)
    method.detach()
    train(method.model, two, new, 1)  # given back: nothing refuses any more


def test_two_optimizers_that_share_the_weights_between_them():
    model, one, two = mlp(), task_data(0, n=4, batch=2), task_data(1)
    method = CodeCL(model, heads=["head"], aperture=1e8, free_dims=3, overlap=0.0)
    left = optim.Adam([*model.first.parameters(), *model.norm.parameters()], lr=0.01)
    right = optim.SGD([*model.second.parameters(), *model.head.parameters()], lr=0.05, weight_decay=0.1)
    method.guard(left)
    method.guard(right)
    for task, batches in enumerate([one, two]):
        method.begin_task(task, batches)
        for x, y in batches * 10:
            model.zero_grad()
            cross_entropy(model(x), y).backward()
            left.step()
            right.step()
        if task == 0:
            method.end_task(batches)
            before = outputs_of(method, 0, inputs(one))
    assert method.weights["first.weight"].change.M in left.state
    assert method.weights["second.weight"].change.M.abs().max() > 1e-4
    assert drift(outputs_of(method, 0, inputs(one)), before) < 1e-9


def test_a_refused_guard_leaves_the_earlier_one_in_force():
    method, optimizer, two = first_task_done(sgd(weight_decay=0.1))
    with pytest.raises(ValueError, match="project must be"):
        method.guard(optimizer, project="nothing")
    before = outputs_of(method, 0, inputs(task_data(0, n=4)))
    method.begin_task(1, two)
    train(method.model, two, optimizer, 5)
    assert drift(outputs_of(method, 0, inputs(task_data(0, n=4))), before) < 1e-9


def test_a_step_that_fails_half_way_leaves_no_group_and_no_mixing_behind():
    method, optimizer, two = first_task_done(sgd(weight_decay=0.1))
    bare = groups(optimizer)
    method.begin_task(1, two)

    def broken():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        optimizer.step(broken)
    method.end_task(two)
    assert groups(optimizer) == bare
    method.begin_task(2, two)
    mixings = {id(parameter) for parameter in method.parameters()}
    train(method.model, two, optimizer, 1)
    assert {p for group in groups(optimizer) for p in group} == {*bare[0], *mixings}
    assert len(optimizer.param_groups) == 1


def test_detaching_gives_the_optimizer_back():
    method, optimizer, two = first_task_done()
    bare = groups(optimizer)
    method.begin_task(1, two)
    method.detach()
    assert groups(optimizer) == bare
    assert not optimizer._optimizer_step_pre_hooks
    assert not optimizer._optimizer_step_post_hooks

"""The promise: old outputs stay, the more so the larger the aperture, and shared directions can be learned."""

from collections import OrderedDict

import pytest
import torch
from torch import nn
from torch.nn.functional import mse_loss
from torch.testing import assert_close

from codecl import CodeCL
from tests.methods.cases import drift, inputs, learn, loss_on, mlp, outputs_of, seeded, task_data, train


def test_with_a_very_large_aperture_old_outputs_stay_as_they_were():
    method = CodeCL(mlp(), heads=["head"], aperture=1e8, free_dims=3, overlap=0.0)
    tasks = [task_data(0, n=4, batch=2), task_data(1, n=3, batch=3), task_data(2)]
    told = {}
    for task, batches in enumerate(tasks):
        learn(method, [batches], epochs=10)
        for earlier, expected in told.items():
            assert drift(outputs_of(method, earlier, inputs(tasks[earlier])), expected) < 1e-9
        told[task] = outputs_of(method, task, inputs(batches))
    others = torch.randn(5, 8, generator=seeded(1), dtype=torch.float64)
    assert drift(outputs_of(method, 0, others), outputs_of(method, 1, others)) > 1e-2


def test_without_protection_the_same_training_forgets():
    """The control: at an aperture of almost 0 nothing is held."""
    method = CodeCL(mlp(), heads=["head"], aperture=1e-4, free_dims=0)
    one, two = task_data(0, n=4, batch=2), task_data(1)
    learn(method, [one], epochs=10)
    before = outputs_of(method, 0, inputs(one))
    learn(method, [two], epochs=10)
    assert drift(outputs_of(method, 0, inputs(one)), before) > 1e-2


def test_the_drift_falls_as_the_aperture_rises():
    one, two = task_data(0, n=4, batch=2), task_data(1)
    drifts = []
    for aperture in (0.01, 0.3, 1.0, 3.0, 10.0, 100.0, 1e4, 1e6):
        method = CodeCL(mlp(), heads=["head"], aperture=aperture, free_dims=0)
        learn(method, [one], epochs=10)
        before = outputs_of(method, 0, inputs(one))
        learn(method, [two], epochs=10)
        drifts.append(drift(outputs_of(method, 0, inputs(one)), before))
    assert drifts == sorted(drifts, reverse=True)
    assert drifts[0] > 1e3 * drifts[-2] > 0


def test_one_step_moves_a_protected_input_by_the_share_that_equation_2_leaves():
    """``ΔW x = −lr G (I − C) x``: with one input x, ``C x = s x`` and ``s = a²‖x‖² / (a²‖x‖² + 1)``."""
    model = nn.Sequential(OrderedDict(body=nn.Linear(5, 4, bias=False), head=nn.Linear(4, 3))).double()
    x, y = torch.randn(1, 5, generator=seeded(0), dtype=torch.float64), torch.tensor([1])
    method = CodeCL(model, heads=["head"], aperture=2.0, free_dims=0)
    learn(method, [[(x, y)]], epochs=1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    method.guard(optimizer)
    method.begin_task(1, [(x, y)])
    plain = method.export(1)
    nn.functional.cross_entropy(plain(x), y).backward()
    before = model.body(x).detach()
    train(model, [(x, y)], optimizer, epochs=1)
    energy = 4.0 * float(x.square().sum())
    assert_close(model.body(x), before - 0.1 * x @ plain.body.weight.grad.mT / (energy + 1), atol=1e-14, rtol=0)


def regression(free_dims: int) -> tuple[float, float, float]:
    """Task 1 asks for another linear map on inputs that task 0 occupies: losses before and after, and the drift."""
    torch.manual_seed(0)
    model = nn.Sequential(OrderedDict(body=nn.Linear(4, 4, bias=False), head=nn.Linear(4, 2, bias=False))).double()
    model.head.requires_grad_(False)
    X = torch.randn(12, 4, generator=seeded(5), dtype=torch.float64)
    one, two = (X @ torch.randn(4, 2, generator=seeded(seed), dtype=torch.float64) for seed in (6, 7))
    method = CodeCL(model, aperture=1e8, free_dims=free_dims, overlap=0.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    method.guard(optimizer)
    told, start = None, 0.0
    for task, Y in enumerate([one, two]):
        method.begin_task(task, [X])
        start = float(mse_loss(model(X), Y).detach())
        for _ in range(300):
            optimizer.zero_grad()
            mse_loss(model(X), Y).backward()
            optimizer.step()
        end = float(mse_loss(model(X), Y).detach())
        method.end_task([X])
        told = outputs_of(method, 0, X) if told is None else told
    return start, end, drift(outputs_of(method, 0, X), told)


def test_where_the_past_occupies_everything_the_projection_alone_learns_nothing():
    start, end, moved = regression(free_dims=0)
    assert start > 1.0
    assert end == pytest.approx(start, rel=1e-9)
    assert moved < 1e-9


@pytest.mark.slow
def test_freed_directions_learn_what_the_projection_forbids():
    start, some, moved_by_some = regression(free_dims=2)
    _, all_of_it, moved_by_all = regression(free_dims=4)
    assert all_of_it < 1e-3 * start
    assert all_of_it < some < 0.9 * start
    assert max(moved_by_some, moved_by_all) < 1e-9


def test_too_little_overlap_frees_nothing():
    """ε above every possible ratio."""
    method = CodeCL(mlp(), heads=["head"], free_dims=4, overlap=1.0)
    learn(method, [task_data(0), task_data(1)], epochs=1)
    assert method.per_task.effective == [{}, {}]


def test_a_new_task_is_learned_as_well_as_by_fine_tuning_where_there_is_room():
    one, two = task_data(0, n=2, batch=2), task_data(1)
    losses = []
    for aperture in (1e8, 1e-6):
        method = CodeCL(mlp(), heads=["head"], aperture=aperture, free_dims=2, overlap=0.0)
        learn(method, [one, two], epochs=40)
        losses.append(loss_on(method.model, two))
    assert losses[0] < 1.5 * losses[1] < 0.6

"""Where the paper and its published code differ: each argument by what it changes, in numbers."""

from collections import OrderedDict

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.testing import assert_close

from codecl import CodeCL, Conceptor
from tests.algebra import dense
from tests.methods.cases import inputs, learn, mlp, seeded, task_data, train

TASKS = [task_data(0), task_data(1), task_data(2)]


def build(kind=CodeCL.paper, **settings):
    return kind(mlp(), heads=["head"], **{"aperture": 3.0, "free_dims": 3, "overlap": 0.1} | settings)


def hidden(model, X):
    """What ``second`` sees."""
    with torch.no_grad():
        return model.tanh(model.norm(model.first(X)))


def assert_same_span(U, V):
    assert_close(U @ U.mT, V @ V.mT, atol=1e-9, rtol=0)


def test_the_readings_differ_in_these_arguments_and_no_others():
    paper, official = CodeCL.paper(mlp(), heads=["head"]), CodeCL.official(mlp(), heads=["head"])
    names = "before after replace random_start hold gain minimum tolerance smallest closed dense_patches"
    names = [*names.split(), "free_dims", "overlap", "samples"]
    assert {n: getattr(paper, n) for n in names} == {
        "before": "previous",
        "after": "shared",
        "replace": False,
        "random_start": False,
        "hold": False,
        "gain": 0.0,
        "minimum": 0.0,
        "tolerance": 1e-6,
        "smallest": None,
        "closed": (),
        "dense_patches": (),
        "free_dims": 80,
        "overlap": 0.5,
        "samples": 125,
    }
    assert {n: getattr(official, n) for n in names if getattr(official, n) != getattr(paper, n)} == {
        "before": "shared",
        "after": "effective",
        "replace": True,
        "random_start": True,
        "hold": True,
        "gain": 0.95,
        "minimum": 0.2,
        "smallest": 50,
        "closed": ("*shortcut*",),
        "dense_patches": ("conv1.weight", "backbone.conv1.weight"),
    }
    assert CodeCL.official(mlp(), heads=["head"], gain=0.5).gain == 0.5


@pytest.mark.parametrize("before", ["previous", "shared"])
def test_before_says_under_which_weights_the_new_inputs_are_seen(before):
    method = build(before=before)
    learn(method, TASKS[:2], epochs=10, lr=0.3)
    X = inputs(TASKS[2])
    with method.task(1):
        rows = {"previous": hidden(method.model, X)}
    with method.shared_weights():
        rows["shared"] = hidden(method.model, X)
    tops = {key: (Conceptor.fit(H, 3.0) & method.memory["second.weight"][0]).top(3) for key, H in rows.items()}
    assert (tops["previous"] @ tops["previous"].mT - tops["shared"] @ tops["shared"].mT).abs().max() > 1e-3
    method.begin_task(2, TASKS[2])
    assert_same_span(method.weights["second.weight"].change.U[0], tops[before])


@pytest.mark.parametrize("after", ["shared", "effective"])
def test_after_says_under_which_weights_the_learned_inputs_are_seen(after):
    method = build(after=after)
    optimizer = learn(method, TASKS[:1], epochs=10)
    method.guard(optimizer)
    method.begin_task(1, TASKS[1])
    train(method.model, TASKS[1], optimizer, epochs=10)
    X = inputs(TASKS[1])
    rows = {"effective": hidden(method.model, X)}
    with method.shared_weights():
        rows["shared"] = hidden(method.model, X)
    past = method.memory["second.weight"][0]
    expected = {key: (past | Conceptor.fit(H, 3.0)).dense() for key, H in rows.items()}
    assert (expected["shared"] - expected["effective"]).abs().max() > 1e-3
    method.end_task(TASKS[1])
    assert_close(method.memory["second.weight"][0].dense(), expected[after], atol=1e-10, rtol=0)


@pytest.mark.parametrize("replace", [False, True])
def test_replace_takes_the_shared_component_away(replace):
    method = build(replace=replace, random_start=True)
    learn(method, TASKS[:1])
    method.begin_task(1, TASKS[1])
    W, change = method.model.first.weight.detach(), method.weights["first.weight"].change
    U, M = change.U[0], change.M[0].detach()
    expected = W + W @ U @ M @ U.mT - (W @ U @ U.mT if replace else 0)
    assert_close(method.export(1).first.weight.detach(), expected, atol=1e-14, rtol=0)


def test_random_start_is_uniform_within_one_over_root_k():
    method = build(random_start=True, free_dims=8, overlap=0.0)
    learn(method, TASKS[:1])
    method.begin_task(1, TASKS[1])
    M = method.weights["first.weight"].change.M.detach()
    assert M.shape == (1, 8, 8)
    bound = 8**-0.5
    assert 0.9 * bound < M.abs().max() <= bound
    assert abs(float(M.mean())) < 0.2 * bound
    assert float(M.square().mean()) == pytest.approx(bound**2 / 3, rel=0.3)


def test_signs_that_a_decomposition_leaves_open_do_not_change_a_random_start():
    """Another order of rows gives other signs: ``U M Uᵀ`` with a random ``M`` would be another start."""
    method = build(random_start=True)
    weight = method.weights["first.weight"]
    U = torch.linalg.qr(torch.randn(8, 3, generator=seeded(3), dtype=torch.float64)).Q
    starts = [method._mixing(weight, [U * signs]) for signs in (torch.ones(3), torch.tensor([-1.0, 1.0, -1.0]))]
    W = weight.matrices().detach()
    assert torch.equal(starts[0].weight(W), starts[1].weight(W))
    assert_same_span(starts[0].U[0], U)


def test_random_start_depends_on_seed_task_and_layer_alone():
    def starts(seed, noise=0):
        method = build(random_start=True, seed=seed)
        learn(method, TASKS[:1])
        found = []
        for task in (1, 2):
            torch.randn(noise)
            method.begin_task(task, TASKS[task])
            found += [parameter.detach().clone() for parameter in method.parameters()]
            method.end_task(TASKS[task])
        return found

    first = starts(0)
    assert all(torch.equal(a, b) for a, b in zip(first, starts(0, noise=3), strict=True))
    every = [*first, *starts(1)]
    assert len(every) == 8
    assert len({tuple(M.flatten().tolist()) for M in every}) == 8
    method = build()
    learn(method, TASKS[:1])
    method.begin_task(1, TASKS[1])
    assert all(not parameter.any() for parameter in method.parameters())


@pytest.mark.parametrize("hold", [False, True])
@pytest.mark.parametrize("layer", ["first", "conv"])
def test_hold_keeps_the_replaced_component_out_of_the_gradient_of_linear_layers(layer, hold):
    if layer == "conv":
        model = nn.Sequential(OrderedDict(conv=nn.Conv2d(2, 3, 2), flat=nn.Flatten(), head=nn.Linear(12, 3))).double()
        X = torch.randn(20, 2, 3, 3, generator=seeded(3), dtype=torch.float64)
        tasks = [[(X, torch.arange(20) % 3)], [(X.flip(0), torch.arange(20) % 2)]]
    else:
        model, tasks = mlp(), TASKS[:2]
    method = CodeCL(model, heads=["head"], aperture=3.0, free_dims=3, overlap=0.1, hold=hold, replace=True, seed=1)
    method.random_start = True
    method.guard(torch.optim.SGD(model.parameters(), lr=0.1))
    learn(method, tasks[:1])
    method.begin_task(1, tasks[1])
    x, y = tasks[1][0]
    plain = method.export(1)
    F.cross_entropy(plain(x), y).backward()
    model.zero_grad()
    F.cross_entropy(model(x), y).backward()
    name = f"{layer}.weight"
    G_eff, change = plain.get_parameter(name).grad.flatten(1), method.weights[name].change
    U, M = change.U[0], change.M[0].detach()
    through = torch.eye(len(U), dtype=torch.float64) + U @ M @ U.mT
    if layer == "conv" or not hold:
        through = through - U @ U.mT
    free = torch.eye(len(U), dtype=torch.float64) - method.memory[name][0].dense()
    G = model.get_parameter(name).grad.flatten(1)
    assert_close(G, G_eff @ through.mT @ free, atol=1e-13, rtol=0)
    assert_close(change.M.grad[0], U.mT @ model.get_parameter(name).detach().flatten(1).mT @ G_eff @ U)


def passed(C, X):
    return float((X @ C).norm(dim=1).sum() / X.norm(dim=1).sum())


@pytest.mark.parametrize("gain", [0.6, 0.95, 0.999])
def test_gain_raises_the_aperture_until_that_share_of_the_norm_passes(gain):
    method = build(gain=gain, aperture=0.05)
    learn(method, TASKS[:1])
    X = inputs(TASKS[0])
    C, steps = dense.fit(X, 0.05), 0
    while passed(C, X) < gain:
        C, steps = dense.adapt(C, 1.1), steps + 1
    assert 20 < steps < 130
    found = method.memory["first.weight"][0]
    assert_close(found.dense(), C, atol=1e-8, rtol=0)
    assert passed(found.dense(), X) >= gain > passed(found.adapt(1 / 1.1).dense(), X)


def test_no_gain_leaves_the_aperture():
    method = build(aperture=0.05)
    learn(method, TASKS[:1])
    assert_close(method.memory["first.weight"][0].dense(), dense.fit(inputs(TASKS[0]), 0.05), atol=1e-12, rtol=0)


def test_gain_is_content_with_inputs_that_are_all_zero():
    model = nn.Sequential(OrderedDict(relu=nn.ReLU(), body=nn.Linear(4, 3), head=nn.Linear(3, 2))).double()
    method = CodeCL(model, heads=["head"], gain=0.95)
    method.begin_task(0)
    method.end_task([-torch.ones(5, 4, dtype=torch.float64)])
    assert method.memory["body.weight"][0].rank == 0

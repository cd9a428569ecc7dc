"""``export`` and ``detach``: what is given back is a plain network."""

import copy
import io
import pickle
import subprocess
import sys

import pytest
import torch
from torch import nn, optim
from torch.nn.functional import cross_entropy

from codecl import CodeCL, MultiHead
from codecl.networks import MLP
from tests.methods.cases import learn, mlp, outputs_of, seeded, task_data, train

TASKS = [task_data(0, n=4, batch=2), task_data(1), task_data(2)]
X = torch.randn(5, 8, generator=seeded(3), dtype=torch.float64)


def learned(model, **settings):
    method = CodeCL(model, **{"aperture": 1e3, "free_dims": 3, "overlap": 0.0} | settings)
    learn(method, TASKS)
    assert all(method.per_task.effective[1:])
    return method


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("replace", [False, True])
def test_an_export_says_what_the_task_says_in_either_mode(training, replace):
    model = mlp()
    model.tanh = nn.Sequential(nn.Tanh(), nn.Dropout(0.3))
    method = learned(model, heads=["head"], replace=replace, random_start=replace, hold=replace)
    model.train(training)
    for task in range(3):
        plain = method.export(task)
        assert plain.training == training
        torch.manual_seed(0)
        expected = outputs_of(method, task, X)
        torch.manual_seed(0)
        found = plain(X)
        assert (found - expected).abs().max() < 1e-12
        assert (found - expected).abs().max() == 0 or task > 0


def test_an_export_has_running_statistics_of_its_own():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 3)).double()
    method = learned(model, heads=["3"], norm="per-task")
    model.eval()
    plains = [method.export(task) for task in range(3)]
    for task, plain in enumerate(plains):
        assert (plain(X) - outputs_of(method, task, X)).abs().max() < 1e-12
    assert not torch.equal(plains[0][1].running_mean, plains[2][1].running_mean)
    mean = model[1].running_mean.clone()
    plains[2].train()(X)
    assert torch.equal(model[1].running_mean, mean)


def test_an_export_is_bare():
    method = learned(mlp(), heads=["head"])
    plain, bare = method.export(1), mlp()
    assert list(plain.state_dict()) == list(bare.state_dict())
    for module, untouched in zip(plain.modules(), bare.modules(), strict=True):
        assert type(module) is type(untouched)
        assert vars(module).keys() == vars(untouched).keys()
        assert not module._forward_hooks
    assert [p.requires_grad for p in plain.parameters()] == [True] * 8
    assert all(p.grad is None for p in plain.parameters())
    bare.load_state_dict(plain.state_dict())
    assert torch.equal(bare(X), plain(X))
    assert pickle.loads(pickle.dumps(plain))(X).equal(plain(X))


@pytest.mark.slow
def test_an_export_needs_no_codecl(tmp_path):
    method = learned(mlp(), heads=["head"])
    plain = method.export(1)
    torch.save((plain, X, plain(X).detach()), tmp_path / "plain.pt")
    program = (
        "import sys, torch; sys.modules['codecl'] = None;"
        f"plain, X, expected = torch.load({str(tmp_path / 'plain.pt')!r}, weights_only=False);"
        "assert torch.equal(plain(X), expected)"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def test_an_export_stands_by_itself():
    method = learned(mlp(), heads=["head"])
    now = [outputs_of(method, task, X) for task in range(3)]
    plain = method.export(1)
    train(plain, TASKS[0], optim.SGD(plain.parameters(), lr=0.5), epochs=3)
    assert (plain(X) - now[1]).abs().max() > 1e-2
    for task in range(3):
        assert torch.equal(outputs_of(method, task, X), now[task])
    other = method.export(1)
    learn(method, TASKS[:1])
    assert (other(X) - now[1]).abs().max() < 1e-12


def test_an_export_of_a_multihead_model_uses_the_head_of_the_task():
    torch.manual_seed(0)
    model = MultiHead(MLP((8, 7)), 7, [3, 4, 5]).double()
    method = learned(model, aperture=1e2)
    for task in range(3):
        plain = method.export(task)
        assert plain.selected == task
        assert model.selected == 2
        assert (plain(X) - outputs_of(method, task, X)).abs().max() < 1e-12


def test_an_export_leaves_no_trace_in_the_method():
    def run(export):
        method = CodeCL(mlp(), heads=["head"], free_dims=3, overlap=0.0)
        learn(method, TASKS[:1])
        method.guard(optimizer := optim.SGD(method.model.parameters(), lr=0.1, momentum=0.9))
        method.begin_task(1, TASKS[1])
        x, y = TASKS[1][0]
        cross_entropy(method.model(x), y).backward()
        if export:
            method.export(0), method.export(1)
        optimizer.step()
        train(method.model, TASKS[1], optimizer, 2)
        method.end_task(TASKS[1])
        return method.model.state_dict()

    one, other = run(True), run(False)
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_while_attached_the_state_of_the_model_is_that_of_the_bare_model():
    method, bare = learned(mlp(), heads=["head"]), mlp()
    state = method.model.state_dict()
    assert list(state) == list(bare.state_dict())
    buffer = io.BytesIO()
    torch.save(state, buffer)
    buffer.seek(0)
    bare.load_state_dict(torch.load(buffer, weights_only=True))
    assert torch.equal(bare.first.weight, method.model.first.weight)


def test_detaching_restores_the_model_and_keeps_the_shared_weights():
    model = mlp()
    before = [copy.copy(vars(module)) for module in model.modules()]
    model.second.weight.requires_grad_(False)
    method = CodeCL(model, heads=["head"], free_dims=3, overlap=0.0)
    learn(method, TASKS)
    with method.shared_weights():
        expected = model(X)
    method.detach()
    assert torch.equal(model(X), expected)
    for module, variables in zip(model.modules(), before, strict=True):
        assert vars(module).keys() == variables.keys()
    flags = {name: parameter.requires_grad for name, parameter in model.named_parameters()}
    assert flags == {name: name != "second.weight" for name in flags}
    CodeCL(model, heads=["head"])  # and another method may be attached

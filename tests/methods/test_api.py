"""API against a slow version of itself, and gradients under an old task against the product written out."""

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import cross_entropy
from torch.testing import assert_close

from codecl.methods.api import API
from tests.methods.api_cases import EXACT, TIGHT
from tests.methods.api_reference import SlowAPI
from tests.methods.cases import mlp, task_data, train
from tests.methods.gpm_reference import LAYERS, images, networks


def identity_of(weight):
    """``I − P`` as a stack of matrices."""
    return weight.projection(torch.eye(weight.width, dtype=torch.float64).expand(weight.shape[0], -1, -1))


def begin_both(method, slow, batches):
    """Begin a task with the same ``V``, which is drawn, and the same signs of ``Φ``, which has none of its own."""
    before = {name: len(method.Phi[f"{name}.weight"]) for name in LAYERS}
    method.begin_task(slow.learned, batches)
    wanted = slow.begin(batches)
    grown = {name for name in LAYERS if len(method.Phi[f"{name}.weight"]) > before[name]}
    assert grown == wanted.keys()
    new = {}
    for name, (E, U) in wanted.items():
        Phi, V = method.Phi[f"{name}.weight"][-1], method.weights[f"{name}.weight"].columns[-1]
        assert Phi.shape[2] == E
        Phi_slow = torch.stack([u * (u * phi).sum(0).sign() for u, phi in zip(U, Phi, strict=True)])
        assert_close(Phi.detach(), Phi_slow.detach(), **EXACT)
        new[name] = Phi_slow, V
    slow.expand(new)
    return len(new)


def assert_the_same(method, slow):
    for name in LAYERS:
        weight = method.weights[f"{name}.weight"]
        assert_close(weight.parameter, slow.model.get_parameter(f"{name}.weight"), **EXACT)
        assert_close([V.detach() for V in weight.columns], [V.detach() for V in slow.V[name]], **EXACT)
        assert_close([P.detach() for P in method.Phi[weight.name]], [P.detach() for P in slow.Phi[name]], **EXACT)
    assert_close(method.model.head.weight, slow.model.head.weight, **EXACT)


@settings(max_examples=10)
@given(
    networks(),
    st.sampled_from([4, 12]),
    st.sampled_from([{}, {"warm_up": 1, "warm_up_lr": 0.05}]),
    st.sampled_from([0.9, 0.7]),
    st.sampled_from(["reach", "below"]),
)
def test_the_same_weights_expansions_and_memory(model, batch, warm_up, rho, first_rule):
    chosen = {"threshold": 0.8, "rho": rho, "channels": 4, "first_rule": first_rule} | warm_up
    slow = SlowAPI(copy.deepcopy(model), lr=0.2, **chosen)
    method = API(model, heads=["head"], increment=0.0, samples=None, **chosen)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    method.guard(optimizer)
    grown = 0
    for task in range(3):
        batches = images(task, batch=batch)
        grown += begin_both(method, slow, batches)
        assert_the_same(method, slow)
        train(model, batches, optimizer, epochs=2)
        for _ in range(2):
            for x, y in batches:
                slow.step(x, y)
        assert_the_same(method, slow)
        method.end_task(batches)
        slow.end(batches)
        for name in LAYERS:
            for got, B in zip(identity_of(method.weights[f"{name}.weight"]), slow.bases[name], strict=True):
                assert_close(got, torch.eye(len(B), dtype=torch.float64) - B @ B.mT, **EXACT)
        for old in range(task + 1):  # with the expansions it knew
            plain = method.export(old)
            for name in LAYERS:
                expected = slow.effective(name, slow.known[old][name]).detach()
                assert_close(plain.get_parameter(f"{name}.weight").detach(), expected, **EXACT)
    assert grown > 0


@pytest.mark.parametrize("rows", [3, 40], ids=["input side", "gradient side"])
@pytest.mark.parametrize("old", [0, 1])
def test_a_gradient_under_an_old_task_is_projected_too(rows, old):
    """The old task does not see the newer columns, but its gradient of ``W`` spreads to them by the projection."""
    model = mlp()
    method = API(model, **TIGHT | {"threshold": 0.9})
    for task in range(2):
        method.begin_task(task, task_data(task))
        method.end_task(task_data(task))
    method.begin_task(2, task_data(2))
    weight = method.weights["first.weight"]
    x, y = task_data(9, n=rows, batch=rows)[0]
    plain = method.export(old)
    cross_entropy(plain(x), y).backward()
    with method.task(old):
        cross_entropy(model(x), y).backward()
    G, (Phi, _) = plain.first.weight.grad, method.Phi["first.weight"]
    seen = [G, G @ Phi[0].detach() if old else G @ Phi[0].detach() * 0]
    joined = torch.cat([*seen, torch.zeros(len(G), weight.columns[1].shape[2], dtype=torch.float64)], dim=1)
    got = torch.cat([weight.parameter.grad, *(V.grad[0] for V in weight.columns)], dim=1)
    assert_close(got, joined @ identity_of(weight)[0])

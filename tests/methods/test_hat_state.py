"""What HAT gives back: plain networks that hold the masks, and states that go on alike or are refused."""

import pytest
import torch
from torch import nn, optim
from torch.testing import assert_close

from codecl import MultiHead
from codecl.method.state import ForeignState
from codecl.methods.hat import HAT
from tests.methods.cases import CLASSES, mlp, seeded, task_data
from tests.methods.hat_cases import NETWORKS, outputs, pictures, train


@pytest.mark.parametrize("network", NETWORKS)
def test_an_export_holds_the_masks_and_has_no_hooks(network):
    build, shape = NETWORKS[network]
    torch.manual_seed(1)
    model = build().double()
    method = HAT(model, heads=["head"] if hasattr(model, "head") else [], smax=5.0)
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    method.guard(optimizer)
    X = torch.randn(7, *shape, generator=seeded(3), dtype=torch.float64)
    for task in range(2):
        method.begin_task(task)
        train(method, pictures(task, shape), optimizer)
        method.end_task()
    for task in range(2):
        plain = method.export(task).eval()
        assert_close(plain(X), outputs(method, task, X), atol=1e-12, rtol=0)
        assert not any(m._forward_hooks or m._forward_pre_hooks or "forward" in vars(m) for m in plain.modules())
    told = outputs(method, 0, X)
    assert torch.equal(outputs(method, 0, X), told)
    assert not torch.allclose(outputs(method, 1, X), told)
    method.detach()
    assert not any(m._forward_hooks or m._forward_pre_hooks or "forward" in vars(m) for m in model.modules())


def test_new_heads_are_masked_and_a_restored_method_goes_on_alike():
    def build():
        torch.manual_seed(2)
        body = nn.Sequential(nn.Linear(8, 10), nn.ReLU(), nn.Linear(10, 6), nn.ReLU())
        return MultiHead(body.double(), 6, CLASSES, bias=True)

    method = HAT(build(), smax=4.0)
    optimizer = optim.SGD(method.model.parameters(), lr=0.1)
    method.guard(optimizer)
    for task in range(2):
        method.begin_task(task)
        train(method, task_data(task), optimizer)
        method.end_task()
    X = torch.cat([x for x, _ in task_data(5)])
    features = method.export(1).backbone(X)
    a = torch.sigmoid(4 * method.embeddings[1]["backbone.2.weight"])
    head = method.model.heads[1]
    assert_close(outputs(method, 1, X), ((features * a) @ head.weight.mT + head.bias).detach(), atol=1e-12, rtol=0)
    method.begin_task(2)
    state, weights = method.state_dict(), method.model.state_dict()
    fresh = HAT(build(), smax=4.0)
    fresh.model.load_state_dict(weights)
    fresh.load_state_dict(state)
    assert fresh.bytes() == method.bytes()
    ours = [method, fresh]
    for one in ours:
        other = optim.SGD(one.model.parameters(), lr=0.1)
        one.guard(other)
        train(one, task_data(2), other)
        one.end_task()
    for task in range(3):
        assert torch.equal(outputs(method, task, X), outputs(fresh, task, X))
    numbers = 10 + 6
    assert method.bytes() == {"memory": 4 * numbers * 8, "per_task": numbers * 8}


def test_a_state_of_other_units_is_refused():
    method = HAT(mlp(norm=False), heads=["head"])
    method.begin_task(0)
    state = method.state_dict()
    state["memory"]["embeddings"][0]["second.weight"] = torch.zeros(7)
    with pytest.raises(ForeignState, match=r"'second.weight': 7.*'second.weight': 6"):
        method.load_state_dict(state)

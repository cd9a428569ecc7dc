"""What EWC remembers: bytes by hand, states that come back, and foreign ones refused."""

import pytest
import torch

from codecl.method.state import ForeignState
from codecl.methods.ewc import EWC
from tests.methods.cases import mlp, task_data
from tests.methods.ewc_reference import SHARED, train


def test_memory_weighs_two_copies_and_survives_saving():
    model = mlp(dtype=torch.float32)
    method = EWC(model, heads=["head"], fisher="sum")
    for task in range(3):
        method.begin_task(task)
        train(method, task_data(task, dtype=torch.float32))
        method.end_task(task_data(task, dtype=torch.float32))
    numbers = sum(model.get_parameter(name).numel() for name in SHARED)
    heads = 3 * sum(p.numel() for p in model.head.parameters())
    assert method.bytes()["memory"] == (2 * numbers + heads) * 4
    fresh = EWC(mlp(dtype=torch.float32), heads=["head"], fisher="sum")
    fresh.model.load_state_dict(model.state_dict())
    fresh.load_state_dict(method.state_dict())
    with torch.no_grad():
        for one, other in zip(model.parameters(), fresh.model.parameters(), strict=True):
            one += 0.1
            other += 0.1
    assert torch.equal(fresh.penalty(), method.penalty())
    assert float(method.penalty().detach()) > 0


def test_a_state_of_another_model_is_refused():
    method = EWC(mlp(), heads=["head"])
    method.begin_task(0)
    method.end_task(task_data(0))
    state = method.state_dict()
    with pytest.raises(ForeignState, match=r"the state holds .*norm.bias.*; this model shares"):
        EWC(mlp(norm=False), heads=["head"]).load_state_dict(state)
    state["memory"]["penalty"]["first.bias"]["F"] = torch.zeros(3)
    with pytest.raises(ForeignState, match=r"'first.bias' is \[16\] here and \[3\] in the state"):
        method.load_state_dict(state)

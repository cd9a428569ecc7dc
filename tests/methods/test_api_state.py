"""What API stores: bytes by hand; foreign states and settings that cannot be are refused, and change nothing."""

import copy
import math

import pytest
import torch

from codecl.method.state import ForeignState
from codecl.methods.api import API
from tests.methods.api_cases import FEW, TIGHT
from tests.methods.cases import inputs, mlp, outputs_of, task_data


def test_bytes_count_expansions_as_what_a_task_adds():
    method = API(mlp(), **TIGHT)
    for task in range(2):
        method.begin_task(task, task_data(task, **FEW))
        method.end_task(task_data(task, **FEW))
    stored = method.memory_state()
    weights = [stored["V"], stored["Phi"]]
    expansions = 8 * sum(t.numel() for kind in weights for several in kind.values() for t in several)
    bases = 8 * sum(B.held.basis.numel() for several in method.memory.values() for B in several)
    heads = 2 * 8 * sum(p.numel() for p in method.model.head.parameters())
    assert expansions > 0
    assert method.bytes() == {"memory": expansions + bases + heads, "per_task": heads // 2 + expansions // 2}


@pytest.mark.parametrize(
    "bad",
    [
        {"rho": -0.1},
        {"rho": 1.5},
        {"channels": -1},
        {"channels": math.inf},
        {"warm_up": -1},
        {"warm_up_lr": 0.0},
        {"threshold": 0.0},
    ],
    ids=str,
)
def test_settings_that_cannot_be_are_refused_before_the_model_is_touched(bad):
    model = mlp()
    with pytest.raises(ValueError, match=f"{next(iter(bad))} must be"):
        API(model, heads=["head"], **bad)
    assert not any("forward" in vars(module) for module in model.modules())


def test_a_state_that_does_not_fit_is_refused_and_changes_nothing():
    method = API(mlp(), **TIGHT)
    for task in range(2):
        method.begin_task(task, task_data(task))
        method.end_task(task_data(task))
    good, x = method.state_dict(), inputs(task_data(1))
    expected = outputs_of(method, 1, x)

    def spoiled(what, change):
        bad = copy.deepcopy(good)
        change(bad["memory"][what])
        return bad

    def narrower(V):
        V["first.weight"][0] = V["first.weight"][0][..., 1:]

    def shorter(bases):
        bases["first.weight"][0]["basis"] = bases["first.weight"][0]["basis"][1:]

    for what, change, message in (
        ("V", narrower, "'first.weight' has expansions of shapes"),
        ("V", lambda V: V["first.weight"].clear(), "'first.weight' has expansions of shapes"),
        ("bases", shorter, "'first.weight' has directions of"),
        ("Phi", lambda Phi: Phi.pop("second.weight"), "incomplete"),
    ):
        with pytest.raises(ForeignState, match=message):
            method.load_state_dict(spoiled(what, change))
        assert torch.equal(outputs_of(method, 1, x), expected)
    bad = copy.deepcopy(good)
    bad["effective"][1]["first.weight"]["count"] = 5
    with pytest.raises(ForeignState, match=r"sees 5 expansions of 'first.weight', of which it has 1"):
        method.load_state_dict(bad)
    assert torch.equal(outputs_of(method, 1, x), expected)
    method.load_state_dict(good)
    assert torch.equal(outputs_of(method, 1, x), expected)

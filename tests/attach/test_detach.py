"""While attached, the model is the bare model to everyone who looks; ``detach`` leaves no trace."""

import copy
import random
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.testing import assert_close

from codecl import CodeCL
from codecl.attach.forward import AttachedForward
from tests.layers.cases import normal, redrawn

DATA = [normal(task, 12, 2, 6) for task in range(3)]


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.body = nn.Conv1d(2, 4, 2), nn.BatchNorm1d(4), nn.Linear(20, 6)
        self.still = nn.Linear(6, 6).requires_grad_(False)
        self.drop, self.head = nn.Dropout(0.2), nn.Linear(6, 2)

    def forward(self, x):
        return self.head(self.drop(self.still(self.body(self.norm(self.conv(x)).flatten(1)).relu())))


def network(how: str = "plain") -> Net:
    model = redrawn(Net())
    model.still.requires_grad_(False)
    model.norm.bias.requires_grad_(False)
    model.body.register_forward_hook(lambda *_: None)
    model.head.register_full_backward_hook(lambda *_: None)
    if how == "own forward":
        for layer in (model.body, model.norm):
            inner = layer.forward
            layer.forward = lambda x, inner=inner: inner(x)
    return model


def hooks(module: nn.Module) -> dict[str, Any]:
    return {key: dict(value) for key, value in vars(module).items() if "hooks" in key and value is not None}


def looks(model: nn.Module) -> dict[str, Any]:
    """Everything about ``model`` but the values of its parameters and buffers."""
    return {
        "modules": list(model.named_modules()),
        "parameters": [(name, id(parameter)) for name, parameter in model.named_parameters()],
        "buffers": [(name, id(buffer)) for name, buffer in model.named_buffers()],
        "flags": [parameter.requires_grad for parameter in model.parameters()],
        "training": [module.training for module in model.modules()],
        "hooks": [hooks(module) for module in model.modules()],
        "attributes": [list(vars(module)) for module in model.modules()],
        "forwards": [vars(module).get("forward") for module in model.modules()],
        "tensor hooks": [parameter._backward_hooks for parameter in model.parameters()],
        "tensor attributes": [vars(parameter) for parameter in model.parameters()],
    }


def looks_of_optimizer(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    return {
        "groups": [
            {key: [id(p) for p in value] if key == "params" else value for key, value in group.items()}
            for group in optimizer.param_groups
        ],
        "hooks": hooks(optimizer) | {key: dict(value) for key, value in vars(optimizer).items() if "_hooks" in key},
    }


def random_states() -> tuple[Any, ...]:
    return torch.get_rng_state().tolist(), random.getstate(), np.random.get_state()[1].tolist()


def attach(model: nn.Module, **settings: Any) -> CodeCL:
    defaults: dict[str, Any] = {"heads": ["head"], "overlap": 0.0, "free_dims": 3, "samples": None}
    return CodeCL(model, **(defaults | settings))


def step(model: nn.Module, x: torch.Tensor, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    (model(x) - 1).square().mean().backward()
    optimizer.step()


def until(stage: str, method: CodeCL, optimizer: torch.optim.Optimizer) -> None:
    """Go on to one of the places where a user might stop."""
    if stage == "at once":
        return
    method.guard(optimizer)
    for task, x in enumerate(DATA):
        method.begin_task(task, [x])
        if stage == "task begun" and task == 1:
            return
        for i in range(3):
            step(method.model, x, optimizer)
            if stage == "in the middle" and task == 1 and i == 1:
                return
        method.end_task([x])
        if stage == "after the first" and task == 0:
            return


STAGES = ["at once", "after the first", "task begun", "in the middle", "after all"]


@pytest.mark.parametrize("how", ["plain", "own forward"])
@pytest.mark.parametrize("policy", ["freeze", "per-task", "free"])
@pytest.mark.parametrize("stage", STAGES)
def test_detach_leaves_everything_as_it_was_found(stage, policy, how):
    model = network(how)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=0.01)
    before, of_optimizer = looks(model), looks_of_optimizer(optimizer)
    method = attach(model, norm=policy, bias=policy)
    until(stage, method, optimizer)
    values, states = copy.deepcopy(model.state_dict()), random_states()
    assert looks(model) != before
    if stage in ("task begun", "in the middle"):
        assert len(list(method.parameters())) == 2  # an M for each protected weight was in the optimizer
    method.detach()
    assert looks(model) == before
    assert looks_of_optimizer(optimizer) == of_optimizer
    assert_close(dict(model.state_dict()), dict(values), rtol=0, atol=0)
    assert random_states() == states
    assert not any(isinstance(vars(module).get("forward"), AttachedForward) for module in model.modules())
    step(model, DATA[0], optimizer)
    assert all(parameter.grad is not None for parameter in model.parameters() if parameter.requires_grad)


def test_attaching_and_surveying_draw_nothing():
    model, states = network(), random_states()
    method = attach(model)
    until("after the first", method, torch.optim.SGD(model.parameters(), lr=0.0))
    model.eval()
    assert random_states()[1:] == states[1:]
    method.detach()


def test_a_forward_of_the_users_own_is_the_same_object_afterwards():
    model = network("own forward")
    mine = vars(model.body)["forward"], vars(model.norm)["forward"]
    method = attach(model)
    until("after all", method, torch.optim.SGD(model.parameters(), lr=0.05))
    assert vars(model.body)["forward"] is not mine[0]
    assert vars(model.norm)["forward"] is not mine[1]
    method.detach()
    assert (vars(model.body)["forward"], vars(model.norm)["forward"]) == mine
    assert "forward" not in vars(model.conv)


def test_a_detached_model_trains_like_the_bare_one():
    model = network().eval()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    method = attach(model)
    until("after all", method, optimizer)
    bare = network().eval()
    bare.load_state_dict(model.state_dict())
    method.detach()
    other = torch.optim.SGD(bare.parameters(), lr=0.05)
    for _ in range(3):
        step(model, DATA[0], optimizer)
        step(bare, DATA[0], other)
    assert_close(dict(model.state_dict()), dict(bare.state_dict()), rtol=0, atol=0)
    assert not torch.equal(model.conv.weight, network().conv.weight)


@pytest.mark.parametrize("policy", ["freeze", "per-task", "free"])
def test_state_dict_is_the_bare_models_at_every_stage(policy):
    """Keys, their order, and the very tensors; also in the middle of a forward pass and of a step."""
    model = network()
    keys = list(model.state_dict())
    stored = {name: value.data_ptr() for name, value in model.state_dict().items()}
    looked: list[bool] = []

    def look(*_: Any) -> None:
        state = model.state_dict()
        looked.append(list(state) == keys and {name: value.data_ptr() for name, value in state.items()} == stored)

    model.head.register_forward_hook(look)
    model.body.register_full_backward_hook(look)
    method = attach(model, norm=policy, bias=policy)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    optimizer.register_step_post_hook(look)
    until("after all", method, optimizer)
    look()
    method.detach()
    look()
    assert len(looked) > 30
    assert all(looked)


def test_state_dict_loads_into_a_bare_model_and_back():
    model, bare = network().eval(), network().eval()
    method = attach(model)
    until("in the middle", method, torch.optim.SGD(model.parameters(), lr=0.05))
    bare.load_state_dict(model.state_dict(), strict=True)
    with torch.no_grad():
        for change in method.per_task.effective[-1].values():
            change.M.zero_()
        assert_close(model(DATA[0]), bare(DATA[0]))
        for parameter in bare.parameters():
            parameter.mul_(1.1)
        model.load_state_dict(bare.state_dict(), strict=True)
        assert_close(model(DATA[0]), bare(DATA[0]))


def test_a_detached_method_says_so():
    model = network()
    method = attach(model)
    method.detach()
    for call in (method.detach, lambda: method.begin_task(0), lambda: method.task(0).__enter__()):
        with pytest.raises(RuntimeError, match="detached from its model"):
            call()
    attach(model).detach()

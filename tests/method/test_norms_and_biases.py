"""What input correlations do not describe: held after the first task, kept per task, or free."""

import copy
from collections import OrderedDict

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from codecl import CodeCL, Method
from tests.layers.cases import normal, redrawn

OLD, NEW = normal(1, 8, 2, 6) + 2, 3 * normal(2, 8, 2, 6) - 1
HEAD = {"head.weight", "head.bias"}
LEARNED = HEAD | {"conv.weight", "body.weight"}
NORMS = {
    "BatchNorm": lambda: nn.BatchNorm1d(4),
    "BatchNorm without affine": lambda: nn.BatchNorm1d(4, affine=False),
    "BatchNorm without statistics": lambda: nn.BatchNorm1d(4, track_running_stats=False),
    "cumulative BatchNorm": lambda: nn.BatchNorm1d(4, momentum=None),
    "InstanceNorm": lambda: nn.InstanceNorm1d(4, affine=True, track_running_stats=True),
    "GroupNorm": lambda: nn.GroupNorm(2, 4),
    "LayerNorm": lambda: nn.LayerNorm([4, 5]),
    "RMSNorm": lambda: nn.RMSNorm(5),
}


def network(norm: str = "BatchNorm", head: nn.Module | None = None) -> nn.Sequential:
    layers = OrderedDict(
        conv=nn.Conv1d(2, 4, 2, bias=False),
        norm=NORMS[norm](),
        flat=nn.Flatten(),
        body=nn.Linear(20, 6),
        tanh=nn.Tanh(),
        head=head or nn.Linear(6, 2),
    )
    return redrawn(nn.Sequential(layers))


def train(model: nn.Module, x: torch.Tensor, optimizer: torch.optim.Optimizer, steps: int = 5) -> None:
    model.train()
    for _ in range(steps):
        optimizer.zero_grad()
        (model(x) - 1).square().mean().backward()
        optimizer.step()
    model.eval()


def two_tasks(model: nn.Module, **settings) -> tuple[CodeCL, dict, dict, torch.Tensor]:
    """A method after two tasks, the state after each, and what the first task put out when it was learned."""
    settings = {"heads": ["head"], "aperture": 1e5, "free_dims": 0, "samples": None} | settings
    method = CodeCL(model, **settings)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    method.guard(optimizer)
    states = []
    for task, x in enumerate((OLD, NEW)):
        method.begin_task(task, [x])
        train(model, x, optimizer)
        method.end_task([x])
        states.append({name: value.clone() for name, value in model.state_dict().items()})
        if task == 0:
            with torch.no_grad():
                output = model(OLD)
    return method, *states, output


def of_norm(state: dict) -> dict:
    return {name: value for name, value in state.items() if name.startswith("norm.")}


def changed(one: dict, other: dict) -> set[str]:
    return {name for name in one if not torch.equal(one[name], other[name])}


def all_of(model: nn.Module) -> set[str]:
    """What training changes; InstanceNorm never counts its batches."""
    uncounted = {"norm.num_batches_tracked"} if isinstance(model.norm, nn.InstanceNorm1d) else set()
    return set(model.state_dict()) - uncounted


@pytest.mark.parametrize("norm", NORMS)
def test_frozen_norms_and_biases_stand_still_in_train_mode(norm):
    model = network(norm)
    fresh = {name: value.clone() for name, value in model.state_dict().items()}
    method, first, second, output = two_tasks(model)
    assert changed(fresh, first) == all_of(model)  # the first task trains everything
    assert changed(first, second) == LEARNED
    parameters = dict(model.named_parameters())
    assert not any(
        parameters[name].requires_grad for name in parameters if name.startswith("norm.") or name == "body.bias"
    )
    with torch.no_grad(), method.task(0):
        assert_close(model(OLD), output, rtol=0, atol=1e-5)


@pytest.mark.parametrize("norm", ["BatchNorm", "cumulative BatchNorm", "InstanceNorm"])
def test_held_statistics_are_used_in_train_mode_too(norm):
    """The second task learns the function that it is tested on."""
    model = network(norm)
    two_tasks(model)
    with torch.no_grad():
        in_training, in_evaluation = model.train()(NEW), model.eval()(NEW)
        assert torch.equal(in_training, in_evaluation)
        assert model.train().norm.training  # the flag is the user's
        model(OLD)
    assert model.norm.training


def test_free_norms_and_biases_train_throughout():
    model = network()
    method, first, second, output = two_tasks(model, norm="free", bias="free")
    assert changed(first, second) == all_of(model)
    with torch.no_grad(), method.task(0):
        assert (model(OLD) - output).abs().max() > 1e-2


@pytest.mark.parametrize(("policy", "still"), [("norm", "body.bias"), ("bias", "norm.")])
def test_policies_are_independent(policy, still):
    """The one is free, the other held."""
    _, first, second, _ = two_tasks(network(), **{policy: "free"})
    held = {name for name in first if name.startswith(still)}
    assert held
    assert changed(first, second) == set(first) - held


@pytest.mark.parametrize("norm", ["BatchNorm", "BatchNorm without affine", "InstanceNorm", "LayerNorm"])
def test_per_task_values_come_back_with_their_task(norm):
    model = network(norm)
    method, first, second, output = two_tasks(model, norm="per-task", bias="per-task")
    assert changed(first, second) == all_of(model)
    own = of_norm(first) | {name: first[name] for name in ("body.bias", *HEAD)}
    for _ in range(2):
        with torch.no_grad(), method.task(0):
            shown = {name: value.clone() for name, value in model.state_dict().items()}
            assert changed(own, shown) == set()
            assert torch.equal(shown["body.weight"], second["body.weight"])
            assert_close(model(OLD), output, rtol=0, atol=1e-5)
            with method.task(1):
                assert changed(second, model.state_dict()) == set()
            assert changed(own, model.state_dict()) == set()
        assert changed(second, model.state_dict()) == set()  # live again
    with method.task(0):
        model.train()(NEW)  # moves statistics that are not kept
    assert changed(second, model.state_dict()) == set()
    with method.task(0):
        assert changed(own, model.state_dict()) == set()


def test_per_task_values_keep_on_training():
    model = network()
    method, _, second, _ = two_tasks(model, norm="per-task", bias="per-task")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    method.guard(optimizer)
    method.begin_task(2, [OLD])
    train(model, OLD, optimizer)
    assert changed(second, model.state_dict()) == set(second)
    with method.task(1):
        assert not changed(of_norm(second), model.state_dict())


def test_a_skipped_norm_is_not_held():
    model = network()
    _, first, second, _ = two_tasks(model, skip=["norm"])
    assert changed(of_norm(first), second) == set(of_norm(first))
    assert "forward" not in vars(model.norm)


def test_a_norm_inside_a_head_belongs_to_its_task():
    """Running statistics included."""
    model = network(head=nn.Sequential(nn.BatchNorm1d(6), nn.Linear(6, 2)))
    method, first, second, output = two_tasks(model)
    in_head = {name for name in first if name.startswith("head.")}
    assert changed(first, second) == in_head | {"conv.weight", "body.weight"}
    with torch.no_grad(), method.task(0):
        assert changed(first, model.state_dict()) == {"conv.weight", "body.weight"}
        assert_close(model(OLD), output, rtol=0, atol=1e-5)
    assert changed(second, model.state_dict()) == set()


def test_statistics_of_a_frozen_backbone_are_held():
    """Its parameters never trained, its statistics would."""
    model = network()
    for name in ("conv", "norm", "body"):
        model.get_submodule(name).requires_grad_(False)
    _, first, second, _ = two_tasks(model)
    assert changed(first, second) == HEAD


def test_fine_tuning_holds_nothing_whatever_the_policy():
    for policy in ("freeze", "per-task"):
        model = network()
        method = Method(model, heads=["head"], norm=policy, bias=policy)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        states = []
        for task, x in enumerate((OLD, NEW)):
            method.begin_task(task)
            train(model, x, optimizer)
            method.end_task()
            states.append(copy.deepcopy(model.state_dict()))
        assert changed(*states) == set(states[0])
        with method.task(0):
            assert changed(states[1], model.state_dict()) == HEAD


@pytest.mark.parametrize("policy", ["freeze", "per-task", "free"])
def test_a_copy_of_an_attached_model_is_its_own(policy):
    model = network()
    two_tasks(model, norm=policy, bias=policy)
    state, gradients = copy.deepcopy(model.state_dict()), [p.grad for p in model.parameters()]
    twin = copy.deepcopy(model)
    with torch.no_grad():
        assert torch.equal(twin(OLD), model(OLD))
    for parameter in twin.parameters():
        parameter.requires_grad_(True)
    train(twin, OLD, torch.optim.SGD(twin.parameters(), lr=0.05))
    assert changed(state, model.state_dict()) == set()
    assert "body.weight" in changed(state, twin.state_dict())
    assert all(p.grad is gradient for p, gradient in zip(model.parameters(), gradients, strict=True))
    with torch.no_grad():
        assert not torch.equal(twin(OLD), model(OLD))

"""CODE-CL with weights of a task's own: it learns what fine-tuning learns, and keeps what CODE-CL keeps."""

from collections import OrderedDict

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from codecl import CodeCL, check_method
from codecl.attach import Own
from codecl.training.check import CHECKS
from tests.methods.cases import CLASSES, assert_same, drift, inputs, learn, mlp, outputs_of, task_data, train

TASKS = [task_data(t) for t in range(3)]


def convolutional() -> nn.Sequential:
    """A grouped and a dilated convolution below a Linear layer."""
    torch.manual_seed(3)
    layers = [("a", nn.Conv2d(2, 4, 3, groups=2, padding=1)), ("tanh", nn.Tanh())]
    layers += [
        ("b", nn.Conv2d(4, 3, 2, dilation=2)),
        ("relu", nn.ReLU()),
        ("flat", nn.Flatten()),
        ("c", nn.Linear(12, 7)),
        ("last", nn.Tanh()),
    ]
    return nn.Sequential(OrderedDict([*layers, ("head", nn.Linear(7, CLASSES))])).double()


def pictures(task: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    draw = torch.Generator().manual_seed(50 + task)
    x = torch.randn(12, 2, 4, 4, generator=draw, dtype=torch.float64)
    return list(zip(x.split(4), torch.randint(0, CLASSES, (12,), generator=draw).split(4), strict=True))


@pytest.mark.parametrize(("network", "tasks"), [(mlp, TASKS), (convolutional, [pictures(t) for t in range(3)])])
def test_all_of_a_gradient_is_learned(network, tasks):
    """In every task a step takes the effective weights where it takes those of a plain copy, whatever is held back."""
    settings = {"own_share": 1.0, "samples": None, "bias": "free", "norm": "free", "aperture": 9.0}
    method = CodeCL.own(network(), heads=["head"], **settings)
    optimizer = torch.optim.SGD(method.model.parameters(), lr=0.1)
    method.guard(optimizer)
    for t, batches in enumerate(tasks):
        everything = [tuple(torch.cat(parts) for parts in zip(*batches, strict=True))]
        method.begin_task(t, everything)
        plain = method.export(t).train()
        before = {name: weight.parameter.detach().clone() for name, weight in method.weights.items()}
        train(method.model, everything, optimizer, epochs=1)
        train(plain, everything, torch.optim.SGD(plain.parameters(), lr=0.1), epochs=1)
        for name, weight in method.weights.items():
            assert_close(weight.effective(), plain.get_parameter(name).detach(), rtol=0.0, atol=1e-9)
            step, lost = (weight.parameter.detach() - w for w in (before[name], plain.get_parameter(name).detach()))
            assert step.abs().max() > 1e-6
            assert (lost.abs().max() > 1e-6) == (t > 0)  # what is not in the shared weight is the task's own
        train(method.model, batches, optimizer, epochs=5)
        method.end_task(batches)


def test_old_tasks_stay_as_well_as_without():
    """What a task has of its own changes no other: old outputs move as far as CODE-CL with nothing freed lets them."""
    moved = {}
    for name, settings in {"own": {"own_share": 1.0}, "none": {"free_dims": 0}}.items():
        method = CodeCL(mlp(), heads=["head"], aperture=50.0, after="effective", **settings)
        learn(method, TASKS[:1])
        before = outputs_of(method, 0, inputs(TASKS[0]))
        learn(method, TASKS[1:])
        moved[name] = drift(outputs_of(method, 0, inputs(TASKS[0])), before)
    assert moved["own"] < 2e-2
    assert moved["own"] < 3 * moved["none"] + 1e-12


def test_new_tasks_are_learned_where_the_memory_is_full():
    """With an aperture at which nothing passes, own weights learn what frozen ones cannot."""
    losses = {}
    for name, settings in {"own": {"own_share": 0.99}, "none": {"free_dims": 0}}.items():
        method = CodeCL(mlp(), heads=["head"], aperture=1e4, after="effective", **settings)
        learn(method, TASKS, epochs=40, lr=0.3)
        x, y = (torch.cat(parts) for parts in zip(*TASKS[2], strict=True))
        losses[name] = float(nn.functional.cross_entropy(outputs_of(method, 2, x), y))
    assert losses["own"] < 0.5 * losses["none"]


def test_a_task_starts_from_what_the_last_had():
    method = CodeCL.own(mlp(), heads=["head"], own_share=1.0, samples=None)
    learn(method, TASKS[:2])
    last = {name: weight.effective() for name, weight in method.weights.items()}
    method.begin_task(2, TASKS[2])
    for name, weight in method.weights.items():
        change = method.effective[name]
        assert isinstance(change, Own)
        D, F = last[name] - weight.parameter, change.F[0]
        inside = D @ torch.linalg.pinv(F) @ F
        assert_close(change.added()[0], inside, rtol=0.0, atol=1e-8)
        assert inside.abs().max() > 1e-3


def test_it_goes_on_from_its_state(tmp_path):
    whole, half = (CodeCL.own(mlp(), heads=["head"]) for _ in range(2))
    learn(whole, TASKS)
    learn(half, TASKS[:2])
    torch.save({"model": half.model.state_dict(), "method": half.state_dict()}, tmp_path / "half.pt")
    saved = torch.load(tmp_path / "half.pt", weights_only=True)
    resumed = CodeCL.own(mlp(seed=9), heads=["head"])
    resumed.model.load_state_dict(saved["model"])
    resumed.load_state_dict(saved["method"])
    learn(resumed, TASKS[2:])
    assert_same(resumed.state_dict(), whole.state_dict())
    for t in range(3):
        assert torch.equal(outputs_of(resumed, t, inputs(TASKS[t])), outputs_of(whole, t, inputs(TASKS[t])))
        plain = whole.export(t)
        assert_close(plain(inputs(TASKS[t])), outputs_of(whole, t, inputs(TASKS[t])))


def test_what_it_has_is_told_and_counted():
    few, many = (CodeCL.own(mlp(), heads=["head"], own_share=share) for share in (0.5, 1.0))
    for method in (few, many):
        learn(method, TASKS[:2])
        for name, found in method.memory_summary().items():
            assert found["freed"] == method.effective[name].F.shape[1]
    kept = {name: found["freed"] for name, found in few.memory_summary().items()}
    assert all(0 < kept[name] < found["freed"] for name, found in many.memory_summary().items())
    own = sum(c.F.numel() + c.B.numel() for c in many.effective.values()) * 8
    assert many.bytes()["memory"] - few.bytes()["memory"] > 0
    assert many.bytes()["per_task"] >= own // 2


def test_inputs_from_which_nothing_is_taken_need_nothing_of_their_own():
    eye, method = torch.eye(8, dtype=torch.float64), CodeCL.own(mlp(), heads=["head"])
    for t in range(2):
        method.begin_task(t, [eye[4 * t : 4 * t + 4]])
        method.end_task([eye[4 * t : 4 * t + 4]])
    assert set(method.effective) == {"second.weight"}
    assert method.memory_summary()["first.weight"]["freed"] == 0


def test_what_the_paper_frees_has_no_part_in_it():
    states = []
    for settings in ({}, {"free_dims": 0, "overlap": 1.0, "tolerance": 0.5}):
        method = CodeCL.own(convolutional(), heads=["head"], smallest=4, **settings)
        learn(method, [pictures(t) for t in range(2)])
        states.append([change.state() for change in method.effective.values()])
    assert len(states[0]) == 3
    assert_same(*states)


@pytest.mark.parametrize("cut", [lambda B: B[:, :1], lambda B: B[..., 1:], lambda B: B[0]])
def test_own_weights_of_other_shapes_are_refused(cut):
    method, fresh = (CodeCL.own(mlp(), heads=["head"]) for _ in range(2))
    learn(method, TASKS[:2])
    state = method.state_dict()
    state["effective"][1]["first.weight"]["B"] = cut(state["effective"][1]["first.weight"]["B"])
    with pytest.raises(ValueError, match=r"'first.weight', \[1, 16, 8\], has own weights F and B of the shapes"):
        fresh.load_state_dict(state)


def test_closed_weights_have_nothing_of_their_own():
    method = CodeCL.own(mlp(), heads=["head"], closed=["second*"])
    learn(method, TASKS[:2])
    assert set(method.effective) == {"first.weight"}


@pytest.mark.slow
def test_it_keeps_every_promise():
    assert len(check_method(CodeCL.own)) == len(CHECKS)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"own_share": 0.0}, r"own_share must be a share in \(0, 1\], or None; got 0.0"),
        ({"own_share": 1.5}, "got 1.5"),
        ({"own_share": 0.9, "replace": True}, "own_share must be None beside replace, random_start or hold; got 0.9"),
    ],
)
def test_settings_that_cannot_be(settings, message):
    with pytest.raises(ValueError, match=message):
        CodeCL(mlp(), heads=["head"], **settings)

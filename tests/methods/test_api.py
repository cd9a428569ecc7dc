"""API against a slow version of itself, and what it promises beside: old tasks, all optimizers, no traces."""

import copy
import math
from collections import OrderedDict

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn.functional import cross_entropy
from torch.testing import assert_close

from codecl.method.state import ForeignState
from codecl.methods.api import API
from codecl.training.check import CHECKS, hardships
from tests.method.optimizers import TRAININGS
from tests.methods.api_reference import SlowAPI
from tests.methods.cases import CLASSES, drift, inputs, mlp, outputs_of, task_data, train
from tests.methods.gpm_reference import LAYERS, images, networks

EXACT = {"atol": 1e-9, "rtol": 0}
FEW = {"n": 3, "batch": 3}
TIGHT = {"heads": ["head"], "threshold": 1.0, "increment": 0.0, "rho": 1.0, "channels": 4}
"""Every direction is protected, and every layer short of plasticity gets more inputs."""


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


@pytest.mark.parametrize(
    ("rho", "channels", "retained", "expected"),
    [
        (0.5, 10, [0.5], 0),
        (0.5, 10, [0.7], 0),
        (0.5, 10, [0.45], 1),
        (0.5, 10, [0.39], 2),
        (0.5, 10, [0.0], 5),
        (0.5, 3, [0.1], 2),
        (1.0, 100, [0.1], 8),  # no more than there are
        (0.5, 0, [0.1], 0),
    ],
)
def test_how_many_inputs_are_added(monkeypatch, rho, channels, retained, expected):
    method = API(mlp(), heads=["head"], rho=rho, channels=channels)
    method.begin_task(0, task_data(0))
    method.end_task(task_data(0))
    monkeypatch.setattr(method, "_retained", lambda _: {"first.weight": torch.tensor(retained)})
    method.begin_task(1, task_data(1))
    assert [Phi.shape[2] for Phi in method.Phi["first.weight"]] == ([expected] if expected else [])


def convolutional(kind, size):
    """A grouped convolution of kernel 2 over images of ``size`` to each side."""
    torch.manual_seed(3)
    conv = kind(4, 4, 2, groups=2)
    axes = conv.weight.ndim - 2
    head = nn.Linear(4 * (size - 1) ** axes, CLASSES)
    model = nn.Sequential(OrderedDict(conv=conv, tanh=nn.Tanh(), flat=nn.Flatten(), head=head)).double()
    x = torch.randn(3, 1, 4, *[size] * axes, dtype=torch.float64)
    return model, [[(image, torch.tensor([task]))] for task, image in enumerate(x)]


def test_all_groups_get_as_many_as_the_one_that_needs_most(monkeypatch):
    model, tasks = convolutional(nn.Conv2d, 4)
    method = API(model, heads=["head"])
    method.begin_task(0, tasks[0])
    method.end_task(tasks[0])
    monkeypatch.setattr(method, "_retained", lambda _: {"conv.weight": torch.tensor([0.45, 0.35])})
    method.begin_task(1, tasks[1])
    assert [Phi.shape for Phi in method.Phi["conv.weight"]] == [(2, 2, 2)]
    assert [V.shape for V in method.weights["conv.weight"].columns] == [(2, 2, 2 * 4)]


@pytest.mark.parametrize(("kind", "axes"), [(nn.Conv1d, 1), (nn.Conv3d, 3)])
def test_kernels_of_one_and_three_axes(kind, axes):
    """Φ starts from Frobenius norms, and old outputs stay."""
    model, tasks = convolutional(kind, 3)
    method = API(model, **TIGHT)
    method.guard(optimizer := torch.optim.SGD(model.parameters(), lr=0.5))
    expected = {}
    for task, batches in enumerate(tasks):
        x = batches[0][0]
        method.begin_task(task, batches)
        if task == 1:
            patches = x[0, :2]  # the channels of the first group
            for axis in range(axes):
                patches = patches.unfold(1 + axis, 2, 1)
            U = torch.linalg.svd(patches.reshape(2, -1, 2**axes).norm(dim=2))[0]
            Phi = method.Phi["conv.weight"][0][0].detach()
            U = U[:, : Phi.shape[1]]
            assert_close(Phi, U * (U * Phi).sum(0).sign(), **EXACT)
        train(model, batches, optimizer, epochs=3)
        method.end_task(batches)
        expected[task] = outputs_of(method, task, x)
        assert_close(method.export(task)(x), expected[task], **EXACT)
    assert len(method.weights["conv.weight"].columns) == 2
    for task in range(2):
        assert drift(outputs_of(method, task, tasks[task][0][0]), expected[task]) < 1e-9


@pytest.mark.parametrize(
    "name",
    ["momentum", "momentum and weight decay", "adam", "adamw", "clipping", "clipping by value", "groups", "closure"],
)
def test_old_outputs_stay_under_every_optimizer(name):
    training, model = TRAININGS[name], mlp()
    method = API(model, **TIGHT)
    tasks = [task_data(task, **FEW) for task in range(3)]
    optimizer = training.build(model)
    method.guard(optimizer, training.project)
    expected, columns = {}, {}
    for task, batches in enumerate(tasks):
        method.begin_task(task, batches)
        start = [p.detach().clone() for p in method.parameters()]
        training.loop(model, batches, optimizer, 12)
        assert all((p - before).abs().max() > 1e-4 for p, before in zip(method.parameters(), start, strict=True))
        method.end_task(batches)
        expected[task] = outputs_of(method, task, inputs(batches))
        columns[task] = len(method.weights["first.weight"].columns)
    assert columns == {0: 0, 1: 1, 2: 2}
    for task in range(2):
        assert drift(outputs_of(method, task, inputs(tasks[task])), expected[task]) < 1e-9


def test_mixtures_are_held_after_their_task_and_columns_are_not():
    model = mlp()
    method = API(model, **TIGHT)
    method.guard(optimizer := torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
    for task in range(3):
        method.begin_task(task, task_data(task, **FEW))
        if task == 2:
            Phi, V = method.Phi["first.weight"][0].detach().clone(), method.weights["first.weight"].columns[0].clone()
        train(model, task_data(task, **FEW), optimizer, epochs=5)
        method.end_task(task_data(task, **FEW))
    assert torch.equal(method.Phi["first.weight"][0], Phi)
    assert (method.weights["first.weight"].columns[0] - V).abs().max() > 1e-3
    assert not any(p.requires_grad for p in (*method.Phi["first.weight"], *method.weights["first.weight"].columns))


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


def test_new_columns_are_drawn_as_torch_draws_a_layer_and_from_a_stream_of_their_own():
    drawn = []
    for seed in (0, 0, 1):
        method = API(mlp(), seed=seed, **TIGHT)
        method.begin_task(0, task_data(0))
        method.end_task(task_data(0))
        torch.manual_seed(len(drawn))
        method.begin_task(1, task_data(1))
        drawn.append(method.weights["first.weight"].columns[0].detach())
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])
    bound = (8 + drawn[0].shape[2]) ** -0.5
    assert 0.8 * bound < drawn[0].abs().max() <= bound


def test_mixtures_are_filled_up_where_the_inputs_have_few_directions():
    model = nn.Sequential(OrderedDict(a=nn.Linear(5, 4), tanh=nn.Tanh(), head=nn.Linear(4, CLASSES))).double()
    one = torch.arange(1.0, 6.0, dtype=torch.float64)
    batches = [(torch.stack([one, -2 * one, 3 * one]), torch.tensor([0, 1, 2]))]
    method = API(model, **TIGHT)
    for task in range(2):
        method.begin_task(task, batches)
        if task == 0:
            method.end_task(batches)
    Phi = method.Phi["a.weight"][0][0].detach()
    assert Phi.shape == (5, 4)  # all of the gradient is lost
    assert_close(Phi.mT @ Phi, torch.eye(4, dtype=torch.float64))
    assert_close(Phi[:, 0].abs(), one / one.norm())


class Watched(nn.Module):
    """Dropout, running statistics, and a record of the mode of every call."""

    def __init__(self):
        super().__init__()
        self.first, self.norm, self.drop = nn.Linear(8, 6), nn.BatchNorm1d(6), nn.Dropout(0.5)
        self.head = nn.Linear(6, CLASSES)
        self.modes = []

    def forward(self, x):
        self.modes.append(self.training)
        return self.head(self.drop(self.norm(self.first(x)).relu()))


def begun_twice(loader, **settings):
    torch.manual_seed(0)
    method = API(Watched().double(), **TIGHT, **settings)
    method.begin_task(0, task_data(0))
    method.end_task(task_data(0))
    method.model.eval()
    return method, lambda: method.begin_task(1, loader)


def test_measuring_runs_in_training_mode_and_leaves_no_trace():
    method, begin = begun_twice(task_data(1), norm="per-task", bias="per-task")
    before, random = copy.deepcopy(method.model.state_dict()), torch.get_rng_state()
    method.model.modes.clear()
    begin()
    assert True in method.model.modes
    assert not any(module.training for module in method.model.modules())
    assert torch.equal(random, torch.get_rng_state())
    for name, value in method.model.state_dict().items():
        assert torch.equal(value, before[name]), name
    assert all(parameter.grad is None for parameter in method.model.parameters())


def test_the_batches_may_come_from_a_generator_and_dropout_from_its_own_stream():
    of_list, begin = begun_twice(task_data(1), warm_up=2)
    begin()
    of_generator, begin = begun_twice((batch for batch in task_data(1)), warm_up=2)
    torch.manual_seed(7)
    begin()
    for name, value in of_list.model.state_dict().items():
        assert torch.equal(value, of_generator.model.state_dict()[name]), name
    assert_close(list(of_list.Phi["first.weight"]), list(of_generator.Phi["first.weight"]), rtol=0, atol=0)


def test_closed_weights_get_no_more_inputs():
    method = API(mlp(), closed=["second*"], **TIGHT)
    for task in range(2):
        method.begin_task(task, task_data(task))
        method.end_task(task_data(task))
    assert {name: len(weight.columns) for name, weight in method.weights.items()} == {
        "first.weight": 1,
        "second.weight": 0,
    }


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


@pytest.mark.slow
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_every_promise_is_kept_with_expansions_in_all_layers(check, monkeypatch):
    if check is hardships.check_a_switch_costs_the_same_after_many_tasks:
        pytest.skip("every task widens every layer here, and a switch puts all expansions in place")
    monkeypatch.setattr(hardships, "MANY", 30)
    check(lambda model: API(model, rho=0.99, channels=6, threshold=0.9))


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

"""HAT: against the formulas written out, what it holds, and what it gives back."""

import itertools
import math
from collections import OrderedDict

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn, optim
from torch.testing import assert_close
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from codecl import MultiHead, check_method
from codecl.attach.units.follow import UnknownUnits
from codecl.method.state import ForeignState
from codecl.methods.hat import HAT
from codecl.networks import AlexNet, LeNet, ReducedResNet18
from codecl.training.check import CHECKS
from codecl.training.engine import Plan, Trainer
from codecl.training.stream import Stream, Task, Tensors
from tests.marks import slow_but
from tests.methods.cases import CLASSES, mlp, seeded, task_data
from tests.methods.hat_reference import RESIDUAL, STACK, Reference, Residual, Stack, residual, stack


def pictures(task, shape, n=12, batch=5):
    """``n`` inputs and classes; the last batch is smaller."""
    X = torch.randn(n, *shape, generator=seeded(50 + task), dtype=torch.float64)
    y = torch.randint(0, CLASSES, (n,), generator=seeded(70 + task))
    return list(zip(X.split(batch), y.split(batch), strict=True))


class Counted(list):
    """Batches, and how many inputs there are, as the loader of a trainer says."""

    @property
    def inputs(self):
        return sum(len(x) for x, _ in self)


def train(method, batches, optimizer, epochs=2):
    method.model.train()
    losses = []
    for epoch in range(epochs):
        for x, y in method.watch(batches, epoch, epochs):

            def closure(x=x, y=y):
                optimizer.zero_grad()
                loss = F.cross_entropy(method.model(x), y)
                loss.backward()
                return loss

            losses.append(float(optimizer.step(closure).detach()))
    return losses


def outputs(method, task, x):
    method.model.eval()
    with method.task(task), torch.no_grad():
        return method.model(x)


@pytest.mark.parametrize(
    ("network", "forward", "wiring", "shape", "heads"),
    [(Stack, stack, STACK, (2, 4, 4), ["head"]), (Residual, residual, RESIDUAL, (2, 3, 3), [])],
    ids=["stack", "residual"],
)
@settings(max_examples=3, deadline=None)
@given(
    smax=st.sampled_from([2.0, 10.0, 400.0]),
    c=st.sampled_from([0.0, 0.75, 4.0]),
    seed=st.integers(0, 9),
    annealing=st.sampled_from(["batches", "inputs"]),
)
def test_the_same_weights_and_masks_as_the_formulas(network, forward, wiring, shape, heads, smax, c, seed, annealing):
    torch.manual_seed(seed)
    model = network().double()
    method = HAT(model, heads=heads, smax=smax, c=c, seed=seed, annealing=annealing)
    positions = [0.0, 0.5, 1.0] if annealing == "batches" else [0.0, 5 / 12, 10 / 12]
    start = {name: value.detach().clone() for name, value in model.named_parameters()}
    reference = Reference(forward, start, wiring, smax, c, lr=0.05)
    optimizer = optim.SGD(model.parameters(), lr=0.05)
    method.guard(optimizer)
    for task in range(3):
        batches = pictures(task, shape)
        method.begin_task(task)
        reference.begin({group: e.detach() for group, e in method.embeddings[task].items()})
        losses = train(method, Counted(batches), optimizer)
        expected = [reference.step(*batch, at) for _ in range(2) for batch, at in zip(batches, positions, strict=True)]
        assert_close(losses, expected, atol=1e-8, rtol=0)
        for name, value in reference.parameters.items():
            assert_close(model.get_parameter(name).detach(), value, atol=1e-8, rtol=0)
        for group, e in reference.e.items():
            assert_close(method.embeddings[task][group].detach(), e, atol=1e-8, rtol=0)
        method.end_task()
        reference.end()
        for group, A in reference.A.items():
            assert_close(method.A[group], A, atol=1e-8, rtol=0)
        x = batches[0][0]
        masks = {group: torch.sigmoid(smax * e) for group, e in reference.e.items()}
        assert_close(outputs(method, task, x), forward(reference.parameters, masks, x), atol=1e-8, rtol=0)


def test_embeddings_start_as_normal_numbers_of_their_own():
    model = nn.Sequential(nn.Linear(8, 2000), nn.ReLU(), nn.Linear(2000, 2000), nn.ReLU(), nn.Linear(2000, 3))
    drawn = []
    for seed in (0, 0, 1):
        method = HAT(model, heads=["4"], seed=seed)
        method.begin_task(0)
        method.end_task()
        method.begin_task(1)
        drawn.append([e.detach() for of in method.embeddings for e in of.values()])
        method.detach()
    assert all(abs(e.mean()) < 0.1 and abs(e.std() - 1) < 0.06 for e in drawn[0])
    assert all(torch.equal(a, b) for a, b in zip(*drawn[:2], strict=True))
    assert not any(torch.equal(a, b) for a, b in zip(*drawn[1:], strict=True))
    assert len({tuple(e.tolist()) for e in drawn[0]}) == 4


def test_masks_harden_within_an_epoch_and_are_hard_outside_of_one():
    method = HAT(mlp(norm=False), heads=["head"], smax=10.0)
    method.begin_task("one")
    e = method.embeddings[0]["first.weight"]
    method.model.train()
    batches = task_data(0, n=16, batch=4)
    for i, _ in enumerate(method.watch(batches)):
        assert_close(method.mask(0, "first.weight"), torch.sigmoid((0.1 + 9.9 * i / 3) * e))
        method.model.eval()
        assert_close(method.mask(0, "first.weight"), torch.sigmoid(10 * e))
        method.model.train()
    assert_close(method.mask(0, "first.weight"), torch.sigmoid(10 * e))


@pytest.mark.parametrize(
    ("loader", "by_batches", "by_inputs"),
    [
        (task_data(0, n=10, batch=4), [0, 0.5, 1], [0, 4 / 12, 8 / 12]),  # a list does not say how many inputs it has
        (Counted(task_data(0, n=10, batch=4)), [0, 0.5, 1], [0, 0.4, 0.8]),
        (DataLoader(TensorDataset(*task_data(0, n=10, batch=10)[0]), batch_size=4), [0, 0.5, 1], [0, 0.4, 0.8]),
        (task_data(0, n=4, batch=4), [1], [0]),
    ],
    ids=["list", "counted", "DataLoader", "one batch"],
)
def test_how_far_an_epoch_has_come(loader, by_batches, by_inputs):
    for annealing, expected in (("batches", by_batches), ("inputs", by_inputs)):
        method = HAT(mlp(norm=False), heads=["head"], smax=10.0, annealing=annealing)
        method.begin_task(0)
        method.model.train()
        for _ in range(2):
            found = [method._s(0) for _ in method.watch(loader)]
            assert found == pytest.approx([0.1 + 9.9 * position for position in expected])
        method.detach()
    assert HAT.preset("official") == {"annealing": "inputs"}
    assert HAT.preset("paper") == {}


def harden(method, of=3):
    """The masks of the current task are exactly 0 or 1: a unit that all tasks share, and one of three others."""
    task = len(method.tasks) - 1
    for e in method.embeddings[-1].values():
        number = torch.arange(len(e))
        e.data = torch.where((number == 0) | (number % of == task), 6.0, -6.0).to(e.dtype)


class Norms(nn.Module):
    """A norm that keeps units apart, and two that mix them, after layers with biases."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Conv2d(2, 6, 3, padding=1)
        self.batch = nn.BatchNorm2d(6)
        self.b = nn.Conv2d(6, 4, 3, groups=2)
        self.group = nn.GroupNorm(2, 4)
        self.c = nn.Linear(16, 8)
        self.layer = nn.LayerNorm(8)
        self.d = nn.Linear(8, 6)
        self.head = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.sigmoid(self.batch(self.a(x)))
        x = self.group(F.elu(self.b(x))).relu()
        x = self.layer(self.c(x.view(x.size(0), -1)))
        return self.head(torch.tanh(self.d(x)))


NETWORKS = {"stack": (Stack, (2, 4, 4)), "norms": (Norms, (2, 4, 4)), "residual": (Residual, (2, 3, 3))}
OPTIMIZERS = {
    "sgd": lambda p: optim.SGD(p, lr=0.1),
    "momentum": lambda p: optim.SGD(p, lr=0.1, momentum=0.9),
    "decay": lambda p: optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.1),
    "adam": lambda p: optim.Adam(p, lr=0.01),
    "adamw": lambda p: optim.AdamW(p, lr=0.01, weight_decay=0.3),
}


@pytest.mark.parametrize("kind", slow_but(OPTIMIZERS, "momentum"))
@pytest.mark.parametrize("network", NETWORKS)
def test_with_hard_masks_old_outputs_stay_to_the_bit_whatever_trains(network, kind):
    build, shape = NETWORKS[network]
    torch.manual_seed(0)
    model = build().double()
    norm = "per-task" if network == "norms" and kind != "sgd" else "freeze"
    method = HAT(model, heads=["head"] if hasattr(model, "head") else [], norm=norm)
    optimizer = OPTIMIZERS[kind](model.parameters())
    method.guard(optimizer)
    X = torch.randn(7, *shape, generator=seeded(3), dtype=torch.float64)
    told, moved = {}, {}
    for task in range(3):
        before = {name: value.detach().clone() for name, value in model.named_parameters()}
        method.begin_task(task)
        train(method, pictures(task, shape), optimizer, epochs=4)
        harden(method)
        moved = {name: (value - before[name]).abs() for name, value in model.named_parameters()}
        if task:
            for name, weight in method.weights.items():
                held = weight.projection.kept == 0
                moves = weight.matrices(moved[name]) > 0
                assert held.any()
                assert not (moves & held).any()
            assert torch.equal(moved["a.bias"] == 0, method.A["a.weight"] == 1) or network == "norms" or kind != "adam"
        method.end_task()
        for earlier, expected in told.items():
            assert torch.equal(outputs(method, earlier, X), expected)
        told[task] = outputs(method, task, X)
    assert moved["a.weight"].max() > 1e-4
    assert not torch.allclose(told[0], told[2])


@pytest.mark.parametrize("backbone", slow_but([AlexNet, LeNet, ReducedResNet18], LeNet))
def test_our_networks_keep_old_outputs(backbone):
    """AlexNet has dropout, LeNet one LocalResponseNorm for two groups of units, ResNet sums."""
    torch.manual_seed(0)
    body = backbone()
    model = MultiHead(body, body.features, 3)
    method = HAT(model)
    optimizer = optim.SGD(model.parameters(), lr=0.05)
    method.guard(optimizer)
    X = torch.randn(2, 3, 32, 32, generator=seeded(1))
    batches = [(torch.randn(4, 3, 32, 32, generator=seeded(2)), torch.tensor([0, 1, 2, 0]))]
    method.begin_task(0)
    harden(method)
    method.end_task()
    before, told = body.conv1.weight.detach().clone(), outputs(method, 0, X)
    method.begin_task(1)
    train(method, batches * 2, optimizer, epochs=1)
    method.end_task()
    assert (body.conv1.weight - before).abs().max() > 1e-5
    assert torch.equal(outputs(method, 0, X), told)
    for task in range(2):
        assert_close(method.export(task).eval()(X), outputs(method, task, X))


def test_norms_left_free_are_held_as_their_units():
    method = HAT(Norms().double(), heads=["head"], norm="free")
    optimizer = optim.Adam(method.model.parameters(), lr=0.05)
    method.guard(optimizer)
    method.begin_task(0)
    harden(method)
    method.end_task()
    used = method.A["a.weight"] == 1
    before = method.model.batch.weight.detach().clone()
    method.begin_task(1)
    train(method, pictures(1, (2, 4, 4)), optimizer)
    moved = (method.model.batch.weight - before).abs() > 0
    assert torch.equal(moved, ~used)
    assert method.layers["batch.weight"].note == "free: held as its units are"


def test_one_mask_for_a_residual_sum():
    method = HAT(Residual())
    assert method.channels.units == {"a.weight": 4, "b.weight": 3}
    method.begin_task(0)
    assert {group: len(e) for group, e in method.embeddings[0].items()} == {"a.weight": 4, "b.weight": 3}


def test_the_penalty_by_hand_and_none_when_all_units_are_used():
    method = HAT(mlp(norm=False), heads=["head"], c=2.0, smax=3.0)
    assert method.penalty() is None
    method.begin_task(0)
    masks = [torch.sigmoid(3 * e).tolist() for e in method.embeddings[0].values()]
    assert float(method.penalty().detach()) == pytest.approx(2 * sum(map(sum, masks)) / 22)
    method.end_task()
    assert method.penalty() is None
    method.begin_task(1)
    new = [torch.sigmoid(3 * e).tolist() for e in method.embeddings[1].values()]
    used = sum(a * (1 - A) for of, past in zip(new, masks, strict=True) for a, A in zip(of, past, strict=True))
    assert float(method.penalty().detach()) == pytest.approx(2 * used / sum(1 - A for past in masks for A in past))
    full = HAT(mlp(norm=False), heads=["head"])
    full.begin_task(0)
    harden(full, of=1)
    full.end_task()
    full.begin_task(1)
    assert full.penalty() is None


def test_the_compensation_undoes_the_annealing():
    """∂σ(s e)/∂e, compensated, is s_max times what it would be at s = 1."""
    method = HAT(mlp(norm=False), heads=["head"], smax=20.0)
    method.begin_task(0)
    method.model.train()
    e = torch.tensor([-0.6, -0.3, 0.0, 0.01, 0.7], dtype=torch.float64, requires_grad=True)
    for i, _ in enumerate(method.watch([0] * 4)):
        s = 1 / 20 + (20 - 1 / 20) * i / 3
        (at_s,) = torch.autograd.grad(torch.sigmoid(s * e).sum(), e)
        (at_1,) = torch.autograd.grad(torch.sigmoid(e).sum(), e)
        assert_close(at_s * method._compensation(e.detach()), 20 * at_1)
    bound = method._compensation(torch.tensor([6.0], dtype=torch.float64))
    assert float(bound) == pytest.approx((math.cosh(50) + 1) / (math.cosh(6) + 1))


def test_embeddings_are_cut_after_the_step():
    method = HAT(mlp(norm=False), heads=["head"], c=100.0)
    optimizer = optim.SGD(method.model.parameters(), lr=1.0)
    method.guard(optimizer)
    method.begin_task(0)
    train(method, task_data(0, n=16), optimizer, epochs=1)
    e = torch.cat([e.detach() for e in method.parameters()])
    assert float(e.abs().max()) == 6.0
    assert (e == -6).sum() > len(e) / 2


def test_gradients_are_clipped_after_the_compensation():
    method = HAT(mlp(norm=False), heads=["head"], clip=1e-3)
    optimizer = optim.SGD(method.model.parameters(), lr=1.0)
    method.guard(optimizer)
    method.begin_task(0)
    before = [p.detach().clone() for p in (*method.model.parameters(), *method.parameters())]
    train(method, task_data(0, n=8), optimizer, epochs=1)
    after = [*method.model.parameters(), *method.parameters()]
    norm = sum(float((a - b).detach().square().sum()) for a, b in zip(after, before, strict=True)) ** 0.5
    assert norm == pytest.approx(1e-3, rel=1e-4)


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


def test_a_mask_scales_the_columns_of_the_units_that_are_read():
    method = HAT(Stack().double(), heads=["head"], smax=2.0)
    method.begin_task(0)
    change, units = method.effective["c.weight"], method.channels.reads["c.weight"]
    W = torch.randn(1, 5, 24, dtype=torch.float64)
    a = method.mask(0, units.group)
    assert_close(change.weight(W), W * a.repeat_interleave(24 // len(a)))
    assert not change.on_inputs
    assert method.effective["a.weight"].weight(W) is W


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


class Endless(IterableDataset):
    def __iter__(self):
        return itertools.repeat(torch.zeros(8))


def test_what_it_needs_from_the_training_loop():
    model = mlp(norm=False)
    method = HAT(model, heads=["head"])
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    method.guard(optimizer)
    method.begin_task(0)
    with pytest.raises(RuntimeError, match=r"write `for batch in method.watch\(loader\):`"):
        optimizer.step()
    with pytest.raises(TypeError, match="generator does not say how many batches it has"):
        method.watch(batch for batch in task_data(0))
    with pytest.raises(TypeError, match="DataLoader does not say how many batches it has"):
        method.watch(DataLoader(Endless()))
    model.eval()
    for _ in method.watch([0]):
        with pytest.raises(RuntimeError, match=r"call model.train\(\)"):
            optimizer.step()


def test_two_optimizers_compensate_once():
    results = []
    for split in (False, True):
        model = mlp(norm=False)
        method = HAT(model, heads=["head"], smax=5.0)
        parameters = list(model.parameters())
        parts = [parameters[:2], parameters[2:]] if split else [parameters]
        optimizers = [optim.SGD(part, lr=0.05) for part in parts]
        for optimizer in optimizers:
            method.guard(optimizer)
        method.begin_task(0)
        model.train()
        for x, y in method.watch(task_data(0)):
            model.zero_grad()
            for e in method.parameters():
                e.grad = None
            F.cross_entropy(model(x), y).backward()
            for optimizer in optimizers:
                optimizer.step()
        results.append([p.detach().clone() for p in (*model.parameters(), *method.parameters())])
    for one, other in zip(*results, strict=True):
        assert_close(one, other, atol=1e-12, rtol=0)


@pytest.mark.parametrize("wrong", [{"smax": 0.5}, {"annealing": "slow"}, {"c": -1.0}, {"clip": 0.0}])
def test_settings_that_cannot_be(wrong):
    model = mlp()
    with pytest.raises(ValueError, match=f"{next(iter(wrong))} must be"):
        HAT(model, heads=["head"], **wrong)
    assert not any("forward" in vars(module) for module in model.modules())


def test_a_network_that_cannot_be_masked_is_given_back_clean():
    class Joined(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(4, 3), nn.Linear(6, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.b(torch.cat([self.a(x), self.a(-x)], 1))

    model = Joined()
    message = r"^hat masks units.* feeds 'b' \(Linear\) cannot be followed: cat in .*Use another method"
    with pytest.raises(UnknownUnits, match=message):
        HAT(model)
    assert not any("forward" in vars(m) or m._forward_hooks or m._forward_pre_hooks for m in model.modules())


def test_an_ordered_network_of_one_layer_has_nothing_to_mask():
    model = nn.Sequential(OrderedDict(only=nn.Linear(4, 3))).double()
    method = HAT(model)
    assert method.channels.units == {}
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    method.guard(optimizer)
    for task in range(2):
        before = model.only.weight.detach().clone()
        method.begin_task(task)
        train(method, task_data(task, d=4), optimizer)
        method.end_task()
        assert torch.equal(model.only.weight, before) == (task == 1)


@pytest.mark.parametrize("seen", [True, False])
def test_early_stopping_sees_the_penalty_if_it_is_to(seen):
    parts = [Tensors(*batch) for batch in task_data(0, n=24, batch=8, dtype=torch.float32)]
    torch.manual_seed(0)
    model = MultiHead(nn.Sequential(nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 6), nn.ReLU()), 6, CLASSES)
    method = HAT(model, c=2.0, penalty_in_validation=seen)
    found = []

    def watch(event):
        if event["event"] == "epoch":
            loss = trainer.evaluate(parts[1])[0]
            found.append((event["validation_loss"], loss, float(method.penalty().detach())))

    trainer = Trainer(method, Stream("s", [Task("t", CLASSES, *parts)]), Plan(epochs=2), observers=(watch,))
    trainer.run()
    assert len(found) == 2
    for validation, loss, penalty in found:
        assert penalty > 0.1
        assert validation == pytest.approx(loss + penalty if seen else loss)


@pytest.mark.slow
def test_it_keeps_every_promise():
    assert len(check_method(lambda model: HAT(model, norm="free", annealing="inputs"))) == len(CHECKS)

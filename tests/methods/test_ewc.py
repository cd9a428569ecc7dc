"""EWC: penalty and Fisher information against loops over inputs and numbers, in float64, and what the penalty does."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn, optim
from torch.testing import assert_close

from codecl import MultiHead, check_method
from codecl.methods.ewc import EWC, Quadratic
from codecl.training.check import CHECKS
from codecl.training.engine import Plan, Trainer
from codecl.training.stream import Stream, Task, Tensors
from tests.methods.cases import CLASSES, mlp, seeded, task_data
from tests.methods.ewc_reference import SHARED, fisher_by_hand, penalty_by_hand, train


@pytest.mark.parametrize("fisher", ["mean", "sum", "online"])
@settings(max_examples=3, deadline=None)
@given(seed=st.integers(0, 99), size=st.sampled_from([1, 3, 5]), n=st.integers(7, 12), strength=st.floats(0.1, 50.0))
def test_fisher_and_penalty_by_hand(fisher, seed, size, n, strength):
    """``n`` inputs in batches of 4 reach the method, and are measured in batches of ``size``."""
    model = mlp(seed)
    method = EWC(model, heads=["head"], fisher=fisher, fisher_batch=size, strength=strength, gamma=0.7)
    terms = []
    for task in range(3):
        batches = task_data(task + seed, n=n + (n % size == 1 and size > 1), batch=4)
        method.begin_task(task, batches)
        assert (method.penalty() is None) == (task == 0)
        train(method, batches)
        method.end_task(batches)
        new = fisher_by_hand(model, batches, size), {k: model.get_parameter(k).detach().clone() for k in SHARED}
        terms.append(new)
        if fisher == "mean":
            joined = [({k: sum(F_t[k] for F_t, _ in terms) / len(terms) for k in SHARED}, new[1])]
        elif fisher == "online":
            powers = [0.7 ** (task - t) for t in range(task + 1)]
            mixed = {k: sum(p * F_t[k] for p, (F_t, _) in zip(powers, terms, strict=True)) for k in SHARED}
            joined = [(mixed, new[1])]
        else:
            joined = terms
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.1 * torch.randn(parameter.shape, generator=seeded(task), dtype=torch.float64))
        assert float(method.penalty().detach()) == pytest.approx(penalty_by_hand(model, joined, strength), rel=1e-9)
        gradients = torch.autograd.grad(method.penalty(), [model.get_parameter(name) for name in SHARED])
        for name, gradient in zip(SHARED, gradients, strict=True):
            expected = sum(strength * F_t[name] * (model.get_parameter(name) - anchor[name]) for F_t, anchor in joined)
            assert_close(gradient, expected.detach(), atol=1e-12, rtol=1e-9)


def test_the_step_takes_the_gradient_of_loss_and_penalty():
    model = mlp()
    method = EWC(model, heads=["head"], strength=30.0, clip=None)
    batches = task_data(0)
    method.begin_task(0, batches)
    train(method, batches)
    method.end_task(batches)
    method.begin_task(1)
    train(method, task_data(1), epochs=1)
    (x, y), before = task_data(1)[0], {n: p.detach().clone() for n, p in model.named_parameters()}
    model.zero_grad()
    loss = F.cross_entropy(model(x), y) + method.penalty()
    expected = dict(zip(before, torch.autograd.grad(loss, list(model.parameters())), strict=True))
    assert train(method, [(x, y)], epochs=1, lr=0.1) == pytest.approx([float(loss.detach())])
    for name, gradient in expected.items():
        assert_close(model.get_parameter(name).detach(), before[name] - 0.1 * gradient, atol=1e-12, rtol=0)
    assert method.penalty() > 0


def test_clipping_begins_with_the_penalty():
    model, batch = mlp(), task_data(0)[:1]
    method = EWC(model, heads=["head"], clip=1e-3)
    for task in range(2):
        before = [p.detach().clone() for p in model.parameters()]
        method.begin_task(task)
        train(method, batch, epochs=1, lr=1.0)
        norm = (
            sum(float((p - b).detach().square().sum()) for p, b in zip(model.parameters(), before, strict=True)) ** 0.5
        )
        assert (norm == pytest.approx(1e-3, rel=1e-2)) == (task == 1)
        method.end_task(batch)


def test_heads_and_what_is_skipped_are_not_held():
    method = EWC(mlp(), heads=["head"], skip=["norm"])
    assert list(method.shared) == [name for name in SHARED if not name.startswith("norm")]
    torch.manual_seed(0)
    several = EWC(MultiHead(nn.Linear(8, 4), 4, CLASSES))
    assert list(several.shared) == ["backbone.weight", "backbone.bias"]
    frozen = mlp()
    frozen.first.requires_grad_(False)
    assert list(EWC(frozen, heads=["head"]).shared) == SHARED[2:]


def test_the_penalty_pulls_back_what_mattered():
    model = mlp()
    method = EWC(model, heads=["head"], strength=1e6, fisher_batch=1, clip=None)
    batches = task_data(0)
    method.begin_task(0)
    train(method, batches, epochs=20)
    method.end_task(batches)
    F_of, before = method.memory["first.weight"].F, model.first.weight.detach().clone()
    with torch.no_grad():
        model.first.weight += 0.01
    optimizer = optim.Adam(model.parameters(), lr=2e-4)
    method.guard(optimizer)
    method.begin_task(1)
    for _ in range(150):
        optimizer.zero_grad()
        optimizer.step()
    assert (model.first.weight - before).abs()[F_of > F_of.median()].max() < 1e-3


@pytest.mark.parametrize("seen", [True, False])
def test_early_stopping_sees_the_penalty_if_it_is_to(seen):
    parts = [[Tensors(*batch) for batch in task_data(task, n=24, batch=8, dtype=torch.float32)] for task in range(2)]
    torch.manual_seed(0)
    model = MultiHead(nn.Sequential(nn.Linear(8, 6), nn.ReLU()), 6, CLASSES)
    method = EWC(model, strength=300.0, penalty_in_validation=seen)
    found = []

    def watch(event):
        if event["event"] == "epoch" and event["task"] == 1:
            penalty = float(method.penalty().detach())
            found.append((event["validation_loss"], trainer.evaluate(parts[1][1])[0], penalty))

    stream = Stream("s", [Task("t", CLASSES, *of) for of in parts])
    trainer = Trainer(method, stream, Plan(epochs=2, lr=0.3), observers=(watch,))
    trainer.run()
    assert len(found) == 2
    for validation, loss, penalty in found:
        assert penalty > 1e-4
        assert validation == pytest.approx(loss + penalty if seen else loss)


def test_the_sum_of_two_quadratics_is_one_where_nothing_holds_too():
    one = Quadratic(torch.tensor([1.0, 0.0, 0.0]), torch.tensor([1.0, 2.0, 3.0]))
    two = Quadratic(torch.tensor([3.0, 2.0, 0.0]), torch.tensor([5.0, 6.0, 7.0]), rest=2.0)
    both, x = one + two, torch.tensor([0.5, -1.0, 9.0])
    assert both.anchor.tolist() == [4.0, 6.0, 7.0]
    assert float(both(x)) == pytest.approx(float(one(x) + two(x)))


@pytest.mark.parametrize(
    "wrong",
    [
        {"strength": -1.0},
        {"fisher": "median"},
        {"gamma": 1.5},
        {"samples": 0},
        {"fisher_batch": 0},
        {"fisher_mode": "test"},
        {"clip": 0.0},
    ],
)
def test_settings_that_cannot_be(wrong):
    with pytest.raises(ValueError, match=f"{next(iter(wrong))} must be"):
        EWC(mlp(), heads=["head"], **wrong)


def test_the_published_reading():
    assert EWC.preset("official") == {"fisher_mode": "train"}
    assert EWC.preset("paper") == {}


@pytest.mark.slow
def test_it_keeps_every_promise():
    assert len(check_method(lambda model: EWC(model, fisher="sum", fisher_mode="train", samples=8))) == len(CHECKS)

"""HAT against the formulas written out: masks and how they harden, the penalty, and how embeddings learn."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn, optim
from torch.testing import assert_close
from torch.utils.data import DataLoader, TensorDataset

from codecl.methods.hat import HAT
from tests.methods.cases import mlp, task_data
from tests.methods.hat_cases import harden, outputs, pictures, train
from tests.methods.hat_reference import RESIDUAL, STACK, Reference, Residual, Stack, residual, stack


class Counted(list):
    """Batches, and how many inputs there are, as the loader of a trainer says."""

    @property
    def inputs(self):
        return sum(len(x) for x, _ in self)


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


def test_a_mask_scales_the_columns_of_the_units_that_are_read():
    method = HAT(Stack().double(), heads=["head"], smax=2.0)
    method.begin_task(0)
    change, units = method.effective["c.weight"], method.channels.reads["c.weight"]
    W = torch.randn(1, 5, 24, dtype=torch.float64)
    a = method.mask(0, units.group)
    assert_close(change.weight(W), W * a.repeat_interleave(24 // len(a)))
    assert not change.on_inputs
    assert method.effective["a.weight"].weight(W) is W

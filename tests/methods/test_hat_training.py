"""What HAT meets in a training loop, and what is refused."""

import itertools
from collections import OrderedDict

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn, optim
from torch.testing import assert_close
from torch.utils.data import DataLoader, IterableDataset

from codecl import MultiHead, check_method
from codecl.attach.units.follow import UnknownUnits
from codecl.methods.hat import HAT
from codecl.training.check import CHECKS
from codecl.training.engine import Plan, Trainer
from codecl.training.stream import Stream, Task, Tensors
from tests.methods.cases import CLASSES, mlp, task_data
from tests.methods.hat_cases import train


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

"""How EWC measures Fisher information: without a trace, a batch or two at a time, from as many inputs as asked."""

import random
import weakref

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.testing import assert_close

from codecl.methods.ewc import EWC
from tests.methods.cases import CLASSES, mlp, task_data


class Noisy(nn.Module):
    """Dropout, and a norm with running statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.norm, self.drop, self.b = (
            nn.Linear(8, 6),
            nn.BatchNorm1d(6),
            nn.Dropout(0.5),
            nn.Linear(6, CLASSES),
        )

    def forward(self, x):
        return self.b(self.drop(self.norm(self.a(x)).relu()))


@pytest.mark.parametrize("mode", ["eval", "train"])
def test_measuring_leaves_no_trace_and_is_the_same_again(mode):
    torch.manual_seed(0)
    model = Noisy().double()
    model.drop.eval()
    flags = [module.training for module in model.modules()]
    measured = []
    for seed in (0, 0, 1):
        method = EWC(model, fisher_mode=mode, fisher_batch=4, seed=seed)
        method.begin_task(0)
        kept, states = {k: v.clone() for k, v in model.state_dict().items()}, (torch.get_rng_state(), random.getstate())
        method.end_task(task_data(0, n=10))
        assert all(torch.equal(value, kept[name]) for name, value in model.state_dict().items())
        assert torch.equal(torch.get_rng_state(), states[0])
        assert random.getstate() == states[1]
        assert [module.training for module in model.modules()] == flags
        assert all(parameter.grad is None for parameter in model.parameters())
        measured.append(method.memory["a.weight"].F)
        method.detach()
    assert torch.equal(measured[0], measured[1])
    assert torch.equal(measured[0], measured[2]) == (mode == "eval")
    model.train(mode == "train")
    model.drop.p = 0.0
    method = EWC(model, fisher_mode=mode, fisher_batch=50)
    method.begin_task(0)
    x, y = task_data(0, n=10, batch=10)[0]
    gradient = torch.autograd.grad(F.cross_entropy(model(x), y), model.a.weight)[0]
    method.end_task([(x, y)])
    assert_close(method.memory["a.weight"].F, gradient**2)


def test_no_more_than_a_batch_or_two_is_held_at_a_time():
    alive = weakref.WeakSet()
    most = []

    def loader():
        for x, y in task_data(0, n=80, batch=4):
            x = x.clone()
            alive.add(x)
            most.append(len(alive))
            yield x, y

    method = EWC(mlp(), heads=["head"], fisher_batch=8)
    method.begin_task(0)
    method.end_task(loader())
    assert len(most) == 20
    assert max(most) <= 4


def test_fewer_samples_are_the_first_batches():
    found = []
    for samples, batches in ((9, task_data(0, n=40)), (None, task_data(0, n=40)[:2])):
        method = EWC(mlp(), heads=["head"], samples=samples)
        method.begin_task(0)
        method.end_task(batches)
        found.append(method.memory)
    for name, one in found[0].items():
        assert torch.equal(one.F, found[1][name].F)


class Text(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.out = nn.Embedding(9, 4), nn.Linear(4, 3)

    def forward(self, tokens):
        return self.out(self.words(tokens).mean(1))


def test_texts_padded_batch_by_batch():
    torch.manual_seed(0)
    model = Text().double()
    batches = [(torch.randint(0, 9, (n, length)), torch.randint(0, 3, (n,))) for n, length in ((3, 5), (4, 7), (2, 7))]
    method = EWC(model, fisher_batch=1)
    method.begin_task(0)
    method.end_task(batches)
    fisher = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
    for tokens, labels in batches:
        for one, label in zip(tokens, labels, strict=True):
            model.zero_grad()
            F.cross_entropy(model(one[None]), label[None]).backward()
            for name, p in model.named_parameters():
                fisher[name] += p.grad**2 / 9
    for name, value in fisher.items():
        assert_close(method.memory[name].F, value)

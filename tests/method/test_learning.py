"""The hooks within a step: what they see, what they change, and what they leave alone."""

import random

import pytest
import torch
from torch import nn
from torch.testing import assert_close
from torch.utils.data import DataLoader, IterableDataset

from codecl import GPM, Method


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(2, 4, 2, groups=2, dilation=2, bias=False)
        self.norm = nn.BatchNorm2d(4)
        self.drop = nn.Dropout(0.5)
        self.head = nn.Linear(16, 3)

    def forward(self, x):
        return self.head(self.drop(self.norm(self.conv(x)).relu().flatten(1)))


def batch(seed, n=8):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(n, 2, 4, 4, dtype=torch.float64, generator=generator), torch.arange(n) % 3


def model():
    torch.manual_seed(0)
    return Model().double()


def backward(network, x, y):
    nn.functional.cross_entropy(network(x), y).backward()


class Anchored(Method):
    """A penalty on the distance from the start, by hand: gradient p − p₀."""

    def __init__(self, network, **common):
        super().__init__(network, **common)
        self.start = {p: p.detach().clone() for p in network.parameters()}

    def penalty(self):
        return sum(((p - start) ** 2).sum() / 2 for p, start in self.start.items())


@pytest.mark.parametrize("with_closure", [True, False])
def test_the_gradient_of_a_penalty_is_added_before_the_step(with_closure):
    network = model().eval()
    method = Anchored(network, heads=["head"])
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    method.guard(optimizer)
    method.begin_task(0)
    with torch.no_grad():
        for p in network.parameters():
            p.add_(1.0)
    x, y = batch(0)
    before = {name: p.detach().clone() for name, p in network.named_parameters()}
    loss = nn.functional.cross_entropy(network(x), y)
    expected = torch.autograd.grad(loss, list(network.parameters()))

    def closure():
        optimizer.zero_grad()
        value = nn.functional.cross_entropy(network(x), y)
        value.backward()
        return value

    if with_closure:
        returned = optimizer.step(closure)
        assert_close(returned, loss.detach() + sum(p.numel() for p in network.parameters()) / 2)
    else:
        closure()
        optimizer.step()
    for (name, p), g in zip(network.named_parameters(), expected, strict=True):
        assert_close(p.detach(), before[name] - 0.1 * (g + 1.0), msg=name)


def test_with_two_optimizers_a_penalty_counts_once_for_each_parameter():
    network = model().eval()
    method = Anchored(network, heads=["head"])
    optimizers = [torch.optim.SGD(part.parameters(), lr=0.5) for part in (network.conv, network.head)]
    for optimizer in optimizers:
        method.guard(optimizer)
    method.begin_task(0)
    with torch.no_grad():
        for p in network.parameters():
            p.add_(1.0)
    before = [p.detach().clone() for p in (network.conv.weight, network.head.weight)]
    for optimizer in optimizers:
        optimizer.step()
    for p, value in zip((network.conv.weight, network.head.weight), before, strict=True):
        assert_close(p.detach(), value - 0.5)


class Twice(Method):
    name = "twice"

    def learn(self, closure, parameters):
        closure()
        return closure()


def test_a_method_that_needs_the_loss_twice_asks_for_a_closure():
    network = model()
    method = Twice(network, heads=["head"])
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    method.guard(optimizer)
    method.begin_task(0)
    backward(network, *batch(0))
    with pytest.raises(RuntimeError, match=r"twice computes the loss more than once.*optimizer\.step\(closure\)"):
        optimizer.step()
    calls = []
    optimizer.step(lambda: calls.append(1))
    assert len(calls) == 2


class Watcher(Method):
    def __init__(self, network, **common):
        super().__init__(network, **common)
        self.seen, self.ended = [], []

    def after_step(self):
        self.seen.append((self.batch, self.progress))

    def end_epoch(self):
        self.ended.append(self.batch)


def test_watched_batches_are_seen_where_they_are_learned_from():
    network = model()
    method = Watcher(network, heads=["head"])
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    method.guard(optimizer)
    method.begin_task(0)
    loader = [batch(seed) for seed in range(4)]
    for x, y in method.watch(loader, epoch=1, epochs=2):
        backward(network, x, y)
        optimizer.step()
    assert [seen is given for (seen, _), given in zip(method.seen, loader, strict=True)] == [True] * 4
    assert [progress for _, progress in method.seen] == [0.5, 0.625, 0.75, 0.875]
    assert len(method.ended) == 1
    assert method.ended[0] is loader[-1]
    with pytest.raises(RuntimeError, match=r"for batch in method\.watch\(loader\)"):
        _ = method.batch


class Streamed(IterableDataset):
    def __iter__(self):
        return iter([batch(0)[0][0], batch(1)[0][0]])


def test_batches_may_come_from_a_loader_that_does_not_know_how_many_there_are():
    method = Watcher(model())
    seen = list(method.watch(DataLoader(Streamed())))
    assert [float(x.sum()) for x in seen] == [float(batch(i)[0][0].sum()) for i in (0, 1)]
    assert method.progress == 0.0


def test_a_closure_may_return_a_number():
    network = model()
    method = Anchored(network)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    method.guard(optimizer)
    with torch.no_grad():
        network.head.bias += 1.0  # away from the start: 3 · 1/2 for the penalty

    def closure():
        optimizer.zero_grad()
        backward(network, *batch(0))
        return 2.0

    penalty = float(method.penalty().detach())
    assert penalty > 0
    assert float(optimizer.step(closure)) == pytest.approx(2.0 + penalty)


def test_an_epoch_that_is_broken_off_does_not_end():
    method = Watcher(model(), heads=["head"])
    for _ in method.watch([batch(0), batch(1)]):
        break
    assert method.ended == []


def test_gradients_are_those_of_the_bare_network_and_leave_no_trace():
    """In evaluation mode, over all batches by their sizes, not projected though the weight is."""
    network = model()
    method = GPM(network, heads=["head"], threshold=0.9)
    method.begin_task(0, [batch(0)])
    method.end_task([batch(0)])
    method.begin_task(1, [batch(1)])
    network.train()
    network.drop.eval()
    flags = [module.training for module in network.modules()]
    state = torch.get_rng_state(), random.getstate()
    statistics = network.norm.running_mean.clone()
    found = method.gradients([batch(1, n=8), batch(2, n=4)])["conv.weight"]
    assert torch.equal(state[0], torch.get_rng_state())
    assert state[1] == random.getstate()
    assert [module.training for module in network.modules()] == flags
    assert torch.equal(statistics, network.norm.running_mean)
    assert all(p.grad is None for p in network.parameters())

    plain = method.export(1).eval()
    (x1, y1), (x2, y2) = batch(1, n=8), batch(2, n=4)
    losses = [nn.functional.cross_entropy(plain(x), y, reduction="sum") for x, y in ((x1, y1), (x2, y2))]
    (expected,) = torch.autograd.grad(sum(losses) / 12, plain.conv.weight)
    assert_close(found, expected.reshape(2, 2, 4))
    projected = method.weights["conv.weight"].project(expected)
    assert not torch.allclose(projected, expected)


def test_a_loss_that_cannot_be_guessed_is_asked_for():
    method = Method(model(), heads=["head"])
    with pytest.raises(TypeError, match="Pass loss="):
        method.objective(batch(0)[0])
    squares = Method(nn.Linear(3, 2), loss=lambda output, given: (output - given[1]).square().mean())
    x, y = torch.ones(4, 3), torch.zeros(4, 2)
    assert_close(squares.objective((x, y)), squares.model(x).square().mean())

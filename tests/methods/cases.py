"""Small networks, tasks and training loops that the tests of the methods share."""

from collections import OrderedDict

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from codecl import CodeCL

CLASSES = 3
FIRST, SECOND = "first.weight", "second.weight"
"""The protected weights of ``mlp()``."""
Batches = list[tuple[Tensor, Tensor]]


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def mlp(seed: int = 0, dtype: torch.dtype = torch.float64, norm: bool = True) -> nn.Sequential:
    """Two protected layers, 8 → 16 → 6, with biases and a norm between them, and a head named ``head``."""
    torch.manual_seed(seed)
    layers = [("first", nn.Linear(8, 16)), ("norm", nn.LayerNorm(16) if norm else nn.Identity()), ("tanh", nn.Tanh())]
    layers += [("second", nn.Linear(16, 6)), ("relu", nn.ReLU()), ("head", nn.Linear(6, CLASSES))]
    return nn.Sequential(OrderedDict(layers)).to(dtype)


def task_data(task: int, n: int = 16, d: int = 8, batch: int = 8, dtype: torch.dtype = torch.float64) -> Batches:
    """``n`` inputs and their classes, in batches."""
    generator = seeded(100 + task)
    X = torch.randn(n, d, generator=generator, dtype=torch.float64).to(dtype)
    y = torch.randint(0, CLASSES, (n,), generator=generator)
    return list(zip(X.split(batch), y.split(batch), strict=True))


def inputs(batches: Batches) -> Tensor:
    return torch.cat([x for x, _ in batches])


def loss_on(model: nn.Module, batches: Batches) -> float:
    with torch.no_grad():
        return float(sum(cross_entropy(model(x), y) for x, y in batches) / len(batches))


def train(model: nn.Module, batches: Batches, optimizer: torch.optim.Optimizer, epochs: int = 10) -> None:
    for _ in range(epochs):
        for x, y in batches:
            optimizer.zero_grad()
            cross_entropy(model(x), y).backward()
            optimizer.step()


def learn(method: CodeCL, tasks: list[Batches], epochs: int = 5, lr: float = 0.1) -> torch.optim.Optimizer:
    """All ``tasks`` in a row, numbered on from those known, by plain SGD."""
    optimizer = torch.optim.SGD(method.model.parameters(), lr=lr)
    method.guard(optimizer)
    for batches in tasks:
        method.begin_task(len(method.tasks), batches)
        train(method.model, batches, optimizer, epochs)
        method.end_task(batches)
    return optimizer


def outputs_of(method: CodeCL, task: int | str, X: Tensor) -> Tensor:
    with method.task(task), torch.no_grad():
        return method.model(X)


def drift(now: Tensor, before: Tensor) -> float:
    """The largest change, relative to the size of what was there before."""
    return float((now - before).abs().max() / before.abs().max())


def assert_same(a, b, path="state"):
    """Nested containers with the same tensors, bit by bit."""
    assert type(a) is type(b), path
    if isinstance(a, torch.Tensor):
        assert a.dtype == b.dtype, path
        assert torch.equal(a, b), path
    elif isinstance(a, dict):
        assert a.keys() == b.keys(), path
        for key in a:
            assert_same(a[key], b[key], f"{path}.{key}")
    elif isinstance(a, (list, tuple)):
        assert len(a) == len(b), path
        for i, (x, y) in enumerate(zip(a, b, strict=True)):
            assert_same(x, y, f"{path}.{i}")
    else:
        assert a == b, path

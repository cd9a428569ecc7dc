"""What the checks share: a small network, a small stream, a store that interrupts, and comparisons."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from codecl.methods import Method
from codecl.networks import MultiHead
from codecl.randomness import seeded
from codecl.training.engine import Trainer
from codecl.training.plan import Plan
from codecl.training.progress import Observer
from codecl.training.stream import Stream, Task, Tensors

Make = Callable[[nn.Module], Method]
PLAN = Plan(epochs=3, batch_size=16, lr=0.05, patience=5, evaluation_batch=24)


class Network(nn.Module):
    """Small, and with something of everything: a grouped convolution, norms with and without statistics, biases."""

    features = 12

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 4, 3, padding=1, groups=2)
        self.norm = nn.BatchNorm2d(4)
        self.hidden = nn.Linear(4 * 16, 16)
        self.batch_norm = nn.BatchNorm1d(16, track_running_stats=False)
        self.last = nn.Linear(16, self.features, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.conv(x)).relu().flatten(1)
        out: Tensor = self.last(self.batch_norm(self.hidden(x)).relu()).relu()
        return out


def network() -> MultiHead:
    """The network of the checks, always with the same initial weights."""
    with seeded(0, "check", "network"):
        return MultiHead(Network(), Network.features, 3)


def small_stream(tasks: int = 3) -> Stream:
    """Tasks of random images whose class is a linear function of them, another function for every task."""
    made = []
    for t in range(tasks):
        with seeded(t, "check"):
            teacher = torch.randn(32, 3)
            inputs = [torch.randn(count, 2, 4, 4) for count in (48, 12, 24)]
        made.append(Task(f"task {t}", 3, *(Tensors(x, (x.flatten(1) @ teacher).argmax(1)) for x in inputs)))
    return Stream("check", made)


def train(method: Method, tasks: int = 3, store: Any = None, *observers: Observer) -> Trainer:
    """Train a method on the small stream."""
    trainer = Trainer(method, small_stream(tasks), PLAN, store, observers)
    trainer.run()
    return trainer


def same_weights(ours: nn.Module, theirs: nn.Module, why: str) -> None:
    """Assert that two models have the same bits; ``why`` says what follows where they do not."""
    for name, value in theirs.state_dict().items():
        assert torch.equal(value, ours.state_dict()[name]), f"{why}: '{name}' differs"


class Stop(Exception):
    """A run that is interrupted."""


class Memory:
    """A store in memory, of what ``torch.save`` writes; it raises ``Stop`` after ``writes`` writes, if that is not 0.

    ``copies`` are what it was after each of them.
    """

    def __init__(self, writes: int = 0) -> None:
        self.writes, self.task, self.epoch = writes, b"", b""
        self.copies: list[Memory] = []

    def save_task(self, task: int, tree: Any) -> None:
        self.task, self.epoch = saved(tree), b""
        self._count()

    def save_epoch(self, task: int, epoch: int, tree: Any) -> None:
        self.epoch = saved(tree)
        self._count()

    def latest(self) -> Any:
        return (loaded(self.task), loaded(self.epoch) if self.epoch else None) if self.task else None

    def _count(self) -> None:
        self.writes -= 1
        self.copies = [*self.copies, copy.copy(self)]
        if self.writes == 0:
            raise Stop


def saved(tree: Any) -> bytes:
    """What ``torch.save`` writes."""
    torch.save(tree, buffer := io.BytesIO())
    return buffer.getvalue()


def loaded(data: bytes) -> Any:
    """The inverse of ``saved``, which runs no code."""
    return torch.load(io.BytesIO(data), weights_only=True)

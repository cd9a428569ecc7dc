"""HAT with every mask and every product written out: slow, and what the method is compared with.

A network is a function of its parameters and of the masks, which it multiplies units by right after they have been
activated and pooled, as the paper does. Which unit an entry of a weight writes and reads is told entry by entry.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import product

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass
class Wiring:
    """The units that one parameter belongs to: group and number of what an entry writes, and of what it reads."""

    writes: Callable[[tuple[int, ...]], tuple[str, int] | None]
    reads: Callable[[tuple[int, ...]], tuple[str, int] | None] | None = None
    """None for a bias."""


@dataclass
class Reference:
    forward: Callable[[dict[str, Tensor], dict[str, Tensor], Tensor], Tensor]
    parameters: dict[str, Tensor]
    wiring: dict[str, Wiring]
    smax: float
    c: float
    lr: float
    A: dict[str, Tensor] | None = None
    e: dict[str, Tensor] = field(default_factory=dict)
    factors: dict[str, Tensor] = field(default_factory=dict)
    """Of every gradient, entry by entry."""

    def begin(self, embeddings: dict[str, Tensor]) -> None:
        self.e = {group: value.clone() for group, value in embeddings.items()}

    def past(self, unit: tuple[str, int] | None) -> float:
        return 1.0 if unit is None else float(self.A[unit[0]][unit[1]])

    def kept(self, of: Wiring, index: tuple[int, ...]) -> float:
        """The factor of one entry's gradient."""
        post = self.past(of.writes(index))
        return 1 - (post if of.reads is None else min(post, self.past(of.reads(index))))

    def step(self, x: Tensor, y: Tensor, position: float) -> float:
        s = 1 / self.smax + (self.smax - 1 / self.smax) * position
        leaves = {name: value.clone().requires_grad_() for name, value in self.parameters.items()}
        e = {group: value.clone().requires_grad_() for group, value in self.e.items()}
        masks = {group: torch.sigmoid(s * value) for group, value in e.items()}
        used = room = torch.zeros((), dtype=torch.float64)
        for group, a in masks.items():
            for u in range(len(a)):
                free = 1 - (0.0 if self.A is None else float(self.A[group][u]))
                used, room = used + a[u] * free, room + free
        loss = F.cross_entropy(self.forward(leaves, masks, x), y) + self.c * used / room
        loss.backward()
        for name, leaf in leaves.items():
            self.parameters[name] = self.parameters[name] - self.lr * self.factors.get(name, 1.0) * leaf.grad
        for group, leaf in e.items():
            for u, value in enumerate(leaf.tolist()):
                bounded = min(max(s * value, -50.0), 50.0)
                factor = self.smax / s * (math.cosh(bounded) + 1) / (math.cosh(value) + 1)
                moved = value - self.lr * factor * float(leaf.grad[u])
                self.e[group][u] = min(max(moved, -6.0), 6.0)
        return float(loss.detach())

    def end(self) -> None:
        masks = {group: torch.sigmoid(self.smax * value) for group, value in self.e.items()}
        self.A = masks if self.A is None else {g: torch.maximum(self.A[g], a) for g, a in masks.items()}
        for name, of in self.wiring.items():
            self.factors[name] = torch.empty_like(self.parameters[name])
            for index in product(*map(range, self.parameters[name].shape)):
                self.factors[name][index] = self.kept(of, index)


class Stack(nn.Module):
    """Two convolutions, one of them grouped and dilated, and a Linear layer; 2×4×4 inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Conv2d(2, 4, 3, padding=1)
        self.b = nn.Conv2d(4, 6, 2, groups=2, dilation=2, padding=1)
        self.c = nn.Linear(24, 5)
        self.head = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(torch.relu(self.a(x)), 2)
        x = torch.tanh(self.b(x)).flatten(1)
        return self.head(F.relu(self.c(x)))


def stack(p: dict[str, Tensor], m: dict[str, Tensor], x: Tensor) -> Tensor:
    x = F.max_pool2d(torch.relu(F.conv2d(x, p["a.weight"], p["a.bias"], padding=1)), 2)
    x = x * m["a.weight"].reshape(1, 4, 1, 1)
    x = torch.tanh(F.conv2d(x, p["b.weight"], p["b.bias"], padding=1, dilation=2, groups=2))
    x = (x * m["b.weight"].reshape(1, 6, 1, 1)).flatten(1)
    x = torch.relu(x @ p["c.weight"].mT + p["c.bias"]) * m["c.weight"]
    return x @ p["head.weight"].mT + p["head.bias"]


STACK = {
    "a.weight": Wiring(lambda i: ("a.weight", i[0]), lambda i: None),
    "a.bias": Wiring(lambda i: ("a.weight", i[0])),
    "b.weight": Wiring(lambda i: ("b.weight", i[0]), lambda i: ("a.weight", i[1] + 2 * (i[0] // 3))),
    "b.bias": Wiring(lambda i: ("b.weight", i[0])),
    "c.weight": Wiring(lambda i: ("c.weight", i[0]), lambda i: ("b.weight", i[1] // 4)),
    "c.bias": Wiring(lambda i: ("c.weight", i[0])),
}


class Residual(nn.Module):
    """A block whose output shares the mask of its input, then an average over the picture; 2×3×3 inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Conv2d(2, 4, 3, padding=1)
        self.b = nn.Conv2d(4, 3, 1)
        self.c = nn.Conv2d(3, 4, 3, padding=1, bias=False)
        self.d = nn.Linear(4, 3)  # shared by all tasks: its outputs have no mask

    def forward(self, x: Tensor) -> Tensor:
        x = self.a(x).relu()
        x = x + self.c(nn.functional.silu(self.b(x)))
        return self.d(x.mean((2, 3)))


def residual(p: dict[str, Tensor], m: dict[str, Tensor], x: Tensor) -> Tensor:
    x = torch.relu(F.conv2d(x, p["a.weight"], p["a.bias"], padding=1))
    shared = m["a.weight"].reshape(1, 4, 1, 1)
    y = F.silu(F.conv2d(x * shared, p["b.weight"], p["b.bias"])) * m["b.weight"].reshape(1, 3, 1, 1)
    x = (x + F.conv2d(y, p["c.weight"], padding=1)) * shared
    return x.mean((2, 3)) @ p["d.weight"].mT + p["d.bias"]


RESIDUAL = {
    "a.weight": Wiring(lambda i: ("a.weight", i[0]), lambda i: None),
    "a.bias": Wiring(lambda i: ("a.weight", i[0])),
    "b.weight": Wiring(lambda i: ("b.weight", i[0]), lambda i: ("a.weight", i[1])),
    "b.bias": Wiring(lambda i: ("b.weight", i[0])),
    "c.weight": Wiring(lambda i: ("a.weight", i[0]), lambda i: ("b.weight", i[1])),
    "d.weight": Wiring(lambda i: None, lambda i: ("a.weight", i[1])),
    "d.bias": Wiring(lambda i: None),
}

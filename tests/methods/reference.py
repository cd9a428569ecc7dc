"""Algorithm 1 on dense float64 matrices, line by line: slow, and what CodeCL is compared with.

A network is a list of layers ``rows(x) Wᵀ + b`` with an activation each, and one head. The gradient of the loss by
the *effective* weights is taken by autograd; everything after it (the chain rule to ``W`` and ``M``, the projection,
the step) is written out.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.algebra import dense
from tests.methods.cases import Batches


@dataclass
class Layer:
    """One matrix, where its rows come from, and what becomes of the products."""

    name: str
    W: Tensor
    b: Tensor
    rows: Callable[[Tensor], Tensor]
    activation: Callable[[Tensor], Tensor]
    image: tuple[int, int] | None = None  # a convolution's output size
    C: Tensor | None = None
    U: Tensor | None = None
    M: Tensor | None = None


def linear(name: str, module: nn.Linear, activation: Callable[[Tensor], Tensor]) -> Layer:
    W, b = module.weight.detach().clone(), module.bias.detach().clone()
    return Layer(name, W, b, lambda x: x.reshape(len(x), -1), activation)


def convolution(name: str, module: nn.Conv2d, image: tuple[int, int], activation: Callable[[Tensor], Tensor]) -> Layer:
    W, b = module.weight.detach().reshape(module.out_channels, -1).clone(), module.bias.detach().clone()

    def rows(x: Tensor) -> Tensor:  # [b, d, positions] → [b · positions, d]
        return F.unfold(x, module.kernel_size, stride=module.stride, padding=module.padding).mT.flatten(0, 1)

    return Layer(name, W, b, rows, activation, image)


@dataclass
class Reference:
    """The settings carry the names that CodeCL gives them."""

    layers: list[Layer]
    head: Tensor
    head_bias: Tensor
    aperture: float
    free_dims: int
    overlap: float
    lr: float
    before: str = "previous"
    after: str = "shared"
    replace: bool = False
    hold: bool = False
    gain: float = 0.0
    minimum: float = 0.0
    smallest: int | None = None
    start: Callable[[Layer], Tensor] | None = None
    """M before the task, in place of zeros."""
    align: Callable[[Layer], Tensor] | None = None
    """Singular vectors have no sign of their own: this gives the ones to agree with."""
    learned: int = field(default=0, init=False)

    def effective(self, layer: Layer) -> Tensor:
        if layer.U is None:
            return layer.W
        mixed = layer.W @ layer.U @ layer.M @ layer.U.mT
        return layer.W - layer.W @ layer.U @ layer.U.mT + mixed if self.replace else layer.W + mixed

    def forward(self, weights: list[Tensor], biases: list[Tensor], x: Tensor) -> tuple[list[Tensor], Tensor]:
        """The rows that each layer sees, and the features that the head sees."""
        seen = []
        for layer, W, b in zip(self.layers, weights, biases, strict=True):
            X = layer.rows(x)
            seen.append(X)
            y = X @ W.mT + b
            if layer.image is not None:
                y = y.reshape(len(x), -1, len(W)).mT.reshape(len(x), len(W), *layer.image)
            x = layer.activation(y)
        return seen, x.reshape(len(x), -1)

    def rows(self, batches: Batches, shared: bool) -> list[Tensor]:
        weights = [layer.W if shared else self.effective(layer) for layer in self.layers]
        return self.forward(weights, [layer.b for layer in self.layers], torch.cat([x for x, _ in batches]))[0]

    def conceptor(self, X: Tensor) -> Tensor:
        C = dense.fit(X, self.aperture)
        while (X @ C.mT).norm(dim=1).sum() / X.norm(dim=1).sum() < self.gain:
            C = dense.adapt(C, 1.1)
        return C

    def begin(self, batches: Batches) -> None:
        """Lines 2–14."""
        rows = self.rows(batches, shared=self.before == "shared")
        for layer, X in zip(self.layers, rows, strict=True):
            layer.U = layer.M = None
            if layer.C is None:
                continue
            d = len(layer.C)
            gate = self.smallest is None or d > (self.smallest if layer.image is None else self.free_dims)
            C_and = dense.conjoin(dense.cut(self.conceptor(X), self.minimum), layer.C)
            if gate and dense.capacity(C_and) / dense.capacity(layer.C) > self.overlap:
                U, s, _ = torch.linalg.svd(C_and)
                layer.U = U[:, : min(self.free_dims, int((s > 1e-9).sum()))]
                layer.U = layer.U * (layer.U * self.align(layer)).sum(0).sign()
                K = layer.U.shape[1]
                layer.M = self.start(layer) if self.start else torch.zeros(K, K, dtype=torch.float64)

    def step(self, x: Tensor, y: Tensor) -> None:
        """Lines 16–19, on one batch."""
        weights = [self.effective(layer).clone().requires_grad_() for layer in self.layers]
        biases = [layer.b.clone().requires_grad_() for layer in self.layers]
        head, head_bias = self.head.clone().requires_grad_(), self.head_bias.clone().requires_grad_()
        features = self.forward(weights, biases, x)[1]
        F.cross_entropy(features @ head.mT + head_bias, y).backward()
        self.head, self.head_bias = self.head - self.lr * head.grad, self.head_bias - self.lr * head_bias.grad
        for layer, effective, bias in zip(self.layers, weights, biases, strict=True):
            G_eff = effective.grad
            G, G_M = G_eff, None
            eye = torch.eye(layer.W.shape[1], dtype=torch.float64)
            if layer.U is not None:
                change = eye + layer.U @ layer.M @ layer.U.mT
                if self.replace and not (self.hold and layer.image is None):
                    change = change - layer.U @ layer.U.mT
                G = G_eff @ change.mT
                G_M = layer.U.mT @ layer.W.mT @ G_eff @ layer.U
            if layer.C is not None:
                G = G @ (eye - layer.C)
            layer.W = layer.W - self.lr * G
            if G_M is not None:
                layer.M = layer.M - self.lr * G_M
            if self.learned == 0:  # biases are held after the first task
                layer.b = layer.b - self.lr * bias.grad

    def end(self, batches: Batches) -> None:
        """Lines 21–26."""
        rows = self.rows(batches, shared=self.after == "shared")
        for layer, X in zip(self.layers, rows, strict=True):
            post = self.conceptor(X)
            layer.C = dense.cut(post if layer.C is None else dense.disjoin(post, layer.C), self.minimum)
        self.learned += 1

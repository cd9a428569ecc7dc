"""Drawn layers and their inputs, and the formulas of the projection written out densely."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import strategies as st
from torch import Tensor, nn

from codecl.attach import Mixing, Projection, ProtectedWeight, attach, project_away, survey

seeds = st.integers(0, 2**31 - 1)
UNEVEN = pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")  # torch's, about speed
CONVOLUTIONS = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}


def normal(seed: int, *shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def orthonormal(seed: int, d: int, k: int) -> Tensor:
    return torch.linalg.qr(normal(seed, d, d)).Q[:, :k]


def redrawn(module: nn.Module, seed: int = 0, dtype: torch.dtype = torch.float64) -> Any:
    """``module`` in float64 with parameters from ``seed``, so that no test depends on the global random state."""
    module.to(dtype)
    with torch.no_grad():
        for i, parameter in enumerate(module.parameters()):
            parameter.copy_(normal(seed + i, *parameter.shape) / max(1, parameter.shape[1:].numel()) ** 0.5)
    return module


@contextmanager
def attached(model: nn.Module, **settings: Any) -> Iterator[dict[str, ProtectedWeight]]:
    """The protected weights of ``model``, which runs on their forwards inside."""
    weights = survey(model, **settings).protected
    take_back = attach(model, weights)
    try:
        yield weights
    finally:
        take_back()


@st.composite
def linears(draw: Any) -> tuple[nn.Linear, Tensor]:
    """A Linear layer and an input with any leading dimensions, none and empty ones included."""
    d, o, seed = draw(st.integers(1, 6)), draw(st.integers(1, 6)), draw(seeds)
    leading = draw(st.lists(st.integers(0, 4), max_size=3))
    return redrawn(nn.Linear(d, o, bias=draw(st.booleans())), seed), normal(seed + 9, *leading, d)


@st.composite
def convolutions(draw: Any) -> tuple[nn.Module, Tensor]:
    """A convolution of any settings, and an input that it accepts, batched or not."""
    axes = draw(st.integers(1, 3))
    several = st.tuples(*[st.integers(1, 3)] * axes)
    kernel, dilation, groups = draw(several), draw(several), draw(st.integers(1, 3))
    padding = draw(st.one_of(st.just("same"), st.just("valid"), st.tuples(*[st.integers(0, 2)] * axes)))
    stride = (1,) * axes if padding == "same" else draw(several)
    mode = draw(st.sampled_from(["zeros", "reflect", "replicate", "circular"]))
    channels = groups * draw(st.integers(1, 2))  # one for each group: depthwise
    seed = draw(seeds)
    layer = CONVOLUTIONS[axes](
        channels,
        groups * draw(st.integers(1, 3)),
        kernel,
        stride,
        padding,
        dilation,
        groups,
        bias=draw(st.booleans()),
        padding_mode=mode,
    )
    # No less than the spread kernel, and more than the padding, as reflection asks.
    sizes = [max((k - 1) * s + 1, 3) + draw(st.integers(0, 2)) for k, s in zip(kernel, dilation, strict=True)]
    batch = draw(st.sampled_from([(), (1,), (3,)]))
    return redrawn(layer, seed), normal(seed + 9, *batch, channels, *sizes)


@st.composite
def transposed_convolutions(draw: Any) -> tuple[nn.Module, tuple[Any, ...]]:
    """A transposed convolution of any settings, and the arguments of a call, with an output size or without."""
    axes = draw(st.integers(1, 3))
    several = st.tuples(*[st.integers(1, 3)] * axes)
    kernel, dilation, stride, groups = draw(several), draw(several), draw(several), draw(st.integers(1, 3))
    most = [max(s, d) - 1 for s, d in zip(stride, dilation, strict=True)]
    extra = tuple(draw(st.integers(0, m)) for m in most)
    spans = [d * (k - 1) for k, d in zip(kernel, dilation, strict=True)]
    padding = tuple(draw(st.integers(0, min(2, span))) for span in spans)
    channels, seed = groups * draw(st.integers(1, 2)), draw(seeds)
    layer = {1: nn.ConvTranspose1d, 2: nn.ConvTranspose2d, 3: nn.ConvTranspose3d}[axes](
        channels,
        groups * draw(st.integers(1, 2)),
        kernel,
        stride,
        padding,
        extra,
        groups,
        draw(st.booleans()),
        dilation,
    )
    sizes = [draw(st.integers(2, 3)) + 2 * pad for pad in padding]  # so large that the output is not empty
    x = normal(seed + 9, *draw(st.sampled_from([(), (1,), (2,)])), channels, *sizes)
    redrawn(layer, seed)
    if not draw(st.booleans()):
        return layer, (x,)
    least = [n - e for n, e in zip(layer(x).shape[-axes:], extra, strict=True)]
    return layer, (x, [n + draw(st.integers(0, s - 1)) for n, s in zip(least, stride, strict=True)])


@dataclass(frozen=True)
class Memory:
    """One conceptor for each matrix of a stack: ``U``, ``s`` and ``rest``."""

    bases: list[Tensor]
    values: list[Tensor]
    rests: list[int]

    @property
    def dense(self) -> Tensor:
        """``C = U s Uᵀ + rest (I − U Uᵀ)``, ``[g, d, d]``."""
        return torch.stack(
            [
                U @ torch.diag(s) @ U.mT + rest * (torch.eye(len(U), dtype=torch.float64) - U @ U.mT)
                for U, s, rest in zip(self.bases, self.values, self.rests, strict=True)
            ]
        )

    def projection(self, like: Tensor) -> Projection:
        return project_away(self.bases, like, self.values, self.rests)


def memory_of(seed: int, d: int, ranks: list[int], rests: list[int]) -> Memory:
    bases = [orthonormal(seed + i, d, k) for i, k in enumerate(ranks)]
    values = [torch.rand(k, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) for k in ranks]
    return Memory(bases, values, rests)


@st.composite
def memories(draw: Any, g: int, d: int) -> Memory:
    ranks = draw(st.lists(st.integers(0, d), min_size=g, max_size=g))
    rests = draw(st.lists(st.integers(0, 1), min_size=g, max_size=g))
    return memory_of(draw(seeds), d, ranks, rests)


@st.composite
def mixings(draw: Any, g: int, d: int) -> Mixing:
    K, seed = draw(st.integers(0, d)), draw(seeds)
    U = torch.stack([orthonormal(seed + i, d, K) for i in range(g)])
    return Mixing(U, normal(seed, g, K, K), *draw(st.sampled_from([(False, False), (True, False), (True, True)])))


def effective(W: Tensor, mixing: Mixing) -> Tensor:
    """``W + W U M Uᵀ``, and with ``replace`` ``− W U Uᵀ`` too."""
    U, M = mixing.U, mixing.M.detach()
    return W + W @ U @ M @ U.mT - (W @ U @ U.mT if mixing.replace else 0)


def weight_gradient(G: Tensor, mixing: Mixing | None, C: Tensor) -> Tensor:
    """``G_eff (I + U M Uᵀ)ᵀ (I − C)``; a replaced component takes part unless it is held."""
    eye = torch.eye(C.shape[-1], dtype=C.dtype)
    if mixing is None:
        return G @ (eye - C)
    U, M = mixing.U, mixing.M.detach()
    gone = U @ U.mT if mixing.replace and not mixing.hold else 0
    return G @ (eye + U @ M.mT @ U.mT - gone) @ (eye - C)


def mixing_gradient(G: Tensor, W: Tensor, mixing: Mixing) -> Tensor:
    """``Uᵀ Wᵀ G_eff U``."""
    return mixing.U.mT @ W.mT @ G @ mixing.U


def backward_nodes(y: Tensor) -> set[str]:
    """The names of all nodes in the graph behind ``y``."""
    waiting, seen = [y.grad_fn], set()
    while waiting:
        node = waiting.pop()
        if node is not None and node not in seen:
            seen.add(node)
            waiting += [following for following, _ in node.next_functions]
    return {node.name() for node in seen}

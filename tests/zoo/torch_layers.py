"""Every layer of torch.nn that has parameters, with a Linear layer behind it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import orthogonal, spectral_norm, weight_norm

from tests.zoo.trial import Specimen

Case = tuple[Callable[[], nn.Module], dict[str, tuple[int, ...]]]
"""How a layer is made, and the shapes of its arguments without the batch."""

D = 24
LAYERS: dict[str, Case] = {
    "Linear": (lambda: nn.Linear(D, D), {"input": (D,)}),
    "Bilinear": (lambda: nn.Bilinear(6, 6, D), {"input1": (6,), "input2": (6,)}),
    "Conv1d": (lambda: nn.Conv1d(D, 4, 3, groups=2), {"input": (D, 4)}),
    "Conv2d": (lambda: nn.Conv2d(D, 4, 2), {"input": (D, 2, 2)}),
    "Conv3d": (lambda: nn.Conv3d(D, 4, 2), {"input": (D, 2, 2, 2)}),
    "ConvTranspose1d": (lambda: nn.ConvTranspose1d(D, 4, 3, stride=2, groups=2), {"input": (D, 2)}),
    "ConvTranspose2d": (lambda: nn.ConvTranspose2d(D, 4, 2, stride=2), {"input": (D, 1, 2)}),
    "ConvTranspose3d": (lambda: nn.ConvTranspose3d(D, 4, 2, dilation=2), {"input": (D, 1, 1, 2)}),
    "RNN": (lambda: nn.RNN(D, 32, batch_first=True), {"input": (3, D)}),
    "LSTM": (lambda: nn.LSTM(D, 32, 2, batch_first=True, bidirectional=True, proj_size=16), {"input": (3, D)}),
    "GRU": (lambda: nn.GRU(D, 32, 2, batch_first=True), {"input": (3, D)}),
    "RNNCell": (lambda: nn.RNNCell(D, D), {"input": (D,), "hx": (D,)}),
    "LSTMCell": (lambda: nn.LSTMCell(D, D), {"input": (D,)}),
    "GRUCell": (lambda: nn.GRUCell(D, D), {"input": (D,), "hx": (D,)}),
    "Embedding": (lambda: nn.Embedding(40, D), {"input": (3,)}),
    "EmbeddingBag": (lambda: nn.EmbeddingBag(40, D), {"input": (3,)}),
    "MultiheadAttention": (
        lambda: nn.MultiheadAttention(D, 2, batch_first=True), {"query": (3, D), "key": (3, D), "value": (3, D)},
    ),
    "TransformerEncoderLayer": (lambda: nn.TransformerEncoderLayer(D, 2, D, batch_first=True), {"src": (3, D)}),
    "TransformerDecoderLayer": (
        lambda: nn.TransformerDecoderLayer(D, 2, D, batch_first=True), {"tgt": (3, D), "memory": (3, D)},
    ),
    "Transformer": (lambda: nn.Transformer(D, 2, 1, 1, D, batch_first=True), {"src": (3, D), "tgt": (3, D)}),
    "PReLU": (lambda: nn.PReLU(), {"input": (D,)}),
    "BatchNorm1d": (lambda: nn.BatchNorm1d(D), {"input": (D,)}),
    "BatchNorm2d": (lambda: nn.BatchNorm2d(D), {"input": (D, 2, 2)}),
    "BatchNorm3d": (lambda: nn.BatchNorm3d(D), {"input": (D, 2, 2, 2)}),
    "SyncBatchNorm": (lambda: nn.SyncBatchNorm(D), {"input": (D, 2)}),
    "InstanceNorm1d": (lambda: nn.InstanceNorm1d(D, affine=True), {"input": (D, 4)}),
    "InstanceNorm2d": (lambda: nn.InstanceNorm2d(D, affine=True), {"input": (D, 2, 2)}),
    "InstanceNorm3d": (lambda: nn.InstanceNorm3d(D, affine=True), {"input": (D, 2, 2, 2)}),
    "GroupNorm": (lambda: nn.GroupNorm(2, D), {"input": (D,)}),
    "LayerNorm": (lambda: nn.LayerNorm(D), {"input": (D,)}),
    "RMSNorm": (lambda: nn.RMSNorm(D), {"input": (D,)}),
    "AdaptiveLogSoftmaxWithLoss": (lambda: nn.AdaptiveLogSoftmaxWithLoss(D, 12, [4]), {"input": (D,), "target": ()}),
    "Linear with weight_norm": (lambda: weight_norm(nn.Linear(D, D)), {"input": (D,)}),
    "Linear with spectral_norm": (lambda: spectral_norm(nn.Linear(D, D)), {"input": (D,)}),
    "Linear with orthogonal": (lambda: orthogonal(nn.Linear(D, D)), {"input": (D,)}),
}  # fmt: skip
INTEGERS = ("Embedding", "EmbeddingBag")


class Followed(nn.Module):
    """A layer, and a Linear layer of all that it gives for an input."""

    def __init__(self, layer: nn.Module, call: dict[str, Any]) -> None:
        super().__init__()
        self.layer = layer.double().eval()
        self.after = nn.Linear(self.features(**call).shape[1], 4).double()

    def features(self, **call: Tensor) -> Tensor:
        output = self.layer(*call.values())
        output = output if isinstance(output, Tensor) else output[0]
        return output.reshape(len(output), -1)

    def forward(self, **call: Tensor) -> Tensor:
        return self.after(self.features(**call))


def layer(name: str) -> Specimen:
    """The layer on two inputs of a first task and six of a second, in float64."""
    make, shapes = LAYERS[name]
    torch.manual_seed(0)
    calls = arguments(name, shapes, 0), arguments(name, shapes, 1)
    return Specimen(Followed(make(), calls[0]), calls, lambda output: output)


def arguments(name: str, shapes: dict[str, tuple[int, ...]], task: int) -> dict[str, Any]:
    generator, n = torch.Generator().manual_seed(task), 2 + 4 * task
    call: dict[str, Any] = {}
    for key, shape in shapes.items():
        if name in INTEGERS:
            call[key] = torch.randint(20 * task, 20 + 20 * task, (n, *shape), generator=generator)
        elif key == "target":
            call[key] = torch.randint(0, 12, (n,), generator=generator)
        else:
            call[key] = torch.randn(n, *shape, generator=generator, dtype=torch.float64)
    return call

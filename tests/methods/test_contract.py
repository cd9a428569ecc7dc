"""Every method × every kind of layer × every kind of optimizer, on a tiny network: what all of them promise.

An optimizer sees weights and not the layers they belong to: layers that are much like another, or made of others, are
tried with two of them. A new layer type joins by one line in ``LAYERS``, a new method by one in ``METHODS``, an
optimizer by one in ``OPTIMIZERS``.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn, optim
from torch.nn.functional import cross_entropy
from torch.testing import assert_close

from codecl import AGEM, API, CUBER, DFGP, ER, EWC, GPM, HAT, OWM, SGP, TRGP, TRGPSD, CodeCL, Method, MultiHead
from codecl.layers import LayerKind, register
from tests.layers.cases import normal, redrawn

pytestmark = pytest.mark.slow

Call = Callable[[nn.Module, Tensor], Tensor]


class Transposed(nn.Module):
    """A layer type of one's own, ``y = x W``."""

    def __init__(self, d: int, o: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(d, o))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight


@register(Transposed)
class TransposedKind(LayerKind):
    pointwise = True
    biases = ()

    def matrices(self, weight: Tensor) -> Tensor:
        return weight.mT.unsqueeze(0)

    def parameter(self, matrices: Tensor) -> Tensor:
        return matrices.squeeze(0).mT

    def rows(self, x: Tensor) -> Tensor:
        return x.reshape(1, -1, x.shape[-1])


def attend(layer: nn.Module, x: Tensor) -> Tensor:
    return layer(x, x, x, need_weights=False)[0]


def attend_to_halves(layer: nn.Module, x: Tensor) -> Tensor:
    return layer(x, x[..., :3].tanh(), x[..., 1:], need_weights=False)[0]


def decode(layer: nn.Module, x: Tensor) -> Tensor:
    return layer(x, x.flip(1).tanh())


def just(layer: nn.Module, x: Tensor) -> Tensor:
    return layer(x)


LAYERS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], Call]] = {
    "Linear": (lambda: nn.Linear(6, 4), (6,), just),
    "Conv1d": (lambda: nn.Conv1d(2, 4, 2, dilation=2), (2, 5), just),
    "Conv2d grouped": (lambda: nn.Conv2d(4, 4, 2, stride=2, groups=2), (4, 4, 4), just),
    "Conv3d": (lambda: nn.Conv3d(1, 2, 2), (1, 3, 3, 2), just),
    "Embedding": (lambda: nn.Embedding(8, 4), (3,), lambda layer, x: layer(x.abs().mul(4).long().clamp(max=7))),
    "MultiheadAttention": (lambda: nn.MultiheadAttention(4, 2, batch_first=True), (3, 4), attend),
    "MultiheadAttention, cross": (
        lambda: nn.MultiheadAttention(4, 2, kdim=3, vdim=3, add_bias_kv=True, batch_first=True), (3, 4),
        attend_to_halves,
    ),
    "TransformerEncoderLayer": (lambda: nn.TransformerEncoderLayer(4, 2, 6, 0.0, batch_first=True), (3, 4), just),
    "TransformerDecoderLayer": (lambda: nn.TransformerDecoderLayer(4, 2, 6, 0.0, batch_first=True), (3, 4), decode),
    "registered": (lambda: Transposed(6, 4), (6,), just),
}  # fmt: skip

METHODS: dict[str, tuple[Callable[..., Method], bool]] = {  # and whether old outputs hold to rounding
    "code-cl": (partial(CodeCL, aperture=1e7, free_dims=2, samples=None), True),
    "code-cl own": (partial(CodeCL.own, aperture=1e7, own_share=1.0, samples=None), True),
    "gpm": (partial(GPM, threshold=1.0, samples=None), True),
    "sgp": (partial(SGP, threshold=1.0, samples=None, alpha=1e12), True),
    "trgp": (partial(TRGP, threshold=1.0, samples=None), True),
    "cuber": (partial(CUBER, threshold=1.0, samples=None), False),  # it moves old weights where that helps
    "trgp-sd": (partial(TRGPSD, threshold=1.0, samples=None), True),
    "dfgp": (partial(DFGP, threshold=1.0, samples=None), True),
    "api": (partial(API, threshold=1.0, samples=None), True),
    "owm": (partial(OWM, alpha=1e-9, update="task"), True),
    "ewc": (partial(EWC, strength=1.0), False),
    "hat": (HAT, False),
    "a-gem": (AGEM, False),
    "er": (ER, False),
    "finetune": (Method, False),
}
REFUSED = {  # HAT masks units that torch.fx can follow from layer to layer
    ("hat", layer) for layer in LAYERS if layer.startswith(("Multihead", "Transformer", "Embedding"))
}

OPTIMIZERS: dict[str, tuple[Callable[..., optim.Optimizer], dict[str, Any]]] = {
    "SGD": (partial(optim.SGD, lr=0.03), {}),
    "SGD with momentum": (partial(optim.SGD, lr=0.02, momentum=0.9, nesterov=True), {}),
    "SGD with decay": (partial(optim.SGD, lr=0.03, weight_decay=0.1), {}),
    "Adam": (partial(optim.Adam, lr=0.02), {}),
    "AdamW": (partial(optim.AdamW, lr=0.02), {}),
    "RMSprop": (partial(optim.RMSprop, lr=0.01), {"project": "both"}),
}
UNLIKE = ("Linear", "Conv2d grouped", "Embedding", "MultiheadAttention", "registered")
CASES = [
    (layer, optimizer)
    for layer in LAYERS
    for optimizer in OPTIMIZERS
    if layer in UNLIKE or optimizer in ("SGD with momentum", "AdamW")
]


class Body(nn.Module):
    def __init__(self, layer: nn.Module, call: Call) -> None:
        super().__init__()
        self.layer, self.call = layer, call

    def forward(self, x: Tensor) -> Tensor:
        return self.call(self.layer, x).flatten(1)


def network(layer: str) -> MultiHead:
    torch.manual_seed(0)  # heads to come
    make, shape, call = LAYERS[layer]
    body = Body(make(), call).double()
    features = body(torch.zeros(1, *shape, dtype=torch.float64)).shape[1]
    model = MultiHead(nn.Sequential(body, nn.Tanh(), nn.Linear(features, 10)), 10, 2)
    return redrawn(model)


def batches(layer: str, task: int) -> list[tuple[Tensor, Tensor]]:
    """Inputs one by one, so that their mean, which is what OWM protects, is each of them."""
    x = normal(50 + task, 3, 1, *LAYERS[layer][1])
    return [(x[i], torch.tensor([i % 2])) for i in range(len(x))]


def loss_on(model: nn.Module, data: list[tuple[Tensor, Tensor]]) -> float:
    with torch.no_grad():
        return sum(float(cross_entropy(model(x), y)) for x, y in data)


def learn(method: Method, optimizer: optim.Optimizer, data: list[tuple[Tensor, Tensor]], epochs: int = 3) -> None:
    method.model.train()
    for epoch in range(epochs):
        for x, y in method.watch(data, epoch, epochs):

            def closure(x: Tensor = x, y: Tensor = y) -> Tensor:
                optimizer.zero_grad()
                loss = cross_entropy(method.model(x), y)
                loss.backward()
                return loss

            optimizer.step(closure)


@pytest.mark.parametrize(("layer", "optimizer"), CASES)
@pytest.mark.parametrize("name", METHODS)
def test_contract(name: str, layer: str, optimizer: str) -> None:
    make, holds = METHODS[name]
    model = network(layer)
    if (name, layer) in REFUSED:
        with pytest.raises(ValueError, match=r"'backbone\.0|MultiheadAttention|Embedding"):
            make(model)
        return
    method = make(model)
    opt, guard = OPTIMIZERS[optimizer][0](model.parameters()), OPTIMIZERS[optimizer][1]
    method.guard(opt, **guard)
    first, second = batches(layer, 0), batches(layer, 1)

    method.begin_task("first", first)
    learn(method, opt, first)
    method.end_task(first)
    outputs = {"first": shown(method, "first", first)}
    state = copy.deepcopy((model.state_dict(), method.state_dict()))

    method.begin_task("second", second)
    before = loss_on(model.eval(), second)
    learn(method, opt, second)
    assert loss_on(model.eval(), second) < before  # the new task learns
    method.end_task(second)
    if holds:  # protected outputs hold
        assert_close(shown(method, "first", first), outputs["first"], rtol=1e-6, atol=1e-6)
    outputs |= {task: shown(method, task, first) for task in ("first", "second")}

    again = make(network(layer))  # state round-trips, in the middle and at the end
    for saved in (state, (model.state_dict(), method.state_dict())):
        again.model.load_state_dict(saved[0])
        again.load_state_dict(saved[1])
    for task, expected in outputs.items():
        assert_close(shown(again, task, first), expected)
        plain = method.export(task).eval()  # export equals, on the fused paths too
        with torch.no_grad():
            assert_close(torch.cat([plain(x) for x, _ in first]), expected)

    groups = [len(group["params"]) for group in optim.SGD(model.parameters(), lr=1.0).param_groups]
    method.detach()  # detach restores
    assert not any("forward" in vars(module) for module in model.modules())
    assert all(parameter.requires_grad for parameter in model.parameters())
    assert [len(group["params"]) for group in opt.param_groups] == groups


def shown(method: Method, task: str, data: list[tuple[Tensor, Tensor]]) -> Tensor:
    with method.task(task), torch.no_grad():
        return torch.cat([method.model.eval()(x) for x, _ in data])

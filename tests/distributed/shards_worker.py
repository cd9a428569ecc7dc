"""What each process of a test with shards runs: a stream of tasks, on its rows of the model and its share of the data.

python -m tests.distributed.shards_worker CASES OUT    with the variables that torchrun sets; CASES is a list in JSON
"""

from __future__ import annotations

import warnings
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.fsdp import fully_shard

from codecl import Method
from codecl.method.watch import ProtectionWarning
from codecl.methods import METHODS
from codecl.networks import MLP, MultiHead, VisionTransformer
from codecl.networks.vit import Block
from tests.distributed import worker
from tests.distributed.worker import BATCH, TASKS

SIDE, WORDS = 8, 11
WHOLE = StateDictOptions(full_state_dict=True)


class OneHead(nn.Module):
    """Biases, norms, a gate of a single row, and one head that every task has for itself."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(24, 1)
        self.body = nn.Sequential(nn.Linear(24, 17), nn.LayerNorm(17), nn.ReLU(), nn.Linear(17, 20), nn.ReLU())
        self.head = nn.Linear(20, 3)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.head(self.body(x) * self.gate(x).sigmoid())
        return y


class Text(nn.Module):
    """An embedding and an attention whose queries, keys and values are one parameter: no rows of one matrix."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, 8)
        self.block = nn.TransformerEncoderLayer(8, 2, 12, dropout=0.0, batch_first=True)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.head(self.block(self.words(x)).mean(1))
        return y


def make_model(network: str) -> nn.Module:
    torch.manual_seed(0)
    if network == "one head":
        return OneHead().double()
    if network == "text":
        return Text().double()
    if network == "vit":
        body = VisionTransformer(image_size=SIDE, patch=4, width=8, depth=2, heads=2, mlp_ratio=2, channels=1)
        return MultiHead(body, 8, [3] * TASKS, bias=True).double()
    return MultiHead(MLP((24, 20, 19)), 19, [3] * TASKS, bias=True).double()


def make_batches(task: int, network: str) -> list[tuple[Tensor, Tensor]]:
    if network in ("mlp", "one head"):
        return worker.make_batches(task, "mlp")[:2]
    draw = torch.Generator().manual_seed(task)
    if network == "text":
        x = torch.randint(task, WORDS, (2 * BATCH, 5), generator=draw)
        return [(x[i : i + BATCH], x[i : i + BATCH].sum(1) % 3) for i in range(0, len(x), BATCH)]
    x = torch.randn(2 * BATCH, 1, SIDE, SIDE, generator=draw).double() * (1 + torch.arange(SIDE) * (task + 1) / SIDE)
    y = (x.flatten(1) @ torch.randn(SIDE**2, 3, generator=draw).double()).argmax(1)
    return [(x[i : i + BATCH], y[i : i + BATCH]) for i in range(0, len(y), BATCH)]


def shard(model: nn.Module, **options: Any) -> None:
    """Some parts by themselves, down to single layers, and the rest with the model."""
    for module in model.modules():
        single = isinstance(model, MultiHead) and isinstance(model.backbone, MLP) and isinstance(module, nn.Linear)
        if single or isinstance(module, (nn.TransformerEncoderLayer, Block)):
            fully_shard(module, **options)
    if isinstance(model, OneHead):
        fully_shard(model.body, **options)
    fully_shard(model, **options)


def attached(case: dict[str, Any], model: nn.Module, group: dist.ProcessGroup | None) -> Method:
    if case["shards"]:
        shard(model)
    heads = {"heads": ["head"]} if hasattr(model, "head") else {}
    return METHODS[case["method"]](model, group=group, **heads, **case["settings"])


def all_values(model: nn.Module) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in get_model_state_dict(model, options=WHOLE).items()}


def resumed(case: dict[str, Any], method: Method, group: dist.ProcessGroup | None) -> Method:
    """A new method on a new model, from what was saved of both."""
    model = make_model(case["network"])
    model.load_state_dict(all_values(method.model))
    again = attached(case, model, group)
    again.load_state_dict(method.state_dict())
    return again


def answers(method: Method, network: str) -> list[Tensor]:
    """What the network answers to inputs of each task, as that task knows it."""
    found = []
    with torch.no_grad():
        for t in range(TASKS):
            with method.task(t):
                found.append(method.model(make_batches(t, network)[0][0]))
    return found


def learn(case: dict[str, Any], rank: int, world: int) -> dict[str, Any]:
    """What is known of all tasks in the end, however one asks for it."""
    network, share = case["network"], BATCH // world
    group = dist.group.WORLD if world > 1 else None
    method, warned = attached(case, make_model(network), group), list[str]()
    for t in range(TASKS):
        batches = make_batches(t, network)
        own = [(x[rank * share : (rank + 1) * share], y[rank * share : (rank + 1) * share]) for x, y in batches]
        torch.manual_seed(t if rank == 0 else 100 + t)
        method.begin_task(t, own)
        for epoch in range(2):
            if epoch and case["resume"]:
                method = resumed(case, method, group)
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                train(case, method, own, epoch)
            warned += [str(warning.message) for warning in caught if warning.category is ProtectionWarning]
        with torch.no_grad():
            method.model(own[0][0])  # evaluation leaves whole weights in place
        method.end_task(own)
    plain = [method.export(t, into=make_model(network)) for t in range(TASKS)]
    with torch.no_grad():
        exported = [model(make_batches(t, network)[0][0]) for t, model in enumerate(plain)]
    return {
        "model": all_values(method.model),
        "method": method.state_dict(),
        "answers": answers(method, network),
        "exported": exported,
        "warned": warned,
    }


def train(case: dict[str, Any], method: Method, batches: list[tuple[Tensor, Tensor]], epoch: int) -> None:
    net = method.replicate()
    optimizer = worker.make_optimizer(case["optimizer"], net.parameters())
    method.guard(optimizer)
    for i, (x, y) in enumerate(method.watch(batches, epoch, 2)):
        waits = case["accumulate"] and i % 2 == 0
        if case["accumulate"] and case["shards"]:
            net.set_requires_gradient_sync(not waits)
        nn.functional.cross_entropy(net(x), y).backward()
        if waits:
            continue
        if case["decay"]:  # a gradient that nothing has projected
            for parameter in (p for p in net.parameters() if p.grad is not None):
                parameter.grad.add_(parameter.detach(), alpha=0.1)
        if case["optimizer"] == "momentum":
            nn.utils.clip_grad_norm_([*net.parameters(), *method.parameters()], 0.5)
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    worker.main(learn)

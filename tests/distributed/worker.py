"""What each process of a distributed test runs: a stream of tasks, on its share of every batch.

python -m tests.distributed.worker CASES OUT    with the variables that torchrun sets; CASES is a list in JSON
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from codecl import Method
from codecl.methods import METHODS
from codecl.networks import MLP, MultiHead
from codecl.training.engine import Trainer
from codecl.training.plan import Plan
from codecl.training.stream import Stream, Task, Tensors

TASKS, BATCH, D = 3, 16, 6
PLAN = Plan(epochs=2, batch_size=21, lr=0.05, rule="annealed")
"""The last batch has one input, of which one of two processes has no share."""


class Branch(nn.Module):
    """A layer that only some inputs pass: those of the first process, as ``make_batches`` orders them."""

    def __init__(self) -> None:
        super().__init__()
        self.every, self.some = nn.Linear(D * 4, 16), nn.Linear(D * 4, 16)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.every(x)
        passing = x[:, 0] > 0
        if passing.any():
            y = y.index_add(0, passing.nonzero().flatten(), self.some(x[passing]))
        return y.relu()


def make_model(network: str) -> nn.Module:
    if network == "branch":
        return MultiHead(Branch(), 16, [3] * TASKS, bias=True).double()
    if network == "mlp":
        return MultiHead(MLP((D * 4, 20, 20)), 20, [3] * TASKS, bias=True).double()
    backbone = nn.Sequential(nn.Conv2d(1, 6, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(24 * D, 16), nn.ReLU())
    return MultiHead(backbone, 16, [3] * TASKS, bias=True).double()


def make_batches(task: int, network: str) -> list[tuple[Tensor, Tensor]]:
    draw = torch.Generator().manual_seed(task)
    x = torch.randn(4 * BATCH, D * 4, generator=draw).double() @ torch.randn(D * 4, D * 4, generator=draw).double() / 4
    y = (x @ torch.randn(D * 4, 3, generator=draw).double()).argmax(1)
    if network == "branch":  # of every batch, the second half does not pass
        x[:, 0] = x[:, 0].abs() * (1 - 2 * (torch.arange(len(x)) % BATCH >= BATCH // 2).double())
    shaped = x.reshape(-1, 1, D, 4) if network == "cnn" else x
    return [(shaped[i : i + BATCH], y[i : i + BATCH]) for i in range(0, len(y), BATCH)]


def make_stream(network: str) -> Stream:
    """The same inputs for a trainer, which hands out whole batches."""
    parts = [Tensors(*map(torch.cat, zip(*make_batches(t, network), strict=True))) for t in range(TASKS)]
    return Stream("the same", [Task(f"task {t}", 3, part, part, part) for t, part in enumerate(parts)])


def make_optimizer(name: str, parameters: Any) -> torch.optim.Optimizer:
    if name == "adamw":
        return torch.optim.AdamW(parameters, lr=1e-2)
    momentum = {"momentum": 0.9, "weight_decay": 1e-3} if name == "momentum" else {}
    return torch.optim.SGD(parameters, lr=0.05, **momentum)


def learn(case: dict[str, Any], rank: int, world: int) -> dict[str, Any]:
    """The states of model and method after all tasks. Every process is seeded differently on purpose."""
    torch.manual_seed(0)
    model = make_model(case["network"])
    if rank:
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(1.0)  # process 0 counts
    group = dist.group.WORLD if world > 1 else None
    method = METHODS[case["method"]](model, group=group, **case["settings"])
    if case["trainer"]:
        Trainer(method, make_stream(case["network"]), PLAN).run()
    elif method.joint:
        learn_jointly(case, method, rank, world)
    for t in range(0 if method.joint or case["trainer"] else TASKS):
        whole = make_batches(t, case["network"])
        share = BATCH // world
        own = [(x[rank * share : (rank + 1) * share], y[rank * share : (rank + 1) * share]) for x, y in whole]
        own = own[: len(own) - rank] if case["uneven"] else own
        torch.manual_seed(t if rank == 0 else 100 + t)
        method.begin_task(t, own)
        net = method.replicate()
        optimizer = make_optimizer(case["optimizer"], model.parameters())
        method.guard(optimizer)
        for epoch in range(2):
            with net.join() if case["uneven"] else nullcontext():
                train(case, method, net, optimizer, method.watch(own, epoch, 2))
        method.end_task(own)
    return {"model": model.state_dict(), "method": method.state_dict()}


def train(
    case: dict[str, Any],
    method: Method,
    net: nn.Module,
    optimizer: torch.optim.Optimizer,
    batches: Iterable[tuple[Tensor, Tensor]],
) -> None:
    for i, (x, y) in enumerate(batches):
        waits = case["accumulate"] and i % 2 == 0
        with net.no_sync() if waits and net is not method.model else nullcontext():
            loss = nn.functional.cross_entropy(net(x), y)
            if case["decays"]:  # a term that reaches the weights beside their projected gradient
                loss = loss + 0.01 * sum(weight.parameter.square().sum() for weight in method.weights.values())
            loss.backward()
        if waits:
            continue
        if case["optimizer"] == "momentum":
            nn.utils.clip_grad_norm_([*method.model.parameters(), *method.parameters()], 0.5)
        optimizer.step()
        optimizer.zero_grad()


def learn_jointly(case: dict[str, Any], method: Method, rank: int, world: int) -> None:
    """All tasks at once, in batches that are made of inputs of each."""
    torch.manual_seed(rank)
    for t in range(TASKS):
        method.begin_task(t)
    net, share = method.replicate(), BATCH // world
    optimizer = make_optimizer(case["optimizer"], method.model.parameters())
    for batches in zip(*(make_batches(t, case["network"]) for t in range(TASKS)), strict=True):
        tasks = torch.arange(TASKS).repeat_interleave(BATCH)
        for some in torch.randperm(len(tasks), generator=torch.Generator().manual_seed(0)).split(BATCH):
            own = some[rank * share : (rank + 1) * share]
            x, y = (torch.cat(parts)[own] for parts in zip(*batches, strict=True))
            optimizer.zero_grad()
            method.objective((x, y, tasks[own]), net).backward()
            optimizer.step()
    method.end_task()


def main(learn: Callable[[dict[str, Any], int, int], dict[str, Any]]) -> None:
    cases, out = json.loads(sys.argv[1]), sys.argv[2]
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.save([learn(case, rank, world) for case in cases], f"{out}.{rank}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(learn)

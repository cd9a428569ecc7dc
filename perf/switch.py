"""Showing one of many tasks: ``with method.task(k)`` beside the forward pass that it is for."""

import time
from collections.abc import Callable, Sequence

import torch
from torch import nn

from codecl import GPM, MultiHead
from codecl.networks import MLP
from perf.timing import in_turn, one_thread

TASKS = (10, 50, 100, 200)


def measure(repeat: int, tasks: Sequence[int] = TASKS) -> list[dict[str, object]]:
    """Least CPU seconds on one thread; with a norm and a head for every task, there is something to put in place."""
    method = GPM(MultiHead(nn.Sequential(MLP((16, 32, 32)), nn.BatchNorm1d(32)), 32, 2), norm="per-task", samples=8)
    x = torch.randn(32, 16, generator=torch.Generator().manual_seed(0))
    rows: list[dict[str, object]] = []
    with one_thread():
        for t in range(max(tasks)):
            method.begin_task(t, [x])
            method.end_task([x])
            if t + 1 in tasks:
                seconds = in_turn(_cases(method, x), repeat, clock=time.process_time)
                switch, forward = (1e3 * min(seconds[name]) / 20 for name in ("switch", "forward"))
                rows.append({"tasks": t + 1, "switch ms": switch, "forward ms": forward})
                rows[-1]["switch over the first"] = switch / float(str(rows[0]["switch ms"]))
    return rows


def _cases(method: GPM, x: torch.Tensor) -> dict[str, Callable[[], object]]:
    """Twenty of each, which the clock can tell from nothing."""

    def switch() -> None:
        for k in range(20):
            with method.task(k % len(method.tasks)):
                pass

    def forward() -> None:
        with torch.no_grad():
            for _ in range(20):
                method.model(x)

    return {"switch": switch, "forward": forward}

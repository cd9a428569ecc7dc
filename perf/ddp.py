"""A training step on two processes under DistributedDataParallel: CODE-CL over plain SGD, beside one process."""

import json
import os
import socket
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

from codecl import CodeCL
from perf.timing import in_turn, one_thread, ratio
from perf.training_step import BATCH, WARM_UP, K, alexnet, hold_norms, in_second_task

PROCESSES, RANK = 2, 125


def measure(repeat: int, make: Callable[[], nn.Module] = alexnet) -> list[dict[str, object]]:
    """Both cases in turn, on one thread for each process; the processes share whatever cores there are."""
    with one_thread():
        alone = ratio(in_turn(_cases(make, None), repeat, WARM_UP), "CODE-CL", "plain SGD")
    with socket.socket() as probe, tempfile.TemporaryDirectory() as folder:
        probe.bind(("127.0.0.1", 0))
        port, out = probe.getsockname()[1], Path(folder) / "ratio.json"
        probe.close()
        torch.multiprocessing.spawn(_process, (port, repeat, make, out), PROCESSES)  # type: ignore[no-untyped-call]
        several = json.loads(out.read_text())
    return [{"processes": 1, "ratio": alone}, {"processes": PROCESSES, "ratio": several}]


def _process(rank: int, port: int, repeat: int, make: Callable[[], nn.Module], out: Path) -> None:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=PROCESSES)
    found = ratio(in_turn(_cases(make, dist.group.WORLD), repeat, WARM_UP), "CODE-CL", "plain SGD")
    if rank == 0:
        out.write_text(json.dumps(found))
    dist.destroy_process_group()


def _cases(make: Callable[[], nn.Module], group: dist.ProcessGroup | None) -> dict[str, Callable[[], object]]:
    torch.manual_seed(0)  # the same on all processes
    plain, model = make(), make()
    hold_norms(plain)
    method = in_second_task(CodeCL(model, free_dims=K, group=group), RANK)
    ours, theirs = method.replicate(), plain
    if isinstance(ours, nn.parallel.DistributedDataParallel):
        theirs = nn.parallel.DistributedDataParallel(plain, find_unused_parameters=ours.find_unused_parameters)
    return {"plain SGD": _step(plain, theirs, None), "CODE-CL": _step(model, ours, method)}


def _step(model: nn.Module, net: nn.Module, method: CodeCL | None) -> Callable[[], object]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    if method is not None:
        method.guard(optimizer)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(BATCH // PROCESSES, 3, 32, 32, generator=generator)
    y = torch.randint(0, 10, (BATCH // PROCESSES,), generator=generator)

    def step() -> None:
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(x), y).backward()
        optimizer.step()

    return step

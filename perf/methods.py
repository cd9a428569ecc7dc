"""A training step of every projection method over the same step under plain SGD, on a network in its fifth task."""

import itertools
import statistics
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from codecl import CodeCL
from codecl.methods import METHODS, Method
from perf.timing import in_turn, ratio
from perf.training_step import BATCH, alexnet, hold_norms, vit

Batch = tuple[Tensor, Tensor]
Draw = Callable[[int, int], Batch]
"""So many inputs with labels, from a seed."""

TASKS = 4
MAKERS: dict[str, Callable[..., Method]] = {**METHODS, "code-cl (own)": CodeCL.own}
NAMES = ("code-cl", "code-cl (own)", "gpm", "sgp", "trgp", "cuber", "trgp-sd", "dfgp", "api", "owm")
VIT_NAMES = ("code-cl", "code-cl (own)", "gpm", "sgp", "trgp")
FORCED: dict[str, dict[str, Any]] = {"trgp": {"trust": 0.0}, "trgp-sd": {"trust": 0.0}, "cuber": {"trust": 0.0}}
"""Every layer scales two tasks: the most that these methods ever do in a step."""


def measure_alexnet(repeat: int) -> list[dict[str, object]]:
    return _measure(alexnet, NAMES, repeat)


def measure_vit(repeat: int) -> list[dict[str, object]]:
    return _measure(vit, VIT_NAMES, repeat)


def _measure(network: Callable[[], nn.Module], names: Sequence[str], repeat: int) -> list[dict[str, object]]:
    cases: dict[str, Callable[[], object]] = {"plain SGD": plain_step(network())}
    sizes: dict[str, tuple[int, str]] = {}
    for name in names:
        torch.manual_seed(0)  # the same network for all: which tasks TRGP and CUBER trust depends on it
        method = MAKERS[name](network(), **FORCED.get(name, {}))
        cases[name] = step_in_last_task(method)
        sizes[name] = (method.bytes()["memory"], _rank(method))
    seconds = in_turn(cases, repeat)
    return [
        {
            "step": name,
            "ms": round(1e3 * statistics.median(seconds[name]), 1),
            "ratio": ratio(seconds, name, "plain SGD"),
            "memory MB": sizes[name][0] / 1e6,
            "rank of the last layer": sizes[name][1],
        }
        for name in list(cases)[1:]
    ]


def plain_step(model: nn.Module, draw: Draw | None = None) -> Callable[[], object]:
    hold_norms(model)
    return step(Method(model), draw)


def step_in_last_task(method: Method, draw: Draw | None = None) -> Callable[[], object]:
    """A step as after some tasks: four have been remembered (not trained, which costs a step nothing)."""
    for t in range(TASKS):
        loader = [(draw or images)(method.samples or 125, t)]
        method.begin_task(t, loader)
        method.end_task(loader)
    method.begin_task(TASKS, [(draw or images)(125, TASKS)])
    return step(method, draw)


def step(method: Method, draw: Draw | None = None) -> Callable[[], object]:
    """A step of SGD on a batch of the task that ``method`` is in."""
    optimizer = torch.optim.SGD(method.model.parameters(), lr=0.01)
    if method.tasks:
        method.guard(optimizer)
    batches = method.watch(itertools.repeat((draw or images)(BATCH, TASKS)))  # an epoch that never ends

    def run() -> None:
        batch = next(batches)

        def closure() -> Tensor:
            optimizer.zero_grad()
            loss = method.objective(batch)
            loss.backward()
            return loss

        optimizer.step(closure)

    return run


def _rank(method: Method) -> str:
    """How many directions of the input of the last hidden layer are protected, and of how many."""
    *_, weight = method.memory_summary().values()
    d = weight["shape"][2]
    return f"{round(weight.get('rank', d))} of {d}"  # OWM keeps a square matrix


def images(count: int, seed: int) -> Batch:
    """Smooth images, as photographs are: noise has directions that none of them has."""
    generator = torch.Generator().manual_seed(seed)
    coarse = torch.randn(count, 3, 8, 8, generator=generator)
    labels = torch.randint(0, 10, (count,), generator=generator)
    return nn.functional.interpolate(coarse, size=(32, 32), mode="bilinear"), labels

"""A training step of every projection method over the same step under plain SGD, on AlexNet in its fifth task."""

import itertools
import statistics
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.timing import in_turn, ratio
from benchmarks.training_step import BATCH, alexnet, hold_norms
from codecl.experiments.registry import METHODS
from codecl.methods import Method

TASKS = 4
NAMES = ("code-cl", "gpm", "sgp", "trgp", "cuber", "trgp-sd", "dfgp", "api", "owm")
FORCED: dict[str, dict[str, Any]] = {"trgp": {"trust": 0.0}, "trgp-sd": {"trust": 0.0}, "cuber": {"trust": 0.0}}
"""Every layer scales two tasks: the most that these methods ever do in a step."""


def measure(repeat: int) -> list[dict[str, object]]:
    cases: dict[str, Callable[[], object]] = {"plain SGD": plain_step()}
    sizes: dict[str, tuple[int, int]] = {}
    for name in NAMES:
        method = METHODS[name](alexnet(), **FORCED.get(name, {}))
        cases[name] = step_in_last_task(method)
        sizes[name] = (method.bytes()["memory"], _rank(method))
    seconds = in_turn(cases, repeat)
    return [
        {
            "step": name,
            "ms": round(1e3 * statistics.median(seconds[name]), 1),
            "ratio": ratio(seconds, name, "plain SGD"),
            "memory MB": sizes[name][0] / 1e6,
            "rank of fc2": sizes[name][1],
        }
        for name in list(cases)[1:]
    ]


def plain_step() -> Callable[[], object]:
    model = alexnet()
    hold_norms(model)
    return _step(Method(model), torch.optim.SGD(model.parameters(), lr=0.01))


def step_in_last_task(method: Method) -> Callable[[], object]:
    """A step as after some tasks: four have been remembered (not trained, which costs a step nothing)."""
    for t in range(TASKS):
        loader = [images(method.samples or 125, seed=t)]
        method.begin_task(t, loader)
        method.end_task(loader)
    method.begin_task(TASKS, [images(125, seed=TASKS)])
    optimizer = torch.optim.SGD(method.model.parameters(), lr=0.01)
    method.guard(optimizer)
    return _step(method, optimizer)


def _step(method: Method, optimizer: torch.optim.Optimizer) -> Callable[[], object]:
    batches = method.watch(itertools.repeat(images(BATCH, seed=TASKS)))  # an epoch that never ends

    def step() -> None:
        batch = next(batches)

        def closure() -> Tensor:
            optimizer.zero_grad()
            loss = method.objective(batch)
            loss.backward()
            return loss

        optimizer.step(closure)

    return step


def _rank(method: Method) -> int:
    """How many directions of the input of the last hidden layer are protected."""
    projection = method.weights["backbone.fc2.weight"].projection
    return 0 if projection is None else projection.rank


def images(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Smooth images, as photographs are: noise has directions that none of them has."""
    generator = torch.Generator().manual_seed(seed)
    coarse = torch.randn(count, 3, 8, 8, generator=generator)
    labels = torch.randint(0, 10, (count,), generator=generator)
    return nn.functional.interpolate(coarse, size=(32, 32), mode="bilinear"), labels

"""What becomes of an architecture: it learns a second task, and nothing of the first may move."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from codecl import GPM, UncoveredWeights, UnseenUse

STEPS = 4
REFUSALS = (UncoveredWeights, UnseenUse)


@dataclass(frozen=True)
class Specimen:
    """A model, the keywords of a call for each of two tasks, and what its output is."""

    model: nn.Module
    calls: tuple[dict[str, Any], dict[str, Any]]
    output: Callable[[Any], Tensor]


@dataclass(frozen=True)
class Outcome:
    """What became of it: ``protected``, protected where ``held`` types of weights are held, or ``refused`` and why."""

    protected: bool
    held: tuple[str, ...] = ()
    refused: str = ""
    drift: float = 0.0
    """The change of the first task's outputs, relative to the largest of them."""
    moved: float = 0.0
    """The share of the protected weights that the second task moved."""

    def __str__(self) -> str:
        if not self.protected:
            return f"refused: {self.refused}"
        return "protected" + (f'; `rest="freeze"` holds {", ".join(self.held)}' if self.held else "")


def trial(specimen: Specimen) -> Outcome:
    """Two tasks under GPM with everything protected, trained by AdamW; what no kind knows is held."""
    forward = lambda model, call: specimen.output(model(**call))  # noqa: E731
    held: tuple[str, ...] = ()
    try:
        try:
            method = GPM(copy.deepcopy(specimen.model), threshold=1.0, forward=forward)
        except UncoveredWeights:
            method = GPM(specimen.model, threshold=1.0, forward=forward, rest="freeze")
            held = tuple(sorted({f"`{row.module_type}`" for row in method.layers.of_role("rest")}))
        first, second = specimen.calls
        method.begin_task(0, [first])
    except REFUSALS as error:
        return Outcome(False, refused=_reason(str(error)))
    model = method.model
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    method.guard(optimizer)
    learn(model, optimizer, forward, first)
    method.end_task([first])
    before = seen(model, forward, first)
    start = {name: weight.parameter.detach().clone() for name, weight in method.weights.items()}
    method.begin_task(1, [second])
    learn(model, optimizer, forward, second)
    method.end_task([second])
    with method.task(0):
        drift = float((seen(model, forward, first) - before).abs().max() / before.abs().max().clamp(min=1e-6))
    moved = [bool((weight.parameter - start[name]).abs().max() > 1e-4) for name, weight in method.weights.items()]
    return Outcome(True, held, "", drift, sum(moved) / max(1, len(moved)))


def learn(model: nn.Module, optimizer: Any, forward: Any, call: dict[str, Any]) -> None:
    model.train()
    for step in range(STEPS):
        optimizer.zero_grad()
        output = forward(model, call)
        target = torch.linspace(-1, 1, output.numel()).reshape(output.shape).to(output) + 0.1 * step
        (output - target).square().mean().backward()
        optimizer.step()


@torch.no_grad()
def seen(model: nn.Module, forward: Any, call: dict[str, Any]) -> Tensor:
    return forward(model.eval(), call).clone()


def _reason(message: str) -> str:
    """The first reason of a refusal."""
    first, *others = message.splitlines()
    return others[0].strip() if others else first.partition(". ")[0]

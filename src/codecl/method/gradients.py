"""Losses and gradients as methods need them: the default loss, gradients by hand, gradients that are not projected."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from codecl.attach import ProtectedWeight, evaluating, inputs_in
from codecl.attach.shards import is_sharded, reshard, whole
from codecl.randomness import untouched_randomness

Loss = Callable[[Any, Any], Tensor]
"""``loss(output, batch)``."""


def cross_entropy_with_second(output: Any, batch: Any) -> Tensor:
    """The default loss: the output's own ``loss``, or the cross entropy with the second element of the batch."""
    if isinstance(own := getattr(output, "loss", None), Tensor):
        return own
    if isinstance(output, Tensor) and isinstance(batch, (tuple, list)) and len(batch) > 1:
        return F.cross_entropy(output, batch[1].to(output.device))
    raise TypeError(
        f"what is the loss of an output of type {type(output).__name__} on a batch of type {type(batch).__name__}? "
        "Pass loss=, a function of both."
    )


def add_gradients(loss: Tensor, parameters: Sequence[nn.Parameter], weights: Iterable[ProtectedWeight] = ()) -> None:
    """Add the gradients of ``loss`` to those that ``parameters`` have; those of ``weights`` are projected."""
    protected = {weight.parameter: weight for weight in weights}
    wanted = [p for p in parameters if p.requires_grad]
    if not wanted or not loss.requires_grad:
        return
    for parameter, gradient in zip(wanted, torch.autograd.grad(loss, wanted, allow_unused=True), strict=True):
        if gradient is not None:
            if parameter in protected:
                gradient = protected[parameter].projected_once(gradient)
            parameter.grad = gradient if parameter.grad is None else parameter.grad + gradient


def mean_gradients(
    model: nn.Module,
    weights: Mapping[str, ProtectedWeight],
    batches: Iterable[Any],
    objective: Callable[[Any], Tensor],
) -> dict[str, Tensor]:
    """``∂L/∂W`` of the mean loss over ``batches``, as stacks ``[g, o, d]`` by weight name, not projected.

    Runs in evaluation mode; gradients, flags and random states stay as they were. Weights without a gradient are
    left out.
    """
    learning = {name: weight for name, weight in weights.items() if weight.parameter.requires_grad}
    parameters = [weight.parameter for weight in learning.values()]
    sums: list[Tensor | None] = [None] * len(parameters)
    total = 0
    with evaluating(model), untouched_randomness(), torch.enable_grad(), unprojected(learning.values()):
        for batch in batches:
            n = inputs_in(batch) or 1
            found = _gradients(objective(batch), parameters, model, learning.values())
            sums = [a if b is None else b * n if a is None else a + b * n for a, b in zip(sums, found, strict=True)]
            total += n
    return {
        name: weight.matrices(G / total).detach()
        for (name, weight), G in zip(learning.items(), sums, strict=True)
        if G is not None
    }


def _gradients(
    loss: Tensor, parameters: Sequence[nn.Parameter], model: nn.Module, weights: Iterable[ProtectedWeight]
) -> Sequence[Tensor | None]:
    """The gradients of ``loss``; those of shards are summed and cut as a backward pass leaves them in ``.grad``."""
    if not any(is_sharded(parameter) for parameter in parameters):
        return torch.autograd.grad(loss, parameters, allow_unused=True)
    added = [p for weight in weights if weight.change is not None for p in weight.change.parameters()]
    reshard(model)
    kept = {parameter: parameter.grad for parameter in (*model.parameters(), *added)}
    try:
        for parameter in kept:
            parameter.grad = None
        loss.backward()  # type: ignore[no-untyped-call]
        return [None if parameter.grad is None else whole(parameter.grad) for parameter in parameters]
    finally:
        for parameter, gradient in kept.items():
            parameter.grad = gradient


@contextmanager
def unprojected(weights: Iterable[ProtectedWeight]) -> Iterator[None]:
    """Gradients of ``weights`` are not projected inside this context."""
    flags = [(weight, weight.projects_gradient) for weight in weights]
    try:
        for weight, _ in flags:
            weight.projects_gradient = False
        yield
    finally:
        for weight, flag in flags:
            weight.projects_gradient = flag

"""What is done to an optimizer's groups of parameters, and to what it keeps of each parameter."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn, optim


def unwrapped(optimizer: optim.Optimizer) -> optim.Optimizer:
    """The optimizer that steps, where Lightning or Accelerate has wrapped it: hooks on the wrapper are never called."""
    while {"LightningOptimizer", "AcceleratedOptimizer"} & {base.__name__ for base in type(optimizer).__mro__}:
        optimizer = optimizer.optimizer  # type: ignore[attr-defined]
    return optimizer


def group_of(optimizer: optim.Optimizer, parameter: nn.Parameter) -> dict[str, Any] | None:
    """The group that holds ``parameter``."""
    return next((g for g in optimizer.param_groups if any(p is parameter for p in g["params"])), None)


def append(group: dict[str, Any] | None, new: nn.Parameter, host: nn.Parameter, suffix: str) -> None:
    """Put ``new`` into the group that holds ``host``, named after it where the group names its parameters."""
    if group is None:
        return
    if "param_names" in group:
        place = next(i for i, p in enumerate(group["params"]) if p is host)
        group["param_names"].append(f"{group['param_names'][place]}.{suffix}")
    group["params"].append(new)


def drop(optimizer: optim.Optimizer, parameters: Iterable[nn.Parameter]) -> None:
    """Take ``parameters`` out of all groups, and forget what was kept of them."""
    gone = set(parameters)
    for group in optimizer.param_groups:
        kept = [i for i, p in enumerate(group["params"]) if p not in gone]
        group["params"] = [group["params"][i] for i in kept]
        if "param_names" in group:
            group["param_names"] = [group["param_names"][i] for i in kept]
    for parameter in gone:
        optimizer.state.pop(parameter, None)


def complete_momentum(optimizer: optim.Optimizer) -> None:
    """Fused SGD wants a momentum for all parameters of a group or for none; what is new, or forgot, has zeros."""
    for group in optimizer.param_groups:
        if group.get("fused") and isinstance(optimizer, optim.SGD):
            states = [(p, optimizer.state.get(p, {}).get("momentum_buffer")) for p in group["params"]]
            if any(buffer is not None for _, buffer in states):
                for p in (p for p, buffer in states if buffer is None):
                    optimizer.state[p] = {"momentum_buffer": torch.zeros_like(p)}

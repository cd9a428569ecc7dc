"""What a method remembers, in plain numbers: for logs, tables and figures."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from codecl.attach import EffectiveWeight, ProtectedWeight
from codecl.method.state import size

DIGITS = 6
POINTS = 32


def summary(weight: ProtectedWeight, memory: Any, effective: Sequence[Mapping[str, EffectiveWeight]]) -> dict[str, Any]:
    """What can be said of a weight whatever the method: its shape, the bytes stored for it, the share protected.

    ``memory`` is the method's ``memory_state()``: what stands there under the name of the weight belongs to it.
    """
    of_tasks = [task[weight.name].state() for task in effective if weight.name in task]
    found: dict[str, Any] = {"shape": list(weight.shape), "bytes": _size_under(weight.name, memory) + size(of_tasks)}
    if weight.projection is not None:
        found["capacity"] = round(weight.projection.capacity, DIGITS) + 0.0  # no −0
    return found


def spectrum(values: Iterable[Tensor]) -> list[float]:
    """Singular values other than 0 of all matrices, the largest first; of many, ``POINTS`` that lie evenly."""
    ordered = torch.cat(list(values)).sort(descending=True).values
    if len(ordered) > POINTS:
        ordered = ordered[torch.linspace(0, len(ordered) - 1, POINTS).round().long().to(ordered.device)]
    return [round(value, DIGITS) for value in ordered.tolist()]


def nonzero_columns(U: Tensor) -> float:
    """How many directions a stack ``[g, d, k]`` has, padding aside: the mean over its matrices."""
    return float(U.any(dim=1).sum()) / len(U)


def _size_under(name: str, state: Any) -> int:
    """The bytes of all that stands under the key ``name`` in nested containers."""
    if isinstance(state, Mapping):
        return size(state[name]) if name in state else sum(_size_under(name, value) for value in state.values())
    return sum(_size_under(name, value) for value in state) if isinstance(state, (list, tuple)) else 0

"""What a method's model gets right, by the method's own ``forward`` and ``loss``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from codecl.method.gradients import cross_entropy_with_second
from codecl.methods import Method
from codecl.training.loader import BatchLoader

Measure = Callable[[Tensor, Tensor], Tensor]
"""Of a batch of outputs and labels, a number for each input."""


@dataclass
class Sums:
    """What was measured on ``count`` inputs: the sum of their losses, those classified right, and the user's sums."""

    count: int
    loss: float = 0.0
    right: int = 0
    own: dict[str, float] = field(default_factory=dict)


@torch.no_grad()
def measure(method: Method, loader: BatchLoader, measures: Mapping[str, Measure]) -> Sums:
    """Sums over the batches of ``loader``, for the task that ``method`` shows."""
    sums = Sums(loader.inputs, own=dict.fromkeys(measures, 0.0))
    for batch in loader:
        output, y = method.forward(method.model, batch), batch[1]
        logits = output if isinstance(output, Tensor) else output.logits
        sums.right += int((logits.argmax(1) == y).sum())
        for name, function in measures.items():
            sums.own[name] += _summed(name, function(logits, y), len(y))
        if method.loss is cross_entropy_with_second and isinstance(output, Tensor):
            sums.loss += float(F.cross_entropy(output, y, reduction="sum"))  # to the last bit
        else:
            sums.loss += float(method.loss(output, batch)) * len(y)
    return sums


def _summed(name: str, values: Any, inputs: int) -> float:
    if not isinstance(values, Tensor) or values.shape != (inputs,):
        found = f"shape {list(values.shape)}" if isinstance(values, Tensor) else type(values).__name__
        raise ValueError(f"measure {name!r} must give a number for each of {inputs} inputs, [{inputs}]; got {found}.")
    return float(values.double().sum())

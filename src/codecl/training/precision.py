"""Training in half precision: the forward pass under autocast, and for float16 a loss that is scaled."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from codecl.methods import Method

HALF = {"bf16": torch.bfloat16, "fp16": torch.float16}


@contextmanager
def autocast_forward(method: Method, precision: str, device: str) -> Iterator[None]:
    """Within it the method's forward pass runs under autocast, and nothing else does.

    Outputs come back in float32, so that losses, gradients of weights and above all projections are as precise as ever.
    """
    plain = method.forward
    if precision not in HALF:
        yield
        return

    def forward(model: torch.nn.Module, batch: Any) -> Any:
        with torch.autocast(torch.device(device).type, HALF[precision]):
            output = plain(model, batch)
        return output.float() if isinstance(output, Tensor) else output

    method.forward = forward
    try:
        yield
    finally:
        method.forward = plain


def new_scaler(precision: str, device: str) -> torch.amp.GradScaler | None:
    """What scales the loss, for float16 alone: its gradients vanish otherwise."""
    return torch.amp.GradScaler(torch.device(device).type) if precision == "fp16" else None

"""Running a model while preserving its train/eval flags and buffers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

from torch import nn


@contextmanager
def in_mode(model: nn.Module, training: bool) -> Iterator[None]:
    """Run in training or evaluation mode; every module has its own flag back afterwards."""
    flags = [(module, module.training) for module in model.modules()]
    try:
        for module, _ in flags:
            module.training = training
        yield
    finally:
        for module, before in flags:
            module.training = before


def evaluating(model: nn.Module) -> AbstractContextManager[None]:
    """Run in evaluation mode."""
    return in_mode(model, training=False)


@contextmanager
def untouched_buffers(model: nn.Module) -> Iterator[None]:
    """Running statistics and other buffers are the same afterwards."""
    kept = [(buffer, buffer.clone()) for buffer in model.buffers()]
    try:
        yield
    finally:
        for buffer, value in kept:
            buffer.copy_(value)

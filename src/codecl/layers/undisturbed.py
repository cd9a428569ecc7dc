"""Looking at a model without leaving a trace: its train/eval flags, buffers and all random states stay as they were."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

import torch
from torch import nn


@contextmanager
def in_mode(model: nn.Module, training: bool) -> Iterator[None]:
    """In training or evaluation mode; every flag is the same afterwards, also where they differed."""
    flags = [(module, module.training) for module in model.modules()]
    try:
        for module, _ in flags:
            module.training = training
        yield
    finally:
        for module, before in flags:
            module.training = before


def evaluating(model: nn.Module) -> AbstractContextManager[None]:
    """In evaluation mode, for a while."""
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


@contextmanager
def untouched_randomness() -> Iterator[None]:
    """The random states of torch (all devices), Python and, if it is loaded, numpy are the same afterwards."""
    python = random.getstate()
    numpy = sys.modules.get("numpy")
    numpy_state = numpy.random.get_state() if numpy is not None else None
    mps = torch.mps.get_rng_state() if torch.backends.mps.is_available() else None
    try:
        with torch.random.fork_rng():
            yield
    finally:
        random.setstate(python)
        if numpy is not None:
            numpy.random.set_state(numpy_state)
        if mps is not None:
            torch.mps.set_rng_state(mps)

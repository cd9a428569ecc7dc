"""Looking at a model without leaving a trace: its train/eval flags and all random states stay as they were."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """In evaluation mode; every train/eval flag is the same afterwards, also where they differed."""
    flags = [(module, module.training) for module in model.modules()]
    try:
        for module, _ in flags:
            module.training = False
        yield
    finally:
        for module, training in flags:
            module.training = training


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

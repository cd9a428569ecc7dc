"""Separate streams of random numbers, all derived from the one seed of a run.

A stream is named by what it is for and, where it starts anew, by task and epoch. What one of them draws never depends
on how much another has drawn, nor on where a run was stopped and resumed:

    "init"       the first weights, and what a method adds to the network (task)
    "order"      the order of the training examples (task, epoch)
    "dropout"    everything random in the network while it trains (task, epoch)
    "augment"    crops and flips of training images (task, epoch)
    "workers"    what a dataset draws in processes that read ahead (task, epoch)
    "sample"     the inputs a method looks at between tasks (task)
    "evaluate"   everything random in evaluation

What a method draws by itself comes from ``method_seed``, by seed, task or step, and use.
"""

from __future__ import annotations

import hashlib
import json
import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import torch


def derive(seed: int, *names: str | int) -> int:
    """The seed of the stream ``names``, 63 bits: the same on every platform, in every version.

    The first 63 bits of the SHA-256 of ``[seed, *names]`` as JSON.
    """
    if type(seed) is not int or not all(type(name) in (str, int) for name in names):
        raise TypeError(f"a seed is an int and names are str or int; got {seed!r} and {names!r}.")
    text = json.dumps([seed, *names], separators=(",", ":"), ensure_ascii=True)
    return int.from_bytes(hashlib.sha256(text.encode("ascii")).digest()[:8], "big") >> 1


def method_seed(seed: int, task: int, use: str) -> int:
    """The seed of a stream that a method draws from by itself, so that nothing about it needs saving.

    56 bits of the SHA-256 of ``seed/task/use``; the recorded runs were drawn so.
    """
    return int.from_bytes(hashlib.sha256(f"{seed}/{task}/{use}".encode()).digest()[:7])


def generator(seed: int, *names: str | int) -> torch.Generator:
    """A generator on the CPU at the beginning of the stream ``names``."""
    return torch.Generator(device="cpu").manual_seed(derive(seed, *names))


@contextmanager
def untouched_randomness() -> Iterator[None]:
    """The random states of torch (all devices), Python and, if it is loaded, NumPy are the same afterwards.

    CUDA and XPU devices that nothing has used yet have no state to restore: they get the seed that torch's CPU
    generator had.
    """
    numpy = sys.modules.get("numpy")
    python, legacy = random.getstate(), None if numpy is None else numpy.random.get_state()
    seed, cpu = torch.initial_seed(), torch.get_rng_state()
    awake = [module for module in (torch.cuda, torch.xpu) if module.is_initialized()]
    others = [module.get_rng_state_all() for module in awake]
    mps = torch.mps.get_rng_state() if torch.backends.mps.is_available() else None
    try:
        yield
    finally:
        if torch.initial_seed() != seed:
            torch.manual_seed(seed)  # for the devices not yet in use
        torch.set_rng_state(cpu)
        for module, kept in zip(awake, others, strict=True):
            module.set_rng_state_all(kept)
        if mps is not None:
            torch.mps.set_rng_state(mps)
        random.setstate(python)
        if numpy is not None and legacy is not None:
            numpy.random.set_state(legacy)


@contextmanager
def seeded(seed: int, *names: str | int) -> Iterator[None]:
    """Within it the global generators (torch's on all devices, Python's, NumPy's if loaded) are at this stream.

    Afterwards, also after an exception, they are where they were.
    """
    state = derive(seed, *names)
    with untouched_randomness():
        torch.manual_seed(state)
        random.seed(state)
        if (numpy := sys.modules.get("numpy")) is not None:
            numpy.random.seed([state >> 32, state & 0xFFFFFFFF])
        yield

"""The embedded benchmark: real handwritten digits that come with scikit-learn, so that nothing is downloaded.

Five tasks show the same digits with their pixels shuffled, each in its own way. They share no structure that survives
the shuffling, so what one task needs, the next overwrites: plain fine-tuning forgets most of it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from codecl.networks import MLP, MultiHead
from codecl.randomness import generator
from codecl.training.stream import Stream, Task, Tensors

TASKS, CLASSES, PIXELS = 5, 10, 64
TRAIN, VALIDATION = 1200, 200  # of 1,797; the remaining 397 are the test part
SPLIT_SEED = 0


def stream(root: Path | None = None, seed: int = 0) -> Stream:
    """Permuted digits; the split and the permutations are the same in every run."""
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        raise ModuleNotFoundError(
            "the embedded benchmark reads the digits of scikit-learn, which is not installed: "
            "pip install 'codecl[demo]'."
        ) from None
    digits = load_digits()
    x = torch.tensor(digits.data, dtype=torch.float32) / 16
    y = torch.tensor(digits.target, dtype=torch.int64)
    order = torch.randperm(len(y), generator=generator(SPLIT_SEED, "digits", "split"))
    train, validation, test = order.split([TRAIN, VALIDATION, len(y) - TRAIN - VALIDATION])  # type: ignore[no-untyped-call]
    tasks = []
    for t in range(TASKS):
        shuffled = x[:, torch.randperm(PIXELS, generator=generator(SPLIT_SEED, "digits", "pixels", t))]
        parts = [Tensors(shuffled[part], y[part]) for part in (train, validation, test)]
        tasks.append(Task(f"permutation {t}", CLASSES, *parts))
    return Stream("permuted-digits", tasks)


def network(stream: Stream, **_: Any) -> MultiHead:
    return MultiHead(MLP((PIXELS, 128, 128)), 128, [task.classes for task in stream.tasks], bias=True)

"""The embedded benchmark: real handwritten digits that come with scikit-learn, so that nothing is downloaded.

Five tasks show the same digits with their pixels shuffled, each in its own way. They share no structure that survives
the shuffling, so what one task needs, the next overwrites: plain fine-tuning forgets most of it.
"""

from __future__ import annotations

from pathlib import Path

import torch

from codecl.benchmarks.splits import with_heads
from codecl.networks import MLP
from codecl.randomness import generator
from codecl.text import installing
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
            f"the embedded benchmark reads the digits of scikit-learn, which is not installed: {installing('demo')}."
        ) from None
    digits = load_digits()
    x = torch.tensor(digits.data, dtype=torch.float32) / 16
    y = torch.tensor(digits.target, dtype=torch.int64)
    order = torch.randperm(len(y), generator=generator(SPLIT_SEED, "digits", "split"))
    split = order[:TRAIN], order[TRAIN : TRAIN + VALIDATION], order[TRAIN + VALIDATION :]
    tasks = []
    for t in range(TASKS):
        shuffled = x[:, torch.randperm(PIXELS, generator=generator(SPLIT_SEED, "digits", "pixels", t))]
        tasks.append(Task(f"permutation {t}", CLASSES, *(Tensors(shuffled[part], y[part]) for part in split)))
    return Stream("permuted-digits", tasks)


network = with_heads(lambda: MLP((PIXELS, 128, 128)), bias=True)

"""A Linear layer, directions that it remembers, and a change of its weight."""

import torch
from torch import nn

from codecl.attach import Mixing
from tests.layers.cases import Memory, normal, orthonormal, redrawn

CLOSE = {"rtol": 1e-10, "atol": 1e-10}


def linear(n_in: int = 8, n_out: int = 5, **settings) -> nn.Linear:
    return redrawn(nn.Linear(n_in, n_out, **settings))


def remembered(d: int = 8, k: int = 3) -> Memory:
    """Directions that are remembered for good, ``s = 1``."""
    return Memory([orthonormal(7, d, k)], [torch.ones(k, dtype=torch.float64)], [0])


def mixing_of(d: int = 8, K: int = 2, **variant: bool) -> Mixing:
    return Mixing(orthonormal(8, d, K)[None], normal(9, 1, K, K), **variant)

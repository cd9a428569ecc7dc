"""The fully connected network of permuted MNIST in GPM (Saha et al., 2021): 784-100-100, ReLU, no biases."""

from collections.abc import Sequence
from itertools import pairwise

import torch.nn.functional as F
from torch import Tensor, nn


class MLP(nn.Module):
    """Linear layers without bias, each followed by ReLU; inputs are flattened.

    ``sizes`` is the input size and then the hidden ones. With ``output`` a last linear layer of that size
    follows, without activation: the single head that all the tasks of permuted MNIST share.
    """

    uses_everything = True

    def __init__(self, sizes: Sequence[int] = (784, 100, 100), *, output: int | None = None) -> None:
        super().__init__()
        if len(sizes) < 2:
            raise ValueError(f"sizes must name the input and at least one hidden layer, got {tuple(sizes)}")
        self.hidden = nn.ModuleList(nn.Linear(d, o, bias=False) for d, o in pairwise(sizes))
        self.output = None if output is None else nn.Linear(sizes[-1], output, bias=False)
        self.features = sizes[-1] if output is None else output

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(1)
        for layer in self.hidden:
            x = F.relu(layer(x))
        return x if self.output is None else self.output(x)

"""A network with heads of different widths, and inputs of several tasks."""

import torch
from torch import nn

from codecl.networks import MultiHead
from tests.methods.cases import seeded

WIDTHS = (3, 5, 2)


def network(norm=False, dtype=torch.float64):
    """A grouped, dilated convolution below three heads of different widths."""
    torch.manual_seed(4)
    layers = [nn.Conv2d(2, 4, 3, groups=2, dilation=2, stride=2), nn.Tanh(), nn.Flatten(), nn.Linear(16, 6)]
    model = MultiHead(nn.Sequential(*layers, nn.BatchNorm1d(6) if norm else nn.Tanh()), 6, WIDTHS, bias=True)
    model.select(2)
    return model.to(dtype)


def mixed_batch(tasks, seed):
    draw = seeded(seed)
    x = torch.randn(len(tasks), 2, 8, 8, generator=draw, dtype=torch.float64)
    y = torch.tensor([int(torch.randint(WIDTHS[t], (), generator=draw)) for t in tasks])
    return (x, y), torch.tensor(tasks)

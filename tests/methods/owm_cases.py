"""One layer, its tasks, and the closed form of the projector of OWM."""

from collections import OrderedDict

import torch
from torch import nn
from torch.nn.functional import mse_loss

from tests.methods.cases import seeded


def eye(d):
    return torch.eye(d, dtype=torch.float64)


def draw(seed, *shape):
    return torch.randn(*shape, generator=seeded(seed), dtype=torch.float64)


def closed_form(means, alpha):
    """``(I + Σ r rᵀ/α)⁻¹``."""
    return torch.linalg.inv(eye(means.shape[1]) + means.mT @ means / alpha)


def one_layer(d=6, o=4, seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(OrderedDict(body=nn.Linear(d, o, bias=False))).double()


def regress(method, X, Y, steps, lr=0.1, batch=4, **optimizer):
    """Learn ``X → Y`` by squared error, in steps over batches in turn."""
    sgd = torch.optim.SGD(method.model.parameters(), lr=lr, **optimizer)
    method.guard(sgd)
    method.model.train()
    batches = list(zip(X.split(batch), Y.split(batch), strict=True))
    for step in range(steps):
        x, y = batches[step % len(batches)]
        sgd.zero_grad()
        mse_loss(method.model(x), y).backward()
        sgd.step()

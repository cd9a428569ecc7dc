"""Fisher information and penalty of EWC as loops over inputs and numbers: slow, and what ours are compared with."""

import torch
import torch.nn.functional as F
from torch import optim

SHARED = ["first.weight", "first.bias", "norm.weight", "norm.bias", "second.weight", "second.bias"]


def fisher_by_hand(model, batches, size):
    """``(1/N) Σ_b n_b g_b²`` for each number of each shared parameter."""
    X, y = torch.cat([x for x, _ in batches]), torch.cat([y for _, y in batches])
    F_of = {name: torch.zeros_like(model.get_parameter(name)) for name in SHARED}
    for begin in range(0, len(X), size):
        part = slice(begin, begin + size)
        model.zero_grad()
        F.cross_entropy(model(X[part]), y[part]).backward()
        for name in SHARED:
            gradient = model.get_parameter(name).grad.flatten().tolist()
            for k, g in enumerate(gradient):
                F_of[name].view(-1)[k] += len(X[part]) * g * g / len(X)
    model.zero_grad()
    return F_of


def penalty_by_hand(model, terms, strength):
    """``λ/2 Σ_t Σ F_t (θ − θ_t*)²``, number by number; ``terms`` are pairs ``F_t``, ``θ_t*``."""
    total = 0.0
    for F_t, anchor in terms:
        for name in SHARED:
            theta = model.get_parameter(name).flatten().tolist()
            for f, now, then in zip(F_t[name].flatten().tolist(), theta, anchor[name].flatten().tolist(), strict=True):
                total += strength / 2 * f * (now - then) ** 2
    return total


# What the tests share.


def train(method, batches, epochs=2, lr=0.05, **settings):
    optimizer = optim.SGD(method.model.parameters(), lr=lr, **settings)
    method.guard(optimizer)
    losses = []
    for _ in range(epochs):
        for x, y in batches:

            def closure(x=x, y=y):
                optimizer.zero_grad()
                loss = F.cross_entropy(method.model(x), y)
                loss.backward()
                return loss

            losses.append(float(optimizer.step(closure).detach()))
    return losses

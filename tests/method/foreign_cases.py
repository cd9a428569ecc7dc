"""Two tasks, methods that protect the first one fully, and a loop in which others may change what they like."""

import torch
from torch import optim
from torch.nn.functional import cross_entropy

from codecl import API, CUBER, DFGP, GPM, SGP, TRGP, CodeCL
from tests.methods.cases import mlp, task_data

ONE, TWO = task_data(0, n=4, batch=2), task_data(1)  # four inputs: at most four directions in any layer
FULL = {
    "code-cl": lambda model: CodeCL(model, heads=["head"], aperture=1e8, free_dims=2, overlap=0.0),
    "gpm": lambda model: GPM(model, heads=["head"], threshold=1.0),
    "sgp": lambda model: SGP(model, heads=["head"], threshold=1.0, alpha=1e12),
    "trgp": lambda model: TRGP(model, heads=["head"], threshold=1.0, trust=0.0),
    "cuber": lambda model: CUBER(model, heads=["head"], threshold=1.0, agreement=1.0),
    "dfgp": lambda model: DFGP(model, heads=["head"], threshold=1.0),
    "api": lambda model: API(model, heads=["head"], threshold=1.0, rho=1.0, channels=2.0),
}


def one_task(make, dtype=torch.float64, **sgd):
    model = mlp(dtype=dtype)
    method = make(model)
    method.guard(optimizer := optim.SGD(model.parameters(), lr=0.05, **sgd))
    method.begin_task(0, ONE)
    watched(method, optimizer, ONE, lambda: None)
    method.end_task(ONE)
    return method, optimizer


def watched(method, optimizer, batches, after_step, term=lambda: 0.0, after_backward=lambda: None, epochs=12):
    for epoch in range(epochs):
        for x, y in method.watch(batches, epoch, epochs):
            optimizer.zero_grad()
            (cross_entropy(method.model(x), y) + term()).backward()
            after_backward()
            optimizer.step()
            after_step()


def watched_task(method, optimizer, after_step, epochs):
    """All of the second task but its beginning."""
    watched(method, optimizer, TWO, after_step, epochs=epochs)
    method.end_task(TWO)


def decay(model):
    return lambda: 5e-2 * sum(p.square().sum() for p in model.parameters())

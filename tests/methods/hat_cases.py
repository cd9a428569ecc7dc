"""Networks, pictures and a training loop for HAT, and masks that are exactly 0 or 1."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.methods.cases import CLASSES, seeded
from tests.methods.hat_reference import Residual, Stack


def pictures(task, shape, n=12, batch=5):
    """``n`` inputs and classes; the last batch is smaller."""
    X = torch.randn(n, *shape, generator=seeded(50 + task), dtype=torch.float64)
    y = torch.randint(0, CLASSES, (n,), generator=seeded(70 + task))
    return list(zip(X.split(batch), y.split(batch), strict=True))


def train(method, batches, optimizer, epochs=2):
    method.model.train()
    losses = []
    for epoch in range(epochs):
        for x, y in method.watch(batches, epoch, epochs):

            def closure(x=x, y=y):
                optimizer.zero_grad()
                loss = F.cross_entropy(method.model(x), y)
                loss.backward()
                return loss

            losses.append(float(optimizer.step(closure).detach()))
    return losses


def outputs(method, task, x):
    method.model.eval()
    with method.task(task), torch.no_grad():
        return method.model(x)


def harden(method, of=3):
    """The masks of the current task are exactly 0 or 1: a unit that all tasks share, and one of three others."""
    task = len(method.tasks) - 1
    for e in method.embeddings[-1].values():
        number = torch.arange(len(e))
        e.data = torch.where((number == 0) | (number % of == task), 6.0, -6.0).to(e.dtype)


class Norms(nn.Module):
    """A norm that keeps units apart, and two that mix them, after layers with biases."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Conv2d(2, 6, 3, padding=1)
        self.batch = nn.BatchNorm2d(6)
        self.b = nn.Conv2d(6, 4, 3, groups=2)
        self.group = nn.GroupNorm(2, 4)
        self.c = nn.Linear(16, 8)
        self.layer = nn.LayerNorm(8)
        self.d = nn.Linear(8, 6)
        self.head = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.sigmoid(self.batch(self.a(x)))
        x = self.group(F.elu(self.b(x))).relu()
        x = self.layer(self.c(x.view(x.size(0), -1)))
        return self.head(torch.tanh(self.d(x)))


NETWORKS = {"stack": (Stack, (2, 4, 4)), "norms": (Norms, (2, 4, 4)), "residual": (Residual, (2, 3, 3))}

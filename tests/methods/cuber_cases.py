"""A task of CUBER in which the only old one may gain."""

from torch import optim
from torch.nn.functional import cross_entropy

from codecl.methods import CUBER
from tests.methods.cases import FIRST, SECOND, mlp, task_data, train

SETTINGS = {"heads": ["head"], "threshold": 0.6, "trust": 0.05, "samples": None, "gradient_samples": None}


def gaining(momentum=0.0, weight_decay=0.0, **options):
    """A second task begun, with the first in R3 everywhere: what its gradient was agrees with the new one."""
    model = mlp()
    method = CUBER(model, **SETTINGS | options)
    optimizer = optim.SGD(model.parameters(), lr=0.1, momentum=momentum, weight_decay=weight_decay)
    method.guard(optimizer)
    method.begin_task(0, task_data(0))
    train(model, method.watch(task_data(0)), optimizer, epochs=1)
    method.end_task(task_data(0))
    method.past_gradients = [method.gradients(task_data(1))]
    method.begin_task(1, task_data(1))
    return method, optimizer


def step(method, optimizer, x, y):
    optimizer.zero_grad()
    cross_entropy(method.model(x), y).backward()
    optimizer.step()


def demote(method, names=(FIRST, SECOND)):
    """The gradient turns around in the layers ``names``, and an epoch ends."""
    for name in names:
        method.past_gradients[0][name].neg_()
    for _ in method.watch(task_data(1)):
        pass

"""Training loops of one's own around methods that keep samples, and the batches of a task."""

import torch

from tests.methods.replay_cases import mixed_batch


def own_loop(method, tasks, epochs=2, closure=False):
    optimizer = torch.optim.SGD(method.model.parameters(), lr=0.1)
    method.guard(optimizer)
    for t, loader in enumerate(tasks):
        method.begin_task(t)
        for _ in range(epochs):
            for batch in method.watch(loader):

                def loss(batch=batch):
                    optimizer.zero_grad()
                    value = method.objective(batch)
                    value.backward()
                    return value

                if closure:
                    optimizer.step(loss)
                else:
                    loss()
                    optimizer.step()
        method.end_task()


def batches(t, n=16, size=4):
    (x, y), _ = mixed_batch([t] * n, t)
    return list(zip(x.split(size), y.split(size), strict=True))


def steps(method, optimizer, loader, per_step=1, stop=None):
    """One pass of the user's: a step after every ``per_step`` batches, left after ``stop`` of them."""
    for i, batch in enumerate(method.watch(loader)):
        if i % per_step == 0:
            optimizer.zero_grad()
        method.objective(batch).backward()
        if i % per_step == per_step - 1:
            optimizer.step()
        if stop is not None and i + 1 == stop:
            break

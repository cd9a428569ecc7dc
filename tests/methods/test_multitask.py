"""Joint training against a literal loop: one shuffled set of all tasks, every sample by the head of its task."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.testing import assert_close

from codecl.methods.multitask import Multitask
from codecl.networks import MultiHead
from codecl.randomness import generator, seeded
from codecl.training.check import CHECKS, check_method
from codecl.training.engine import Plan, Trainer
from codecl.training.stream import Stream, Task, Tensors

WIDTHS, COUNTS = (3, 2, 4), (20, 33, 15)
PLAN = Plan(epochs=4, batch_size=16, lr=4.0, patience=1, factor=2.0, min_lr=0.6, evaluation_batch=10, seed=2)


def stream():
    made = []
    for t, (width, count) in enumerate(zip(WIDTHS, COUNTS, strict=True)):
        draw = torch.Generator().manual_seed(t)
        teacher = torch.randn(5, width, generator=draw, dtype=torch.float64)
        inputs = [torch.randn(n, 5, generator=draw, dtype=torch.float64) for n in (count, 4 + 3 * t, 12)]
        made.append(Task(f"task {t}", width, *(Tensors(x, (x @ teacher).argmax(1)) for x in inputs)))
    return Stream("three", made)


def network():
    with seeded(PLAN.seed, "init"):
        return MultiHead(nn.Sequential(nn.Linear(5, 8), nn.Tanh()), 8, WIDTHS).double()


def literal():
    """Weights, the row of accuracies, and the pooled validation loss of every epoch."""
    model, tasks = network(), stream().tasks
    for t in (1, 2):
        with seeded(PLAN.seed, "init", t):
            model.select(t)
    samples = [
        (x, y, t) for t, task in enumerate(tasks) for x, y in zip(task.train.inputs, task.train.labels, strict=True)
    ]
    lr, best, kept, bad, losses = PLAN.lr, None, None, 0, []
    for epoch in range(PLAN.epochs):
        order = torch.randperm(len(samples), generator=generator(PLAN.seed, "order", 2, epoch)).tolist()
        for begin in range(0, len(order), PLAN.batch_size):
            chosen = [samples[i] for i in order[begin : begin + PLAN.batch_size]]
            total = 0.0
            for x, y, t in chosen:
                total = total + F.cross_entropy(model.heads[t](model.backbone(x[None])), y[None])
            found = torch.autograd.grad(total / len(chosen), list(model.parameters()), allow_unused=True)
            with torch.no_grad():
                for parameter, gradient in zip(model.parameters(), found, strict=True):
                    if gradient is not None:
                        parameter.sub_(lr * gradient)
        with torch.no_grad():
            total, count = 0.0, 0
            for t, task in enumerate(tasks):
                logits = model.heads[t](model.backbone(task.validation.inputs))
                total += float(F.cross_entropy(logits, task.validation.labels, reduction="sum"))
                count += len(logits)
        losses.append(total / count)
        if best is None or losses[-1] < best:
            best, kept, bad = losses[-1], copy.deepcopy(model.state_dict()), 0
            continue
        bad += 1
        if bad == PLAN.patience:
            lr, bad = lr / PLAN.factor, 0
            if lr < PLAN.min_lr:
                break
    model.load_state_dict(kept)
    row = []
    for t, task in enumerate(tasks):
        right = model.heads[t](model.backbone(task.test.inputs)).argmax(1) == task.test.labels
        row.append(100 * int(right.sum()) / len(right))
    return model.state_dict(), row, losses


def test_joint_training_is_the_literal_loop():
    events = []
    trainer = Trainer(Multitask(network()), stream(), PLAN, None, (events.append,))
    progress = trainer.run()
    weights, row, losses = literal()
    assert progress.accuracy == [row]
    assert progress.epochs == [len(losses)]
    assert [e["validation_loss"] for e in events if e["event"] == "epoch"] == pytest.approx(losses, rel=1e-9)
    assert trainer.model.state_dict().keys() == weights.keys()
    for name, value in weights.items():
        assert_close(trainer.model.state_dict()[name], value, atol=1e-9, rtol=1e-9, msg=name)
    assert min(losses) < losses[-1]  # the best epoch was restored


def test_one_task_alone_is_a_plain_batch():
    method, (x, y) = Multitask(network()), stream().tasks[1].train.take(torch.arange(7))
    method.begin_task("first")
    method.begin_task("second")
    assert method.tasks == ["first", "second"]
    assert_close(method.objective((x, y)), F.cross_entropy(method.model.heads[1](method.model.backbone(x)), y))
    mixed = method.objective((x, y, torch.ones(7, dtype=torch.int64)))
    assert_close(mixed, method.objective((x, y)))


def test_a_loop_of_ones_own_trains_all_heads_and_keeps_nothing():
    method = Multitask(network())
    for t in range(3):
        method.begin_task(t)
    optimizer = torch.optim.SGD(method.model.parameters(), lr=0.1)
    method.guard(optimizer)
    before = [head.weight.detach().clone() for head in method.model.heads]
    taken = [task.train.take(torch.arange(6)) for task in stream().tasks]
    batch = torch.cat([x for x, _ in taken]), torch.cat([y for _, y in taken]), torch.arange(3).repeat_interleave(6)
    method.objective(batch).backward()
    optimizer.step()
    method.end_task()
    assert all(not torch.equal(old, head.weight) for old, head in zip(before, method.model.heads, strict=True))
    assert method.bytes() == {"memory": 0, "per_task": 0}
    with method.task(0):
        assert method.model(batch[0]).shape == (18, WIDTHS[0])


def test_named_heads_are_refused():
    with pytest.raises(ValueError, match=r"multitask trains the heads of several tasks at a time.*MultiHead"):
        Multitask(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)), heads=["1"])


@pytest.mark.slow
def test_it_keeps_every_promise():
    assert len(check_method(Multitask)) == len(CHECKS)

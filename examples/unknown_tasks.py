"""Digits whose pixels are shuffled anew now and then, and nobody says when, nor which shuffling an input has.

A stream of small batches is all there is. Where most of a batch is unlikely under every task so far, a new task begins;
at the end every test input is answered without its task being told.

    python examples/unknown_tasks.py
"""

import torch
from common import train
from quickstart import Network, tasks
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from codecl import CodeCL

EPOCHS, BATCH, SEED = 15, 32, 0


def unmarked_stream() -> list[tuple[Tensor, Tensor]]:
    """The batches of all tasks, one task after the other, without a word about where one ends."""
    batches = []
    for learn, _ in tasks():
        batches += list(DataLoader(learn, batch_size=BATCH, drop_last=True))
    return [(x, y) for x, y in batches]


def segments(method: CodeCL, stream: list[tuple[Tensor, Tensor]]) -> int:
    """Learn the stream; a batch that is mostly new to every learned task begins another. Returns how many began."""
    waiting = list(stream)
    while waiting:
        own = [waiting.pop(0)]
        reference = CodeCL(Network(), heads=["classifier"], evidence=["hidden1.weight"])  # what the new task looks like
        reference.begin_task("new", own)
        enough = 8
        own += [waiting.pop(0) for _ in range(min(enough, len(waiting)))]
        reference.end_task(own)
        while waiting and reference.novelty([waiting[0]]) < 0.5:
            own.append(waiting.pop(0))
        learn_task(method, own)
    return len(method.tasks)


def learn_task(method: CodeCL, batches: list[tuple[Tensor, Tensor]]) -> None:
    optimizer = torch.optim.SGD(method.model.parameters(), lr=0.1)
    method.guard(optimizer)
    method.begin_task(len(method.tasks), batches)
    data = TensorDataset(torch.cat([x for x, _ in batches]), torch.cat([y for _, y in batches]))
    train(method.model, DataLoader(data, batch_size=BATCH, shuffle=True), optimizer, EPOCHS)
    method.end_task(batches)


def main() -> None:
    torch.manual_seed(SEED)
    method = CodeCL(Network(), heads=["classifier"], aperture=16.0, free_dims=20, samples=None, evidence="auto")
    stream = unmarked_stream()
    print(f"{len(stream)} batches; {segments(method, stream)} tasks found, {len(tasks())} there were")
    for t, (_, test) in enumerate(tasks()):
        x, y = test.tensors
        answer = method.predict(x)
        right_task, right = (answer.task == t).double().mean(), (answer.label == y).double().mean()
        print(f"task {t + 1}: inferred for {100 * right_task:.1f} % of the inputs, {100 * right:.1f} % answered right")


if __name__ == "__main__":
    main()

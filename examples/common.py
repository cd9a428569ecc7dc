"""What the examples share: an ordinary training loop, accuracy, and the table they print."""

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from codecl import CodeCL, Method

Rows = list[list[float]]
"""``rows[i][j]``: the accuracy on task j after learning task i."""


def train(model: nn.Module, loader: DataLoader, optimizer: torch.optim.Optimizer, epochs: int) -> None:
    """An ordinary training loop: nothing in it knows of codecl."""
    model.train()
    for _ in range(epochs):
        for x, y in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()


@torch.no_grad()
def accuracy(model: nn.Module, data: TensorDataset) -> float:
    """In percent."""
    model.eval()
    x, y = data.tensors
    return 100 * float((model(x).argmax(1) == y).float().mean())


def accuracies(method: Method, tests: Sequence[TensorDataset]) -> list[float]:
    """On each task learned so far, whose test parts are given in that order."""
    found = []
    for task, test in zip(method.tasks, tests, strict=True):
        with method.task(task):  # the network, and the head, as that task knows them
            found.append(accuracy(method.model, test))
    return found


def compare(tasks: Sequence[str], learn_all: Callable[..., Rows], settings: Mapping[str, object]) -> None:
    """Learn ``tasks`` by fine-tuning and by CODE-CL with ``settings``, and print a row for each."""
    torch.set_num_threads(1)  # the networks are tiny: a second thread would only wait
    width = max(14, *(len(name) + 2 for name in tasks))
    print("Accuracy in % after the last task (and when it had just been learned)\n")
    print(f"{'':<14}" + "".join(f"{name:<{width}}" for name in tasks) + "ACC     BWT")
    for label, method, its_settings in (("fine-tuning", Method, {}), ("CODE-CL", CodeCL, settings)):
        rows = learn_all(method, **its_settings)
        last, learned = rows[-1], [row[-1] for row in rows]
        cells = "".join(f"{f'{now:5.1f} ({then:5.1f})':<{width}}" for now, then in zip(last, learned, strict=True))
        lost = [now - then for now, then in zip(last[:-1], learned[:-1], strict=True)]
        print(f"{label:<14}{cells}{sum(last) / len(last):5.1f}  {sum(lost) / max(1, len(lost)):+6.1f}")
    print("\nACC: mean of the last accuracies. BWT: what earlier tasks lost (−) or gained (+) since they were learned.")

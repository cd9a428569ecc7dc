"""Five tasks on real handwritten digits, learned one after the other: plain fine-tuning beside CODE-CL.

Each task shows the digits with their pixels shuffled in another way, so that what one task needs, the next one
overwrites. The network and the training loop are a user's own; what CODE-CL adds to them are the four lines marked
with an arrow.

    python examples/quickstart.py
"""

import torch
from common import Rows, accuracies, compare, train
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from codecl import Method

TASKS, EPOCHS, SEED = 5, 15, 0


def tasks() -> list[tuple[TensorDataset, TensorDataset]]:
    """Training and test part of every task: 1,797 digits of 8 × 8 pixels, permuted in the task's own way."""
    digits = load_digits()
    x, y = torch.tensor(digits.data, dtype=torch.float32) / 16, torch.tensor(digits.target)
    generator = torch.Generator().manual_seed(SEED)
    order = torch.randperm(len(y), generator=generator)
    train, test = order[:1437], order[1437:]
    parts = []
    for _ in range(TASKS):
        seen = x[:, torch.randperm(64, generator=generator)]
        parts.append((TensorDataset(seen[train], y[train]), TensorDataset(seen[test], y[test])))
    return parts


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.hidden1 = nn.Linear(64, 128)
        self.hidden2 = nn.Linear(128, 128)
        self.classifier = nn.Linear(128, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.classifier(self.hidden2(self.hidden1(x).relu()).relu())


def learn_all(make_method: type[Method], **settings: object) -> Rows:
    """``rows[i][j]``: the accuracy on task j after learning task i."""
    torch.manual_seed(SEED)
    model = Network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    method = make_method(model, heads=["classifier"], **settings)  # ←
    method.guard(optimizer)  # ←
    rows: Rows = []
    stream = tasks()
    for t, (learn, _) in enumerate(stream):
        loader = DataLoader(learn, batch_size=32, shuffle=True)
        method.begin_task(t, loader)  # ←
        train(model, loader, optimizer, EPOCHS)
        method.end_task(loader)  # ←
        rows.append(accuracies(method, [test for _, test in stream[: t + 1]]))
    return rows


def main() -> None:
    compare([f"task {t + 1}" for t in range(TASKS)], learn_all, {"aperture": 16.0, "free_dims": 20})


if __name__ == "__main__":
    main()

"""A small network, stream and plan to train with, and a literal evaluation to compare with."""

import torch
import torch.nn.functional as F
from torch import nn

from codecl import Method
from codecl.networks import MultiHead
from codecl.randomness import seeded
from codecl.training.engine import Trainer
from codecl.training.plan import Plan
from codecl.training.stream import Stream, Task, Tensors

PLAN = Plan(epochs=7, batch_size=8, lr=0.3, patience=1, factor=2.0, min_lr=0.1, evaluation_batch=7, seed=3)


class Backbone(nn.Module):
    """Dropout, and norms with and without running statistics: order, masks and batch composition all matter."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(6, 10), nn.Linear(10, 8, bias=False)
        self.norm, self.batch_norm = nn.BatchNorm1d(10), nn.BatchNorm1d(8, track_running_stats=False)
        self.dropout = nn.Dropout(0.25)

    def forward(self, x):
        return self.batch_norm(self.second(self.dropout(self.norm(self.first(x)).relu()))).relu()


def network(seed=PLAN.seed):
    with seeded(seed, "init"):
        return MultiHead(Backbone(), 8, 3, bias=True)


def small_stream(tasks=3, wrap=lambda x, y: Tensors(x, y)):
    made = []
    for t in range(tasks):
        draw = torch.Generator().manual_seed(t)
        teacher = torch.randn(6, 3, generator=draw)
        inputs = [torch.randn(count, 6, generator=draw) for count in (45, 20, 30)]
        made.append(Task(f"task {t}", 3, *(wrap(x, (x @ teacher).argmax(1)) for x in inputs)))
    return Stream("small", made)


class Recording(Tensors):
    """A part that notes what is taken from it."""

    def __init__(self, x, y):
        super().__init__(x, y)
        object.__setattr__(self, "taken", [])

    def take(self, indices):
        self.taken.append(indices.tolist())
        return super().take(indices)


def train(make=Method, stream=None, plan=PLAN, store=None, observers=()):
    trainer = Trainer(make(network(plan.seed)), stream or small_stream(), plan, store, observers)
    trainer.run()
    return trainer


def assert_same_bits(ours, theirs):
    assert ours.keys() == theirs.keys()
    for name in ours:
        assert torch.equal(ours[name], theirs[name]), name


def differ(ours, theirs):
    return any(not torch.equal(ours[name], theirs[name]) for name in ours)


def literal_evaluation(model, part, plan):
    model.eval()
    loss, right = 0.0, 0
    with torch.no_grad():
        for begin in range(0, len(part.labels), plan.evaluation_batch):
            rows = list(range(begin, min(begin + plan.evaluation_batch, len(part.labels))))
            x, y = part.inputs[rows], part.labels[rows]  # copies: a slice is aligned otherwise, which moves last bits
            logits = model(x)
            loss += F.cross_entropy(logits, y, reduction="sum").item()
            right += sum(int(row.argmax() == label) for row, label in zip(logits, y, strict=True))
    return loss / len(part.labels), 100 * right / len(part.labels)

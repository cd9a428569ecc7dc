"""Three small tasks, and the loop of the README, which every trainer must agree with."""

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.testing import assert_close
from torch.utils.data import DataLoader, TensorDataset

from codecl import CodeCL

TASKS, BATCHES, BATCH = 3, 5, 8
SETTINGS = {"heads": ["head"], "aperture": 1e4, "free_dims": 4, "overlap": 0.1, "samples": 40}


class Network(nn.Module):
    """Says its loss where labels are given, as Hugging Face models do."""

    def __init__(self, dropout=0.0):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Dropout(dropout), nn.Linear(16, 16), nn.ReLU())
        self.head = nn.Linear(16, 3)

    def forward(self, x, labels=None):
        logits = self.head(self.body(x))
        return logits if labels is None else {"loss": cross_entropy(logits, labels), "logits": logits}


def network(dropout=0.0):
    torch.manual_seed(0)
    return Network(dropout)


def attach(model):
    """CODE-CL as the tests use it; ``x`` and labels come as a pair, or by name."""
    return CodeCL(model, forward=lambda model, batch: model(inputs(batch)), **SETTINGS)


def inputs(batch):
    return batch["x"] if isinstance(batch, dict) else batch[0]


def dataset(task):
    """Inputs of a few dimensions, most of them shared, so that something is protected, free, and freed again."""
    g = torch.Generator().manual_seed(100 + task)
    x = torch.randn(BATCHES * BATCH, 4, generator=g) @ torch.randn(4, 4, generator=g)
    x = torch.nn.functional.pad(x, (2 * task, 8 - 2 * task))
    return TensorDataset(x, torch.randint(0, 3, (len(x),), generator=g))


def loader(task):
    return DataLoader(dataset(task), batch_size=BATCH)


def outputs(method, task):
    """What the network as ``task`` knows it says to the inputs of the task."""
    method.model.eval()
    with torch.no_grad(), method.task(task):
        return method.model(dataset(task).tensors[0])


def learn_all(make_optimizer, epochs=2, clip=None):
    """The loop of the README: the method after all tasks, and the first task's outputs after each."""
    model = network()
    method, kept = attach(model), []
    for t in range(TASKS):
        optimizer = make_optimizer(model)
        method.guard(optimizer)
        method.begin_task(t, loader(t))
        assert bool(method.effective) == (t > 0)  # every task after the first frees directions, and trains them
        model.train()
        for _ in range(epochs):
            for x, y in loader(t):
                optimizer.zero_grad()
                cross_entropy(model(x), y).backward()
                if clip is not None:
                    nn.utils.clip_grad_norm_([*model.parameters(), *method.parameters()], clip)
                optimizer.step()
        method.end_task(loader(t))
        kept.append(outputs(method, 0))
    return method, kept


def assert_same(method, expected):
    """All weights and all that the methods remember are the same, bit for bit."""
    assert_equal(method.model.state_dict(), expected.model.state_dict())
    assert_equal(method.state_dict(), expected.state_dict())


def assert_equal(one, other):
    """Nested dicts and lists of tensors, numbers and texts are the same."""
    assert type(one) is type(other)
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        one, other = list(one.values()), list(other.values())
    if isinstance(one, (list, tuple)):
        assert len(one) == len(other)
        for a, b in zip(one, other, strict=True):
            assert_equal(a, b)
    elif isinstance(one, torch.Tensor):
        assert_close(one, other, rtol=0, atol=0)
    else:
        assert one == other


def assert_held(kept):
    """The outputs of the first task after each task; what the network learned meanwhile is for the other tests."""
    for later in kept[1:]:
        assert_close(later, kept[0], rtol=0, atol=1e-5)

"""What the model does beside its weights: other uses in training, buffers of its own, another dtype, rounding."""

import copy

import pytest
import torch
from torch import nn, optim
from torch.nn.functional import cross_entropy, dropout, linear

import codecl.method.per_task as per_task
from codecl import GPM, TRGP, CodeCL, MultiHead, ProtectionWarning, UnseenUse
from tests.methods.cases import drift, inputs, mlp, outputs_of, task_data, train

ONE, TWO = task_data(0, n=4, batch=2), task_data(1)


class DropConnect(nn.Module):
    """Uses its weight by itself in training."""

    def __init__(self):
        super().__init__()
        self.first, self.head = nn.Linear(8, 6, bias=False), nn.Linear(6, 3)

    def forward(self, x):
        if self.training:
            return self.head(linear(x, dropout(self.first.weight, 0.5)))
        return self.head(self.first(x))


def test_a_use_in_training_alone_is_refused_before_anything_is_trained():
    model = DropConnect().double()
    method = GPM(model, heads=["head"])
    state = torch.get_rng_state()
    with pytest.raises(UnseenUse, match=r"'first.weight' is used by dropout outside a call of 'first'"):
        method.begin_task(0, ONE)
    assert torch.equal(torch.get_rng_state(), state)
    method = GPM(DropConnect().double(), heads=["head"])
    method.begin_task(0)
    with pytest.raises(UnseenUse, match="outside a call"):
        method.end_task(ONE)


def test_looking_at_training_leaves_statistics_alone():
    model = nn.Sequential(nn.Linear(8, 6), nn.BatchNorm1d(6), nn.Linear(6, 3)).double()
    method = GPM(model, heads=["2"])
    before = copy.deepcopy(model.state_dict())
    method.begin_task(0, [(torch.ones(1, 8, dtype=torch.float64), torch.zeros(1))])  # too few for a batch norm
    method.end_task(ONE)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert model.training


class OwnNorm(nn.Module):
    """A batch norm without parameters, and a code book that follows its inputs."""

    def __init__(self):
        super().__init__()
        self.first, self.head = nn.Linear(8, 6, bias=False), nn.Linear(6, 3)
        self.register_buffer("mean", torch.zeros(6))
        self.register_buffer("code", torch.zeros(6))
        self.register_buffer("table", torch.ones(2, 2))

    def forward(self, x):
        x = self.first(x)
        if self.training:
            self.mean.lerp_(x.detach().mean(0), 0.1)
            self.code = self.code + 0.1 * x.detach().abs().mean(0)
        return self.head((x - self.mean).tanh() + self.code)


@pytest.mark.parametrize("make", [GPM, CodeCL])
def test_buffers_of_the_model_belong_to_the_task_that_made_them(make):
    model = OwnNorm().double()
    method = make(model, heads=["head"], **{"threshold": 1.0} if make is GPM else {"aperture": 1e8, "free_dims": 0})
    method.guard(optimizer := optim.SGD(model.parameters(), lr=0.1))
    method.begin_task(0, ONE)
    train(model, ONE, optimizer)
    method.end_task(ONE)
    model.eval()
    before = outputs_of(method, 0, inputs(ONE))
    model.train()
    method.begin_task(1, TWO)
    train(model, TWO, optimizer)
    with pytest.warns(ProtectionWarning, match=r"the buffers \['mean', 'code'\] changed.*buffers='hold'"):
        method.end_task(TWO)
    model.eval()
    assert drift(outputs_of(method, 0, inputs(ONE)), before) < 1e-9
    again = make(OwnNorm().double(), heads=["head"])
    again.model.load_state_dict(model.state_dict())
    again.load_state_dict(method.state_dict())
    again.model.eval()
    assert torch.equal(outputs_of(again, 0, inputs(ONE)), outputs_of(method, 0, inputs(ONE)))
    assert method.per_task.stored[0]["table"] is method.per_task.stored[1]["table"]


def test_buffers_may_go_on():
    model = OwnNorm().double()
    method = GPM(model, heads=["head"], buffers="free")
    assert list(method.per_task.values()) == ["head.weight", "head.bias"]
    with pytest.raises(ValueError, match="buffers must be 'hold' or 'free'; got 'per-task'"):
        GPM(mlp(), buffers="per-task")


MOVABLE = {
    "gpm": lambda model: GPM(model, heads=["head"]),
    "trgp": lambda model: TRGP(model, heads=["head"], trust=0.0),
    "code-cl": lambda model: CodeCL(model, heads=["head"], free_dims=2, overlap=0.0),
}


@pytest.mark.parametrize("name", MOVABLE)
def test_the_model_may_go_to_another_dtype_between_tasks(name):
    model = mlp(dtype=torch.float32)
    method = MOVABLE[name](model)
    data = [task_data(task, dtype=torch.float32) for task in range(3)]
    for task in (0, 1):
        method.begin_task(task, data[task])
        method.guard(optimizer := optim.SGD(model.parameters(), lr=0.05))
        train(model, data[task], optimizer, epochs=2)
        method.end_task(data[task])
    before = [outputs_of(method, task, inputs(data[task])) for task in (0, 1)]
    model.double()
    for task in (0, 1):
        found = outputs_of(method, task, inputs(data[task]).double())
        torch.testing.assert_close(found, before[task].double(), rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(method.export(task)(inputs(data[task]).double()).detach(), found)
    wide = [(x.double(), y) for x, y in data[2]]
    X = inputs(data[1])
    model.float()
    narrow = model(X).detach()  # on what the last task sees
    model.double()
    torch.testing.assert_close(model(X.double()).detach(), narrow.double(), rtol=1e-5, atol=1e-5)
    method.begin_task(2, wide)
    method.guard(optimizer := optim.SGD(model.parameters(), lr=0.05))
    train(model, wide, optimizer, epochs=2)
    method.end_task(wide)
    U = method.memory["first.weight"][0].basis
    assert method.weights["first.weight"].projection(U.mT[None]).dtype == torch.float64


@pytest.mark.parametrize("width", [8, 64])
def test_an_adaptive_optimizer_makes_no_steps_of_rounding(width):
    """Every input is protected, so nothing but rounding is left of the gradient."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(width, 16, bias=False), nn.Tanh(), nn.Linear(16, 3))
    x, y = torch.randn(width // 2, width), torch.randint(3, (width // 2,))
    method = GPM(model, heads=["2"], threshold=1.0)
    method.begin_task(0, [(x, y)])
    method.end_task([(x, y)])
    method.begin_task(1, [(x, y)])
    method.guard(optimizer := optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.0))
    before = model[0].weight.detach().clone()
    for _ in range(100):
        optimizer.zero_grad()
        cross_entropy(model(x), y).backward()
        optimizer.step()
    assert torch.equal(model[0].weight, before)
    cross_entropy(model(x + 0.01 * torch.randn_like(x)), y).backward()
    optimizer.step()
    assert not torch.equal(model[0].weight, before)  # what is there to learn is learned


def test_a_switch_of_tasks_walks_over_no_modules(monkeypatch):
    """With a head for every task, a walk over all modules would be as long as the tasks are many."""
    backbone = nn.Sequential(nn.Linear(8, 6), nn.BatchNorm1d(6))
    method = GPM(MultiHead(backbone, 6, 3).double(), norm="per-task")
    for task in range(5):
        method.begin_task(task, ONE)
        method.end_task(ONE)
    with method.task(0):
        pass

    def never(module):
        raise AssertionError("walked")

    monkeypatch.setattr(per_task, "is_norm", never)
    monkeypatch.setattr(nn.Module, "named_modules", never)
    for task in range(5):
        with method.task(task):
            pass

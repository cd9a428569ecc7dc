"""Which layers of API get more inputs, how many, and what these start from; measuring leaves no trace."""

import copy
from collections import OrderedDict

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from codecl.methods.api import API
from tests.methods.api_cases import EXACT, TIGHT
from tests.methods.cases import CLASSES, drift, mlp, outputs_of, task_data, train


@pytest.mark.parametrize(
    ("rho", "channels", "retained", "expected"),
    [
        (0.5, 10, [0.5], 0),
        (0.5, 10, [0.7], 0),
        (0.5, 10, [0.45], 1),
        (0.5, 10, [0.39], 2),
        (0.5, 10, [0.0], 5),
        (0.5, 3, [0.1], 2),
        (1.0, 100, [0.1], 8),  # no more than there are
        (0.5, 0, [0.1], 0),
    ],
)
def test_how_many_inputs_are_added(monkeypatch, rho, channels, retained, expected):
    method = API(mlp(), heads=["head"], rho=rho, channels=channels)
    method.begin_task(0, task_data(0))
    method.end_task(task_data(0))
    monkeypatch.setattr(method, "_retained", lambda _: {"first.weight": torch.tensor(retained)})
    method.begin_task(1, task_data(1))
    assert [Phi.shape[2] for Phi in method.Phi["first.weight"]] == ([expected] if expected else [])


def convolutional(kind, size):
    """A grouped convolution of kernel 2 over images of ``size`` to each side."""
    torch.manual_seed(3)
    conv = kind(4, 4, 2, groups=2)
    axes = conv.weight.ndim - 2
    head = nn.Linear(4 * (size - 1) ** axes, CLASSES)
    model = nn.Sequential(OrderedDict(conv=conv, tanh=nn.Tanh(), flat=nn.Flatten(), head=head)).double()
    x = torch.randn(3, 1, 4, *[size] * axes, dtype=torch.float64)
    return model, [[(image, torch.tensor([task]))] for task, image in enumerate(x)]


def test_all_groups_get_as_many_as_the_one_that_needs_most(monkeypatch):
    model, tasks = convolutional(nn.Conv2d, 4)
    method = API(model, heads=["head"])
    method.begin_task(0, tasks[0])
    method.end_task(tasks[0])
    monkeypatch.setattr(method, "_retained", lambda _: {"conv.weight": torch.tensor([0.45, 0.35])})
    method.begin_task(1, tasks[1])
    assert [Phi.shape for Phi in method.Phi["conv.weight"]] == [(2, 2, 2)]
    assert [V.shape for V in method.weights["conv.weight"].columns] == [(2, 2, 2 * 4)]


@pytest.mark.parametrize(("kind", "axes"), [(nn.Conv1d, 1), (nn.Conv3d, 3)])
def test_kernels_of_one_and_three_axes(kind, axes):
    """Φ starts from Frobenius norms, and old outputs stay."""
    model, tasks = convolutional(kind, 3)
    method = API(model, **TIGHT)
    method.guard(optimizer := torch.optim.SGD(model.parameters(), lr=0.5))
    expected = {}
    for task, batches in enumerate(tasks):
        x = batches[0][0]
        method.begin_task(task, batches)
        if task == 1:
            patches = x[0, :2]  # the channels of the first group
            for axis in range(axes):
                patches = patches.unfold(1 + axis, 2, 1)
            U = torch.linalg.svd(patches.reshape(2, -1, 2**axes).norm(dim=2))[0]
            Phi = method.Phi["conv.weight"][0][0].detach()
            U = U[:, : Phi.shape[1]]
            assert_close(Phi, U * (U * Phi).sum(0).sign(), **EXACT)
        train(model, batches, optimizer, epochs=3)
        method.end_task(batches)
        expected[task] = outputs_of(method, task, x)
        assert_close(method.export(task)(x), expected[task], **EXACT)
    assert len(method.weights["conv.weight"].columns) == 2
    for task in range(2):
        assert drift(outputs_of(method, task, tasks[task][0][0]), expected[task]) < 1e-9


def test_new_columns_are_drawn_as_torch_draws_a_layer_and_from_a_stream_of_their_own():
    drawn = []
    for seed in (0, 0, 1):
        method = API(mlp(), seed=seed, **TIGHT)
        method.begin_task(0, task_data(0))
        method.end_task(task_data(0))
        torch.manual_seed(len(drawn))
        method.begin_task(1, task_data(1))
        drawn.append(method.weights["first.weight"].columns[0].detach())
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])
    bound = (8 + drawn[0].shape[2]) ** -0.5
    assert 0.8 * bound < drawn[0].abs().max() <= bound


def test_mixtures_are_filled_up_where_the_inputs_have_few_directions():
    model = nn.Sequential(OrderedDict(a=nn.Linear(5, 4), tanh=nn.Tanh(), head=nn.Linear(4, CLASSES))).double()
    one = torch.arange(1.0, 6.0, dtype=torch.float64)
    batches = [(torch.stack([one, -2 * one, 3 * one]), torch.tensor([0, 1, 2]))]
    method = API(model, **TIGHT)
    for task in range(2):
        method.begin_task(task, batches)
        if task == 0:
            method.end_task(batches)
    Phi = method.Phi["a.weight"][0][0].detach()
    assert Phi.shape == (5, 4)  # all of the gradient is lost
    assert_close(Phi.mT @ Phi, torch.eye(4, dtype=torch.float64))
    assert_close(Phi[:, 0].abs(), one / one.norm())


class Watched(nn.Module):
    """Dropout, running statistics, and a record of the mode of every call."""

    def __init__(self):
        super().__init__()
        self.first, self.norm, self.drop = nn.Linear(8, 6), nn.BatchNorm1d(6), nn.Dropout(0.5)
        self.head = nn.Linear(6, CLASSES)
        self.modes = []

    def forward(self, x):
        self.modes.append(self.training)
        return self.head(self.drop(self.norm(self.first(x)).relu()))


def begun_twice(loader, **settings):
    torch.manual_seed(0)
    method = API(Watched().double(), **TIGHT, **settings)
    method.begin_task(0, task_data(0))
    method.end_task(task_data(0))
    method.model.eval()
    return method, lambda: method.begin_task(1, loader)


def test_measuring_runs_in_training_mode_and_leaves_no_trace():
    method, begin = begun_twice(task_data(1), norm="per-task", bias="per-task")
    before, random = copy.deepcopy(method.model.state_dict()), torch.get_rng_state()
    method.model.modes.clear()
    begin()
    assert True in method.model.modes
    assert not any(module.training for module in method.model.modules())
    assert torch.equal(random, torch.get_rng_state())
    for name, value in method.model.state_dict().items():
        assert torch.equal(value, before[name]), name
    assert all(parameter.grad is None for parameter in method.model.parameters())


def test_the_batches_may_come_from_a_generator_and_dropout_from_its_own_stream():
    of_list, begin = begun_twice(task_data(1), warm_up=2)
    begin()
    of_generator, begin = begun_twice((batch for batch in task_data(1)), warm_up=2)
    torch.manual_seed(7)
    begin()
    for name, value in of_list.model.state_dict().items():
        assert torch.equal(value, of_generator.model.state_dict()[name]), name
    assert_close(list(of_list.Phi["first.weight"]), list(of_generator.Phi["first.weight"]), rtol=0, atol=0)


def test_closed_weights_get_no_more_inputs():
    method = API(mlp(), closed=["second*"], **TIGHT)
    for task in range(2):
        method.begin_task(task, task_data(task))
        method.end_task(task_data(task))
    assert {name: len(weight.columns) for name, weight in method.weights.items()} == {
        "first.weight": 1,
        "second.weight": 0,
    }

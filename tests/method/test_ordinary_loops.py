"""Ordinary habits of training loops do not move old outputs in silence: each is projected, or refused by name."""

import copy

import pytest
import torch
from torch import optim
from torch.nn.functional import cross_entropy

from codecl import CodeCL, UnsafeOptimizer
from codecl.networks import AlexNet
from tests.methods.cases import drift, inputs, mlp, outputs_of, task_data, train

FULL = {"heads": ["head"], "aperture": 1e6, "free_dims": 0}
ONE, TWO = task_data(0, n=4, batch=2), task_data(1)  # four inputs: at most four directions in any layer


def one_task(**settings):
    model = mlp()
    method = CodeCL(model, **FULL | settings)
    method.guard(optimizer := optim.SGD(model.parameters(), lr=0.1))
    method.begin_task(0, ONE)
    train(model, ONE, optimizer, epochs=2)
    method.end_task(ONE)
    return method, optimizer


@pytest.mark.parametrize(
    "make",
    [lambda p: optim.AdamW(p, lr=0.01), lambda p: optim.SGD(p, lr=0.1, weight_decay=0.1)],
    ids=["AdamW", "SGD with decay"],
)
def test_a_group_that_joins_after_guard_is_guarded(make):
    method, _ = one_task()
    before, model = outputs_of(method, 0, inputs(ONE)), method.model
    method.guard(optimizer := make(list(model.head.parameters())))
    method.begin_task(1, TWO)
    optimizer.add_param_group({"params": [model.first.weight, model.second.weight]})  # gradual unfreezing
    first = model.first.weight.detach().clone()
    train(model, TWO, optimizer, epochs=5)
    assert not torch.equal(model.first.weight, first)
    method.end_task(TWO)
    assert drift(outputs_of(method, 0, inputs(ONE)), before) < 1e-6


def test_what_a_task_adds_joins_with_the_group_of_its_weight():
    method, _ = one_task(free_dims=3, overlap=0.0, aperture=3.0)
    method.guard(optimizer := optim.SGD(method.model.head.parameters(), lr=0.1))
    method.begin_task(1, TWO)
    assert list(method.effective)
    optimizer.add_param_group({"params": [method.model.first.weight, method.model.second.weight]})
    train(method.model, TWO, optimizer, epochs=1)
    assert all(bool((M != 0).any()) for M in method.parameters())


def test_a_second_optimizer_that_is_not_guarded_is_refused():
    method, optimizer = one_task()
    method.begin_task(1, TWO)
    other = optim.AdamW([method.model.first.weight], lr=0.01)
    (x, y), *_ = TWO
    cross_entropy(method.model(x), y).backward()
    kept = method.model.first.weight.detach().clone()
    with pytest.raises(UnsafeOptimizer, match=r"AdamW trains 'first.weight'.*not guarded.*method\.guard"):
        other.step()
    assert torch.equal(method.model.first.weight, kept)
    optimizer.step()
    method.detach()
    other.step()  # nobody's any more


def test_optimizers_of_other_models_step_as_they_like():
    method, _ = one_task()
    method.begin_task(1, TWO)
    elsewhere = torch.nn.Linear(3, 2)
    elsewhere(torch.ones(1, 3)).sum().backward()
    optim.Adam(elsewhere.parameters()).step()


def test_parameters_that_were_replaced_are_noticed():
    method, _ = one_task()
    model = method.model
    model.load_state_dict(copy.deepcopy(model.state_dict()), assign=True)
    with pytest.raises(RuntimeError, match=r"were replaced after the method was attached, 'first.weight'.*assign=True"):
        method.guard(optim.AdamW(model.parameters(), lr=0.01))


def test_parameters_that_were_replaced_and_trained_by_another_optimizer_are_noticed():
    method, _ = one_task()
    model = method.model
    method.begin_task(1, TWO)
    model.load_state_dict(copy.deepcopy(model.state_dict()), assign=True)
    train(model, TWO, optim.AdamW(model.parameters(), lr=0.01), epochs=1)
    with pytest.raises(RuntimeError, match=r"were replaced after the method was attached, 'first.weight'"):
        method.end_task(TWO)


def test_the_model_clears_the_gradients_of_what_a_task_adds():
    method, _ = one_task(free_dims=3, overlap=0.0, aperture=3.0)
    method.begin_task(1, TWO)
    (x, y), *_ = TWO
    gradients = []
    for _ in range(2):
        method.model.zero_grad()
        assert all(M.grad is None for M in method.parameters())
        cross_entropy(method.model(x), y).backward()
        gradients.append([M.grad.clone() for M in method.parameters()])
    assert gradients[0]
    assert all(torch.equal(a, b) for a, b in zip(*gradients, strict=True))
    method.detach()
    assert "zero_grad" not in vars(method.model)


@pytest.mark.slow
def test_the_published_reading_frees_directions_of_a_first_convolution():
    """Its patches are taken at stride 1, also while an effective weight takes the place of the parameter."""
    torch.manual_seed(0)
    method = CodeCL.official(AlexNet(), heads=["fc2"], free_dims=20, overlap=0.0)
    for task in range(3):
        batches = [(torch.randn(8, 3, 32, 32), torch.zeros(8, dtype=torch.int64))]
        method.begin_task(task, batches)
        method.end_task(batches)
    assert method.effective["conv1.weight"].U.shape == (1, 48, 20)

"""Inputs of several tasks in one pass: against loops over single inputs."""

import copy

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.testing import assert_close

from codecl import Method
from codecl.method.mixed_tasks import mixed_loss
from tests.methods.replay_cases import mixed_batch, network


def smoothed(output, batch):
    """A loss in which every output counts: one that is not the task's would show."""
    return F.cross_entropy(output, batch[1], label_smoothing=0.2)


positions = st.lists(st.integers(0, 2), min_size=1, max_size=9)


@settings(max_examples=15)
@given(positions, st.integers(0, 99), st.sampled_from([None, smoothed]), st.integers(0, 2))
def test_every_input_goes_through_the_head_of_its_task(tasks, seed, loss, selected):
    model = network()
    method = Method(model, loss=loss)
    model.select(selected)
    (x, y), at = mixed_batch(tasks, seed)
    ours = mixed_loss(method, (x, y), at)
    found = torch.autograd.grad(ours, list(model.parameters()), allow_unused=True)
    assert model.selected == selected
    total = 0.0
    for i, t in enumerate(tasks):  # one sample after the other, by the plain model
        model.select(t)
        total = total + (loss or (lambda out, batch: F.cross_entropy(out, batch[1])))(
            model(x[i : i + 1]), (x[i : i + 1], y[i : i + 1])
        )
    expected = torch.autograd.grad(total / len(tasks), list(model.parameters()), allow_unused=True)
    assert_close(ours, total / len(tasks))
    for mine, its in zip(found, expected, strict=True):
        assert (mine is None) == (its is None)  # a head without inputs has no gradient
        if its is not None:
            assert_close(mine, its)


def test_batch_statistics_are_taken_over_all_inputs():
    tasks = [0, 2, 1, 1, 0, 2, 2]
    (x, y), at = mixed_batch(tasks, 1)
    model = network(norm=True).train()
    other = copy.deepcopy(model)
    features = other.backbone(x)
    expected = sum(
        F.cross_entropy(other.heads[t](features[i : i + 1]), y[i : i + 1]) for i, t in enumerate(tasks)
    ) / len(tasks)
    assert_close(mixed_loss(Method(model), (x, y), at), expected)
    assert_close(model.backbone[4].running_mean, other.backbone[4].running_mean)
    assert int(model.backbone[4].num_batches_tracked) == 1


def test_one_head_for_all_tasks_needs_no_choice():
    torch.manual_seed(0)
    model = nn.Linear(4, 3).double()
    x, y = torch.randn(5, 4, dtype=torch.float64), torch.tensor([0, 1, 2, 0, 1])
    assert_close(mixed_loss(Method(model), (x, y), torch.tensor([0, 1, 0, 2, 1])), F.cross_entropy(model(x), y))


def test_a_pass_leaves_the_heads_as_they_were_also_if_it_fails():
    model = network()
    method = Method(model)
    (x, y), at = mixed_batch([0, 1], 0)
    mixed_loss(method, (x, y), at)
    with pytest.raises(RuntimeError):
        mixed_loss(method, (x[:, :1], y), at)
    assert not any("forward" in vars(module) for module in model.heads)


def test_an_output_without_rows_is_refused():
    method = Method(network(), forward=lambda model, batch: {"logits": model(batch[0])})
    with pytest.raises(TypeError, match="row for each of the 2 inputs; got dict"):
        mixed_loss(method, *mixed_batch([0, 1], 0))


def test_what_follows_heads_of_different_widths_is_refused():
    method = Method(network(), forward=lambda model, batch: model(batch[0]).log_softmax(1))
    with pytest.raises(TypeError, match=r"heads have \[3, 5\] outputs.*Put what follows it .* into loss="):
        mixed_loss(method, *mixed_batch([0, 1], 0))
    (x, y), at = mixed_batch([1, 1], 0)  # one width: nothing is filled up
    method.model.select(1)
    expected = F.cross_entropy(method.model(x).log_softmax(1), y)
    assert_close(mixed_loss(method, (x, y), at), expected)


@pytest.mark.parametrize("position", [-1, 3])
def test_a_task_without_a_head_is_refused(position):
    (x, y), _ = mixed_batch([0, 1], 0)
    with pytest.raises(ValueError, match=rf"positions \[{position}\] have no head: the model has 3"):
        mixed_loss(Method(network()), (x, y), torch.tensor([0, position]))

"""GPM on dense matrices, singular value by singular value: the same bases, the same gradients, the same weights."""

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import optim
from torch.nn.functional import cross_entropy
from torch.testing import assert_close

from codecl.methods.gpm import GPM
from tests.algebra import dense
from tests.methods.cases import assert_same, learn, mlp, task_data, train
from tests.methods.gpm_reference import LAYERS, SlowGPM, images, networks, one_layer, projector, streams

few = settings(max_examples=10)


def same_bases(method: GPM, slow: SlowGPM) -> None:
    for name in LAYERS:
        ours, theirs = [B.basis for B in method.memory[f"{name}.weight"]], slow.bases[name]
        assert [B.shape for B in ours] == [B.shape for B in theirs]
        for B, expected in zip(ours, theirs, strict=True):
            assert_close(projector(B), projector(expected), atol=1e-8, rtol=0)


@given(streams(), st.sampled_from(["reach", "below"]))
def test_the_directions_of_drawn_rows(drawn, rule):
    tasks, threshold = drawn
    d = tasks[0].shape[1]
    method = GPM(one_layer(d), heads=["head"], threshold=threshold, increment=0.0, first_rule=rule)
    expected = dense.gpm_first_task(tasks[0], threshold)
    if rule == "reach":
        expected = dense.gpm_later_task(torch.zeros(d, 0, dtype=torch.float64), tasks[0], threshold)
    for t, X in enumerate(tasks):
        method.begin_task(t, [X])
        method.end_task([X])
        expected = expected if t == 0 else dense.gpm_later_task(expected, X, threshold)
        (B,) = method.memory["a.weight"]
        assert B.rank == expected.shape[1]
        assert_close(projector(B.basis), projector(expected), atol=1e-8, rtol=0)


@few
@given(networks(), st.sampled_from([0.6, 0.9]))
def test_a_gradient_loses_its_part_in_the_basis(model, threshold):
    bare = copy.deepcopy(model)
    method = GPM(model, heads=["head"], threshold=threshold)
    method.begin_task(0, images(0))
    method.end_task(images(0))
    method.begin_task(1, images(1))
    x, y = images(1)[0]
    cross_entropy(model(x), y).backward()
    cross_entropy(bare(x), y).backward()
    for name in LAYERS:
        bases = [B.basis for B in method.memory[f"{name}.weight"]]
        ours, plain = model.get_submodule(name).weight.grad, bare.get_submodule(name).weight.grad
        for B, G, expected in zip(bases, ours.chunk(len(bases)), plain.chunk(len(bases)), strict=True):
            expected = expected.flatten(1)
            assert_close(G.flatten(1), expected - expected @ B @ B.mT, atol=1e-12, rtol=0)
            assert (G.flatten(1) - expected).abs().max() > 1e-6
        assert model.get_submodule(name).bias.grad is None
    assert_close(model.head.weight.grad, bare.head.weight.grad)


@few
@given(networks(), st.sampled_from(["reach", "below"]), st.sampled_from([0.0, 0.02]))
def test_three_tasks_end_with_the_same_weights_and_bases(model, rule, increment):
    slow = SlowGPM(copy.deepcopy(model), 0.2, 0.8, increment, rule)
    method = GPM(model, heads=["head"], threshold=0.8, increment=increment, first_rule=rule, samples=None)
    optimizer = optim.SGD(model.parameters(), lr=0.2)
    method.guard(optimizer)
    for task in range(3):
        batches = images(task)
        method.begin_task(task, batches)
        train(model, batches, optimizer, epochs=2)
        for x, y in batches * 2:
            slow.step(x, y)
        method.end_task(batches)
        slow.end(batches)
        same_bases(method, slow)
        for (name, ours), theirs in zip(model.named_parameters(), slow.model.parameters(), strict=True):
            assert_close(ours, theirs, atol=1e-9, rtol=0, msg=lambda text, name=name: f"{name}: {text}")


@few
@given(networks())
def test_each_layer_sees_as_many_inputs_as_images_says(model):
    slow = SlowGPM(copy.deepcopy(model), 0.1, 0.9, images={"conv": 1, "hidden": 5})
    method = GPM(model, heads=["head"], threshold=0.9, images={"conv*": 1, "hid*": 5})
    batches = images(0, batch=12)
    method.begin_task(0)
    method.end_task(batches)
    slow.end(batches)
    same_bases(method, slow)
    assert method.memory["hidden.weight"][0].rank <= 5


def test_one_number_of_images_is_for_all_layers_and_a_layer_without_a_pattern_sees_all():
    batches = task_data(0, batch=16)
    for setting, ranks in ((2, (2, 2)), ({"second*": 2}, (8, 2))):
        method = GPM(mlp(), heads=["head"], threshold=1.0, images=setting)
        method.begin_task(0)
        method.end_task(batches)
        assert tuple(method.memory[f"{name}.weight"][0].rank for name in ("first", "second")) == ranks


def test_samples_are_whole_batches_and_no_more():
    batches = task_data(0, n=12, batch=2)
    for samples, rank in ((1, 2), (3, 4), (None, 8)):
        method = GPM(mlp(), heads=["head"], threshold=1.0, samples=samples)
        method.begin_task(0)
        method.end_task(batches)
        assert method.memory["first.weight"][0].rank == rank


def test_thresholds_by_layer():
    method = GPM(mlp(), heads=["head"], threshold={"first*": 0.5, "*": 1.0}, increment=0.0)
    learn(method, [task_data(0)])
    X = torch.cat([x for x, _ in task_data(0)])
    expected = dense.gpm_later_task(torch.zeros(8, 0, dtype=torch.float64), X, 0.5).shape[1]
    assert method.memory["first.weight"][0].rank == expected < 8
    assert method.memory["second.weight"][0].rank == 16


def test_the_threshold_grows_with_every_task_and_ends_at_one():
    """The third task's would be 1.1: all of its rows are held, and no more than that."""
    method = GPM(mlp(), heads=["head"], threshold=0.5, increment=0.3)
    tasks = [task_data(task, n=2, batch=2) for task in range(3)]
    X = [batches[0][0] for batches in tasks]
    expected = torch.zeros(8, 0, dtype=torch.float64)
    for task, threshold in enumerate((0.5, 0.8)):
        learn(method, tasks[task : task + 1], epochs=1)
        expected = dense.gpm_later_task(expected, X[task], threshold)
        assert_close(projector(method.memory["first.weight"][0].basis), projector(expected))
    learn(method, tasks[2:], epochs=1)
    (B,) = method.memory["first.weight"]
    assert_close(B.remove(X[2]), torch.zeros(2, 8, dtype=torch.float64), atol=1e-10, rtol=0)
    assert B.rank == expected.shape[1] + 2
    assert B.remove(X[0]).abs().max() > 1e-3


def test_a_layer_that_a_task_does_not_reach_keeps_its_past():
    method = GPM(mlp(), heads=["head"])
    learn(method, [task_data(0)])
    before = method.memory["first.weight"][0].basis
    method.begin_task(1, task_data(1))
    method.end_task([torch.zeros(4, 8, dtype=torch.float64)])
    assert torch.equal(method.memory["first.weight"][0].basis, before)
    assert method.memory["second.weight"][0].rank >= 1


def test_a_loaded_state_projects():
    saved, loaded = GPM(mlp(), heads=["head"], threshold=0.6), GPM(mlp(), heads=["head"], threshold=0.6)
    learn(saved, [task_data(0)])
    loaded.model.load_state_dict(saved.model.state_dict())
    loaded.load_state_dict(saved.state_dict())
    B = saved.memory["first.weight"][0].basis
    loaded.begin_task(1, task_data(1))
    x, y = task_data(1)[0]
    cross_entropy(loaded.model(x), y).backward()
    G = loaded.model.first.weight.grad
    assert_close(G @ B, torch.zeros(16, B.shape[1], dtype=torch.float64), atol=1e-14, rtol=0)
    assert G.norm() > 1e-3


def test_readings():
    assert GPM.preset("paper") == {}
    assert GPM.preset("official") == {"first_rule": "below"}


@pytest.mark.parametrize(
    ("argument", "value", "expected"),
    [
        ("threshold", 0.0, r"threshold must be a share in \(0, 1\]; got 0.0"),
        ("threshold", 1.01, r"threshold must be a share in \(0, 1\]; got 1.01"),
        ("threshold", float("nan"), "threshold must be .* got nan"),
        ("threshold", {"*": -1}, "threshold must be a share"),
        ("threshold", {"first*": 0.5}, r"threshold: no pattern matches 'second.weight'"),
        ("increment", -0.1, "increment must be 0 or more; got -0.1"),
        ("first_rule", "above", "first_rule must be 'reach' or 'below'; got 'above'"),
        ("samples", 0, "samples must be a positive number of inputs, or None for all; got 0"),
        ("images", 0, "images must be a positive number of inputs, or None for all; got 0"),
        ("images", {"*": 3, "first*": -1}, "images must be a positive number of inputs"),
    ],
)
def test_a_bad_setting_is_named_and_leaves_the_model_alone(argument, value, expected):
    model = mlp()
    with pytest.raises(ValueError, match=expected):
        GPM(model, heads=["head"], **{argument: value})
    assert not any("forward" in vars(module) for module in model.modules())


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda bases: bases.pop("first.weight"), "it lacks 'first.weight'"),
        (lambda bases: bases["first.weight"].append(bases["first.weight"][0]), r"of \[8, 8\] inputs .* \[8\] here"),
        (lambda bases: bases.update({"first.weight": [bases["first.weight"][0][1:]]}), r"of \[7\] inputs"),
        (lambda bases: bases["first.weight"][0].mul_(2), "needs an orthonormal basis"),
        (lambda bases: bases["first.weight"][0].fill_(float("nan")), "needs an orthonormal basis"),
    ],
)
def test_a_state_with_other_bases_is_refused_and_changes_nothing(spoil, message):
    method = GPM(mlp(), heads=["head"])
    learn(method, [task_data(0)])
    state = copy.deepcopy(method.state_dict())
    spoil(state["memory"]["bases"])
    before = copy.deepcopy(method.state_dict())
    with pytest.raises(ValueError, match=message):
        method.load_state_dict(state)
    assert_same(method.state_dict(), before)

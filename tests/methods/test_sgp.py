"""SGP against a loop over basis vectors: the same importances, the same weights."""

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, optim
from torch.nn.functional import cross_entropy
from torch.testing import assert_close

from codecl import check_method
from codecl.methods.gpm import GPM
from codecl.methods.sgp import SGP
from tests.algebra import dense
from tests.methods.cases import assert_same, learn, mlp, task_data, train
from tests.methods.gpm_reference import LAYERS, SlowSGP, accumulated, images, networks, one_layer, streams


def scaled(B: Tensor, lam: Tensor) -> Tensor:
    """``B diag(λ) Bᵀ``, in which the signs of the columns do not matter."""
    return B @ torch.diag(lam) @ B.mT


@given(streams(), st.sampled_from(["reach", "below"]), st.sampled_from([0.0, 1.0, 10.0]), st.sampled_from([0, 1, 2]))
def test_importances_of_drawn_rows(drawn, rule, alpha, empty):
    """A fourth task repeats the third, so that no direction is added; another one of the first three has no energy."""
    tasks, threshold = drawn
    tasks = [*tasks, 3 * tasks[2]]
    tasks[empty] = torch.zeros_like(tasks[empty])
    method = SGP(
        one_layer(tasks[0].shape[1]), heads=["head"], threshold=threshold, increment=0.0, first_rule=rule, alpha=alpha
    )
    B, lam = torch.zeros(tasks[0].shape[1], 0, dtype=torch.float64), torch.zeros(0, dtype=torch.float64)
    for t, X in enumerate(tasks):
        method.begin_task(t, [X])
        method.end_task([X])
        grown = B
        if X.any():
            below = t == 0 and rule == "below"
            grown = dense.gpm_first_task(X, threshold) if below else dense.gpm_later_task(B, X, threshold)
        lam = accumulated(lam, B, grown[:, B.shape[1] :], X, alpha)
        B = grown
        (ours,) = method.importance["a.weight"]
        assert_close(ours, lam, atol=1e-7, rtol=0)
        assert_close(scaled(method.memory["a.weight"][0].basis, ours), scaled(B, lam), atol=1e-7, rtol=0)
        assert ours.isfinite().all()
        assert ((ours >= 0) & (ours <= 1)).all()


def test_the_importances_of_the_first_task_and_of_no_new_direction_by_hand():
    X = torch.diag(torch.tensor([4.0, 2.0, 1.0], dtype=torch.float64))
    method = SGP(one_layer(3), heads=["head"], threshold=1.0, alpha=3.0)
    method.begin_task(0)
    method.end_task([X])
    assert_close(method.importance["a.weight"][0].tolist(), [1.0, 4 * 2 / (3 * 2 + 4), 4 * 1 / (3 * 1 + 4)])
    method.begin_task(1, [X])
    method.end_task([torch.diag(torch.tensor([0.0, 1.0, 2.0], dtype=torch.float64))])
    assert method.memory["a.weight"][0].rank == 3
    assert_close(method.importance["a.weight"][0].tolist(), [1.0, 1.0, 1.0])
    method = SGP(one_layer(3), heads=["head"], threshold=1.0, alpha=0.0)
    for task, diagonal in enumerate([[4.0, 1.0, 0.0], [0.0, 1.0, 0.0], [0.0, 1.0, 0.0], [2.0, 1.0, 8.0]]):
        method.begin_task(task, [X])
        method.end_task([torch.diag(torch.tensor(diagonal, dtype=torch.float64))])
        expected = [[1.0, 0.25], [1.0, 1.0], [1.0, 1.0], [1.0, 1.0, 1.0]][task]
        assert_close(method.importance["a.weight"][0].tolist(), expected)


@settings(max_examples=8)
@given(networks(), st.sampled_from([1.0, 10.0]))
def test_three_tasks_end_with_the_same_weights_and_importances(model, alpha):
    slow = SlowSGP(copy.deepcopy(model), 0.2, 0.8, 0.02, alpha=alpha)
    method = SGP(model, heads=["head"], threshold=0.8, increment=0.02, samples=None, alpha=alpha)
    optimizer = optim.SGD(model.parameters(), lr=0.2)
    method.guard(optimizer)
    for task in range(3):
        batches = images(task)
        method.begin_task(task, batches)
        train(model, batches, optimizer, epochs=1)
        for x, y in batches:
            slow.step(x, y)
        method.end_task(batches)
        slow.end(batches)
        for name in LAYERS:
            for ours, theirs in zip(method.importance[f"{name}.weight"], slow.lam[name], strict=True):
                assert_close(ours, theirs, atol=1e-8, rtol=0)
        for ours, theirs in zip(model.parameters(), slow.model.parameters(), strict=True):
            assert_close(ours, theirs, atol=1e-9, rtol=0)


def test_a_very_large_alpha_is_gpm():
    models = [mlp(), mlp()]
    tasks = [task_data(task) for task in range(3)]
    learn(SGP(models[0], heads=["head"], alpha=1e12), tasks)
    learn(GPM(models[1], heads=["head"]), tasks)
    for ours, theirs in zip(models[0].parameters(), models[1].parameters(), strict=True):
        assert_close(ours, theirs, atol=1e-7, rtol=0)


def test_a_loaded_state_projects_as_the_one_that_was_saved():
    saved = SGP(mlp(), heads=["head"], threshold=0.9, alpha=0.5)
    learn(saved, [task_data(0), task_data(1)])
    loaded = SGP(mlp(), heads=["head"], threshold=0.9, alpha=0.5)
    loaded.model.load_state_dict(saved.model.state_dict())
    loaded.load_state_dict(saved.state_dict())
    assert loaded.bytes() == saved.bytes()
    gradients = []
    for method in (saved, loaded):
        method.begin_task(2, task_data(2))
        x, y = task_data(2)[0]
        cross_entropy(method.model(x), y).backward()
        gradients.append(method.model.first.weight.grad)
        assert all(0 < lam.min() < 0.9 for (lam,) in method.importance.values())
    assert torch.equal(*gradients)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda memory: memory.pop("importance"), "it lacks 'importance'"),
        (lambda memory: memory["importance"].pop("first.weight"), "it lacks 'first.weight'"),
        (
            lambda memory: memory["importance"]["first.weight"].pop(),
            r"importances of shape \[\] .* bases need \[\[8\]\]",
        ),
        (
            lambda memory: memory["importance"].update({"first.weight": [torch.ones(7)]}),
            r"'first.weight' has importances of shape \[\[7\]\] in the state; its bases need \[\[8\]\]",
        ),
        (lambda memory: memory["bases"]["first.weight"][0].mul_(2), "needs an orthonormal basis"),
    ],
)
def test_a_state_with_other_importances_is_refused_and_changes_nothing(spoil, message):
    method = SGP(mlp(), heads=["head"], threshold=1.0)
    learn(method, [task_data(0)])
    state = copy.deepcopy(method.state_dict())
    spoil(state["memory"])
    before = copy.deepcopy(method.state_dict())
    with pytest.raises(ValueError, match=message):
        method.load_state_dict(state)
    assert_same(method.state_dict(), before)


@pytest.mark.parametrize("alpha", [-0.1, float("inf"), float("nan")])
def test_a_bad_alpha_is_named_and_leaves_the_model_alone(alpha):
    model = mlp()
    with pytest.raises(ValueError, match=f"alpha must be a finite number, 0 or more; got {alpha}"):
        SGP(model, heads=["head"], alpha=alpha)
    assert not any("forward" in vars(module) for module in model.modules())


def test_the_settings_of_gpm_are_checked_too():
    with pytest.raises(ValueError, match="threshold must be a share"):
        SGP(mlp(), heads=["head"], threshold=2.0)
    assert SGP.preset("official") == {"first_rule": "below"}


@pytest.mark.slow
def test_it_keeps_what_every_method_promises():
    check_method(SGP)

"""TRGP against its equations on dense matrices: whom a layer trusts, what it scales, and which directions are whose."""

import copy

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch.nn.functional import cross_entropy
from torch.testing import assert_close

from codecl import check_method
from codecl.algebra import Moments
from codecl.attach import Scaling
from codecl.attach import forward as attached_forward
from codecl.methods import GPM, TRGP
from tests.algebra.cases import generator, normal, orthonormal
from tests.methods.cases import FIRST, learn, mlp, task_data
from tests.methods.gpm_reference import LAYERS, images, networks, one_layer, projector, streams
from tests.methods.trgp_reference import SlowTRGP, learn_two_begin_third, own_bases, pooled, run_beside

few = settings(max_examples=6)


@few
@given(networks(), st.sampled_from(["reach", "below"]), st.booleans(), st.sampled_from([2, 1]))
def test_three_tasks_end_as_the_equations_do(model, rule, off_by_one, most_trusted):
    shared = {"trust": 0.3, "off_by_one": off_by_one, "most_trusted": most_trusted, "first_rule": rule}
    slow = SlowTRGP(copy.deepcopy(model), 0.2, 0.7, 0.05, **shared)
    method = TRGP(model, heads=["head"], threshold=0.7, increment=0.05, samples=None, gradient_samples=None, **shared)
    run_beside(slow, method)
    assert any(slow.views[2][0].values())  # some layer is scaled
    change = next(iter(method.per_task.effective[2].values()))
    assert (change.Q[0] - torch.eye(change.Q[0].shape[1])).abs().max() > 1e-3


# What is scaled.


@st.composite
def scalings(draw):
    """Trusted tasks with bases of different ranks, padded as those of groups are, and learned Q."""
    g = generator(draw(st.integers(0, 2**31)))
    groups, d, o = draw(st.sampled_from([1, 2, 3])), 5, 3
    bases, Q = [], []
    for _ in range(draw(st.integers(1, 2))):
        ranks = [draw(st.integers(0, d)) for _ in range(groups)]
        S = torch.zeros(groups, d, max(ranks), dtype=torch.float64)
        for i, r in enumerate(ranks):
            S[i, :, :r] = orthonormal(g, d, r)
        bases.append(S)
        Q.append(normal(g, groups, max(ranks), max(ranks)))
    return bases, Q, normal(g, groups, o, d), normal(g, 4, d)


@given(scalings())
def test_the_effective_weight_by_its_formula(drawn):
    bases, Q, W, X = drawn
    change = Scaling(list(range(len(bases))), bases, Q)
    expected = W.clone()
    for S, q in zip(bases, Q, strict=True):
        for i in range(len(W)):
            expected[i] += W[i] @ S[i] @ q[i] @ S[i].mT - W[i] @ S[i] @ S[i].mT
    assert_close(change.weight(W), expected, atol=1e-12, rtol=0)
    assert change.on_inputs == (len(W) == 1)
    if change.on_inputs:
        assert_close(change.rows(X) @ W[0].mT, X @ expected[0].mT, atol=1e-12, rtol=0)
    assert torch.equal(Scaling([0] * len(bases), bases).weight(W), W)  # before anything is learned


@pytest.mark.parametrize("groups", [1, 3])
def test_columns_that_tasks_share_are_kept_once(groups):
    B = torch.stack([orthonormal(generator(i), 6, 5) for i in range(groups)])
    change = Scaling([0, 1], [B[:, :, [0, 1, 3]], B[:, :, [4, 3, 0, 2]]])
    assert change.U.shape == (groups, 6, 5)
    assert torch.equal(change.bases[0], B[:, :, [0, 1, 3]])
    assert torch.equal(change.bases[1], B[:, :, [4, 3, 0, 2]])


@few
@given(networks(), st.booleans(), st.booleans(), st.booleans())
def test_gradients_are_those_of_the_bare_network_and_only_that_of_the_weight_is_projected(
    model, on_inputs, off_by_one, projected
):
    """With ``off_by_one`` some of what is scaled is not protected; an optimizer may project the update instead."""
    bare = copy.deepcopy(model)
    method = TRGP(model, heads=["head"], threshold=0.7, trust=0.05, samples=None, off_by_one=off_by_one)
    learn_two_begin_third(method)
    bare.load_state_dict(model.state_dict())
    assert method.effective.keys() == {f"{name}.weight" for name in LAYERS}
    effective, Q = {}, {}
    for name, change in method.effective.items():
        parts, Q[name] = [], [q.detach().clone().requires_grad_() for q in change.Q]
        for i, W in enumerate(bare.get_parameter(name).chunk(method.weights[name].shape[0])):
            W = W.flatten(1)
            more = [W @ S[i] @ q[i] @ S[i].mT - W @ S[i] @ S[i].mT for S, q in zip(change.bases, Q[name], strict=True)]
            parts.append(W + sum(more))
        effective[name] = torch.cat(parts).reshape(bare.get_parameter(name).shape)
        method.weights[name].projects_gradient = projected
    x, y = images(2, batch=7)[0]
    for parameter in (*model.parameters(), *method.parameters()):
        parameter.grad = None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(attached_forward, "_cheaper_on_inputs", lambda weight, _: on_inputs and weight.change.on_inputs)
        cross_entropy(model(x), y).backward()
    cross_entropy(torch.func.functional_call(bare, effective, (x,)), y).backward()
    for name, change in method.effective.items():
        for ours, theirs in zip(change.Q, Q[name], strict=True):
            assert_close(ours.grad, theirs.grad, atol=1e-12, rtol=0)
            assert ours.grad.abs().max() > 1e-9
        ours, theirs = model.get_parameter(name).grad, bare.get_parameter(name).grad
        bases = method.memory[name]
        for B, G, expected in zip(bases, ours.chunk(len(bases)), theirs.chunk(len(bases)), strict=True):
            expected = expected.flatten(1)
            assert_close(G.flatten(1), B.remove(expected) if projected else expected, atol=1e-12, rtol=0)


# Which directions are whose.


@given(streams(), st.booleans())
def test_the_directions_of_a_task_are_the_strongest_of_all(drawn, off_by_one):
    tasks, threshold = drawn
    d = tasks[0].shape[1]
    method = TRGP(one_layer(d), heads=["head"], threshold=threshold, increment=0.0, off_by_one=off_by_one)
    B, spaces = torch.zeros(d, 0, dtype=torch.float64), []
    for t, X in enumerate(tasks):
        if t:
            assume(well_apart(B, X, threshold))
        method.chosen.append({})
        method.tasks.append(t)
        method._fold("a.weight", [Moments.of(X)])
        B, S = pooled(B, X, threshold, off_by_one and t > 0)
        (ours,) = method.memory["a.weight"]
        assert ours.rank == B.shape[1]
        assert_close(projector(ours.basis), projector(B), atol=1e-8, rtol=0)
        B = ours.basis  # the same signs from here on
        spaces.append(S)
        for j, expected in enumerate(spaces):  # those of earlier tasks do not change
            assert_close(projector(own_bases(method, j, "a.weight")[0]), projector(expected), atol=1e-8, rtol=0)
        (of,) = method.chosen[t]["a.weight"]
        assert of["beside"].shape[1] <= (1 if off_by_one and t > 0 else 0)


def well_apart(B, X, threshold):
    """No two energies are equal, and no sum of them is the threshold: such draws are decided by rounding."""
    sigma = torch.linalg.svdvals(X - X @ projector(B))
    pool = torch.cat([(X @ B).square().sum(0), sigma[sigma > 1e-9 * torch.linalg.svdvals(X)[0]].square()])
    pool = pool.sort(descending=True).values / X.square().sum()
    return bool((pool.cumsum(0) - threshold).abs().min() > 1e-9 and (pool.diff().abs() > 1e-9).all())


def test_the_directions_by_hand():
    """Of 16 + 4 + 1, the first task takes e₀ and e₁; the second has 9 on e₁, 4 on e₂, 1 on e₃ and 0.25 on e₀."""
    e = torch.eye(5, dtype=torch.float64)
    first, second = torch.diag(torch.tensor([4.0, 2, 1, 0, 0])), torch.diag(torch.tensor([0.5, 3, 2, 1, 0]))
    for threshold, off_by_one, of_all, of_second in [
        (0.90, False, [0, 1, 2], [1, 2]),
        (0.90, True, [0, 1], [1, 2]),
        (0.95, False, [0, 1, 2, 3], [1, 2, 3]),
        (0.95, True, [0, 1, 3], [1, 2, 3]),
        (1.0, False, [0, 1, 2, 3], [0, 1, 2, 3]),
        (0.60, False, [0, 1], [1]),
    ]:
        method = TRGP(one_layer(5), heads=["head"], increment=0.0, off_by_one=off_by_one)
        for t, (X, share) in enumerate([(first, 0.9), (second, threshold)]):
            method.threshold["a.weight"] = share
            method.begin_task(t, None) if t == 0 else method.tasks.append(t)
            method.chosen.append({})
            method._fold("a.weight", [Moments.of(X.double())])
        assert_close(projector(method.memory["a.weight"][0].basis), projector(e[:, of_all]))
        assert_close(projector(own_bases(method, 1, "a.weight")[0]), projector(e[:, of_second]))
        assert_close(projector(own_bases(method, 0, "a.weight")[0]), projector(e[:, :2]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_all_of_the_energy_takes_no_direction_that_the_task_does_not_have(dtype):
    """With ε_th = 1 the sum of real energies falls short of ‖R‖² by rounding; columns of noise must not make up."""
    for seed in range(8):
        g = generator(seed)
        E, strengths = orthonormal(g, 12, 12), 0.7 ** torch.arange(6, dtype=torch.float64)
        method = TRGP(one_layer(12), heads=["head"], threshold=1.0)
        for t, directions in enumerate([E[:, :6], E[:, 4:9]]):  # of which two are shared
            k = directions.shape[1]
            method.tasks.append(t)
            method.chosen.append({})
            X = (orthonormal(g, 30, k) * strengths[:k]) @ directions.mT
            method._fold("a.weight", [Moments.of(X.to(dtype))])
        assert method.memory["a.weight"][0].rank == 9
        (own,) = own_bases(method, 1, "a.weight")
        assert own.shape[1] == 5
        assert_close(projector(own), projector(E[:, 4:9]), atol=1e-5, rtol=0)


def test_a_task_that_feeds_a_layer_nothing_has_no_directions_there():
    method = TRGP(mlp(), heads=["head"], trust=0.0)
    zeros = [(torch.zeros(4, 8, dtype=torch.float64), torch.tensor([0, 1, 2, 0]))]
    for tasks in ([zeros, task_data(1), task_data(2)], [task_data(0), zeros, task_data(2)]):
        method = TRGP(mlp(), heads=["head"], trust=0.0, threshold=0.6)
        learn(method, tasks)
        empty = tasks.index(zeros)
        assert own_bases(method, empty, FIRST)[0].shape == (8, 0)
        assert method.per_task.effective[2][FIRST].tasks == [1 - empty]


def test_nothing_is_trusted_is_gpm_with_pooled_directions():
    """The first two tasks are learned as GPM learns them, bit for bit, where no task is trusted."""
    models = [mlp(), mlp()]
    TRGP_, GPM_ = TRGP(models[0], heads=["head"], trust=1.0), GPM(models[1], heads=["head"])
    for method in (TRGP_, GPM_):
        learn(method, [task_data(0), task_data(1)])
    for ours, theirs in zip(*(model.parameters() for model in models), strict=True):
        assert torch.equal(ours, theirs)


# Settings, and what every method promises.


def test_readings():
    assert TRGP.preset("paper") == {}
    published = {"first_rule": "below", "off_by_one": True, "gate": "first", "closed": ("*shortcut*",)}
    assert TRGP.preset("official") == published
    TRGP(mlp(), heads=["head"], **published)


@pytest.mark.parametrize(
    ("argument", "value", "expected"),
    [
        ("trust", -0.1, r"trust must be a share in \[0, 1\]; got -0.1"),
        ("trust", float("nan"), "trust must be"),
        ("most_trusted", -1, "most_trusted must be a number of tasks, 0 or more; got -1"),
        ("gradient_samples", 0, "gradient_samples must be a positive number of inputs, or None for all; got 0"),
        ("gate", "second", "gate must be 'layer' or 'first'; got 'second'"),
        ("third_task", "first", "third_task must be 'any' or 'second'; got 'first'"),
        ("closed", "*shortcut*", r"closed must be a list, each text; got '\*shortcut\*'"),
        ("threshold", 2.0, "threshold must be a share"),
    ],
)
def test_a_bad_setting_is_named_and_leaves_the_model_alone(argument, value, expected):
    model = mlp()
    with pytest.raises(ValueError, match=expected):
        TRGP(model, heads=["head"], **{argument: value})
    assert not any("forward" in vars(module) for module in model.modules())


@pytest.mark.slow
def test_it_keeps_the_promises_of_all_methods_while_it_scales():
    made = []

    def make(model):
        made.append(TRGP(model, trust=0.05, threshold=0.8, off_by_one=True))
        return made[-1]

    check_method(make)
    assert sum(len(of) for method in made for of in method.per_task.effective) > len(made)

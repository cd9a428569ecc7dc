"""TRGP against its equations on dense matrices: whom a layer trusts, what it scales, and which directions are whose."""

import copy
import functools
import itertools

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn.functional import cross_entropy
from torch.testing import assert_close

from codecl import check_method
from codecl.algebra import Moments, Subspace
from codecl.layers import weight as layers_weight
from codecl.methods import CUBER, GPM, TRGP, TRGPSD
from codecl.methods.state import ForeignState
from codecl.methods.trgp import Scaling

from ..algebra.cases import generator, normal, orthonormal
from .cases import learn, mlp, outputs_of, task_data
from .gpm_reference import LAYERS, images, networks, one_layer, projector, streams
from .trgp_reference import (
    SlowTRGP,
    learn_two_begin_third,
    learn_watched,
    numbers_in_memory,
    own_bases,
    pooled,
    reloaded,
    run_beside,
    tensors_in,
)

few = settings(max_examples=6)


@few
@given(networks(), st.sampled_from(["reach", "below"]), st.booleans(), st.sampled_from([2, 1]))
def test_three_tasks_end_as_the_equations_do(model, rule, off_by_one, most_trusted):
    shared = {"trust": 0.3, "off_by_one": off_by_one, "most_trusted": most_trusted, "first_rule": rule}
    slow = SlowTRGP(copy.deepcopy(model), 0.2, 0.7, 0.05, **shared)
    method = TRGP(model, heads=["head"], threshold=0.7, increment=0.05, samples=None, gradient_samples=None, **shared)
    run_beside(slow, method)
    assert any(slow.views[2][0].values())  # some layer is scaled
    change = next(iter(method._changes[2].values()))
    assert (change.Q[0] - torch.eye(change.Q[0].shape[1])).abs().max() > 1e-3


# Whom a layer trusts.


@st.composite
def pasts(draw, tasks=4):
    """A grouped convolution with two matrices, what ``tasks`` learned tasks had in it, and a gradient."""
    g = generator(draw(st.integers(0, 2**31)))
    model = nn.Sequential(nn.Conv2d(4, 6, (2, 1), groups=2), nn.Flatten(), nn.Linear(6, 3)).double()
    B = [orthonormal(g, 4, draw(st.integers(1, 4))) for _ in range(2)]
    chosen = []
    for _ in range(tasks):
        of_weight = []
        for b in B:
            columns = sorted(draw(st.sets(st.integers(0, b.shape[1] - 1))))
            beside = orthonormal(g, 4, draw(st.integers(0, 1)) if b.shape[1] < 4 else 0, beside=b)
            of_weight.append({"columns": torch.tensor(columns, dtype=torch.long), "beside": beside})
        chosen.append({"0.weight": of_weight})
    return model, [Subspace(b) for b in B], chosen, normal(g, 2, 3, 4)


def with_past(cls, past, **options):
    """A method that has learned tasks with the given directions, and whose gradient is the given one."""
    model, B, chosen, G = past
    method = cls(model, heads=["2"], **options)
    method.tasks = list(range(len(chosen)))
    method.memory, method.chosen = {"0.weight": B}, chosen
    method.gradients = lambda batches: {"0.weight": G}
    return method


def trusted_by_hand(past, trust, most_trusted, candidates=None):
    _, B, chosen, G = past
    shares = []
    for j, of_task in enumerate(chosen):
        inside = 0.0
        for b, of, matrix in zip(B, of_task["0.weight"], G, strict=True):
            S = torch.cat([b.basis[:, of["columns"]], of["beside"]], 1)
            inside += float((matrix @ S @ S.mT).square().sum())
        shares.append((inside**0.5 / float(G.square().sum()) ** 0.5, j))
    assume(all(abs(share - trust) > 1e-9 for share, _ in shares))
    shares = [entry for entry in shares if candidates is None or entry[1] in candidates]
    shares.sort(key=lambda entry: -entry[0])
    return [j for share, j in shares[:most_trusted] if share > trust], [share for share, _ in shares]


@given(pasts(), st.sampled_from([0.0, 0.3, 0.5, 0.7]), st.integers(0, 3))
def test_the_tasks_with_the_largest_shares_are_trusted_if_these_are_above_trust(past, trust, most_trusted):
    method = with_past(TRGP, past, trust=trust, most_trusted=most_trusted)
    expected, shares = trusted_by_hand(past, trust, most_trusted)
    assume(all(a - b > 1e-9 for a, b in itertools.pairwise(shares)))  # ties say nothing
    changes = method.prepare([torch.zeros(1)])
    assert (changes["0.weight"].tasks if changes else []) == expected
    for j, S in zip(expected, changes["0.weight"].bases if changes else [], strict=True):
        for ours, theirs in zip(S, own_bases(method, j, "0.weight"), strict=True):
            assert_close(projector(ours), projector(theirs), atol=1e-12, rtol=0)


@given(pasts(tasks=2), st.sampled_from(["any", "second"]))
def test_the_third_task_may_trust_the_second_only(past, third_task):
    method = with_past(TRGP, past, trust=0.2, third_task=third_task)
    expected, _ = trusted_by_hand(past, 0.2, 2, {"any": {0, 1}, "second": {1}}[third_task])
    changes = method.prepare([torch.zeros(1)])
    assert sorted(changes["0.weight"].tasks if changes else []) == sorted(expected)


@given(pasts(tasks=3))
def test_the_fourth_task_may_trust_anyone(past):
    expected, _ = trusted_by_hand(past, 0.2, 2)
    changes = with_past(TRGP, past, trust=0.2, third_task="second").prepare([torch.zeros(1)])
    assert sorted(changes["0.weight"].tasks if changes else []) == sorted(expected)


def two_layers(inside, **options):
    """A method whose gradient lies inside the past of the layers named, and outside of that of the others."""
    method = TRGP(mlp(), heads=["head"], **options)
    method.tasks, method.chosen, G = [0], [{}], {}
    for name, weight in method.weights.items():
        _, o, d = weight.shape
        B = torch.eye(d, dtype=torch.float64)[:, :2]
        method.memory[name] = [Subspace(B)]
        method.chosen[0][name] = [{"columns": torch.tensor([1]), "beside": B[:, :0]}]
        G[name] = torch.ones(1, o, 1, dtype=torch.float64) * (torch.arange(d) == (1 if name in inside else 0))
    method.gradients = lambda batches: G
    return method


FIRST, SECOND = "first.weight", "second.weight"


@pytest.mark.parametrize(
    ("inside", "options", "scaled"),
    [
        ([FIRST, SECOND], {}, {FIRST, SECOND}),
        ([FIRST], {}, {FIRST}),
        ([SECOND], {}, {SECOND}),
        ([], {}, set()),
        ([FIRST, SECOND], {"gate": "first"}, {FIRST, SECOND}),
        ([FIRST], {"gate": "first"}, {FIRST}),
        ([SECOND], {"gate": "first"}, set()),
        ([FIRST, SECOND], {"closed": ["sec*"]}, {FIRST}),
        ([FIRST, SECOND], {"closed": ["sec*", "*first*"]}, set()),
        ([FIRST, SECOND], {"closed": ["first*"], "gate": "first"}, {SECOND}),
    ],
)
def test_which_layers_are_scaled(inside, options, scaled):
    assert set(two_layers(inside, **options).prepare([torch.zeros(1)])) == scaled


def test_a_layer_without_gradient_trusts_nobody():
    method = two_layers([FIRST, SECOND], gate="first")
    gradients = method.gradients([])
    method.gradients = lambda batches: {SECOND: gradients[SECOND]}
    assert method.prepare([torch.zeros(1)]) == {}
    method.gate = "layer"
    assert set(method.prepare([torch.zeros(1)])) == {SECOND}
    method.trust = 0.0
    method.gradients = lambda batches: {name: torch.zeros_like(G) for name, G in gradients.items()}
    assert method.prepare([torch.zeros(1)]) == {}


def test_the_gradient_before_a_task_is_that_of_the_shared_weights_in_all_asked_for_inputs():
    method = TRGP(mlp(), heads=["head"], threshold=0.9, trust=0.05, gradient_samples=9)
    learn(method, [task_data(0), task_data(1)])
    assert method.weights[FIRST].change is not None
    assert method.samples_before == 9
    seen = {}
    method._trusted = lambda name, G: seen.update({name: G}) or []
    batches = task_data(2, n=24, batch=6)
    method.begin_task(2, batches)
    bare = mlp()
    bare.load_state_dict(method.model.state_dict())
    x, y = (torch.cat(parts) for parts in zip(*batches[:2], strict=True))
    cross_entropy(bare(x), y).backward()
    for name in (FIRST, SECOND):
        assert_close(seen[name][0], bare.get_parameter(name).grad, atol=1e-12, rtol=0)


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
    assert method.changes.keys() == {f"{name}.weight" for name in LAYERS}
    effective, Q = {}, {}
    for name, change in method.changes.items():
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
        patch.setattr(layers_weight, "_cheaper_on_inputs", lambda weight, _: on_inputs and weight.change.on_inputs)
        cross_entropy(model(x), y).backward()
    cross_entropy(torch.func.functional_call(bare, effective, (x,)), y).backward()
    for name, change in method.changes.items():
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
        assert method._changes[2][FIRST].tasks == [1 - empty]


def test_nothing_is_trusted_is_gpm_with_pooled_directions():
    """The first two tasks are learned as GPM learns them, bit for bit, where no task is trusted."""
    models = [mlp(), mlp()]
    TRGP_, GPM_ = TRGP(models[0], heads=["head"], trust=1.0), GPM(models[1], heads=["head"])
    for method in (TRGP_, GPM_):
        learn(method, [task_data(0), task_data(1)])
    for ours, theirs in zip(*(model.parameters() for model in models), strict=True):
        assert torch.equal(ours, theirs)


# State and memory.


@few
@given(networks(), st.booleans(), st.booleans())
def test_directions_and_scalings_come_back_to_the_bit(model, off_by_one, within_a_task):
    settings = {"heads": ["head"], "threshold": 0.7, "trust": 0.05, "off_by_one": off_by_one}
    fresh, method = TRGP(copy.deepcopy(model), **settings), TRGP(model, **settings)
    learn_two_begin_third(method)
    if not within_a_task:
        method.end_task(images(2))
    fresh.model.load_state_dict(model.state_dict())
    fresh.load_state_dict(reloaded(method.state_dict()))
    for name in (f"{name}.weight" for name in LAYERS):
        for task in range(len(method.chosen)):
            for ours, theirs in zip(own_bases(fresh, task, name), own_bases(method, task, name), strict=True):
                assert torch.equal(ours, theirs)
        for task in range(3):
            ours, theirs = fresh._changes[task].get(name), method._changes[task].get(name)
            assert (ours is None) == (theirs is None) == (task == 0)
            if ours is not None:
                assert ours.tasks == theirs.tasks
                for a, b in zip([*ours.bases, *ours.Q], [*theirs.bases, *theirs.Q], strict=True):
                    assert torch.equal(a, b)
                assert all(q.requires_grad == (within_a_task and task == 2) for q in ours.Q)
    x = images(0)[0][0]
    for task in range(3):
        assert torch.equal(outputs_of(fresh, task, x), outputs_of(method, task, x))
    assert fresh.bytes() == method.bytes()


@pytest.mark.parametrize(("dtype", "size"), [(torch.float64, 8), (torch.float32, 4)])
@pytest.mark.parametrize("off_by_one", [False, True])
def test_bytes_by_hand(dtype, size, off_by_one):
    """Bases and indices at 8 bytes each; Q, head, and nothing else, in the dtype of the model."""
    method = TRGP(mlp(dtype=dtype), heads=["head"], threshold=0.7, trust=0.05, off_by_one=off_by_one)
    tasks = [task_data(task, dtype=dtype) for task in range(3)]
    learn(method, tasks)
    scaled = sum(S.shape[2] ** 2 for of in method._changes for change in of.values() for S in change.bases)
    assert scaled > 0
    head = sum(p.numel() for p in method.model.head.parameters())
    own = size * (scaled + 3 * head)
    assert method.bytes() == {"memory": 8 * numbers_in_memory(method) + own, "per_task": own // 3}


@pytest.mark.parametrize("off_by_one", [False, True])
def test_a_saved_state_is_as_large_as_what_it_holds(off_by_one):
    """A slice would be saved with all it was cut from."""
    method = TRGP(mlp(), heads=["head"], threshold=0.7, trust=0.05, off_by_one=off_by_one)
    learn(method, [task_data(task) for task in range(3)])
    for tensor in tensors_in(method.state_dict()["memory"]):
        assert tensor.untyped_storage().nbytes() == tensor.numel() * tensor.element_size()


def at(state, task, name=FIRST):
    return state["memory"]["chosen"][task][name][0]


FOREIGN = [
    (lambda s: s["memory"].pop("chosen"), "it lacks 'chosen'"),
    (lambda s: at(s, 0)["columns"].fill_(99), r"'first.weight' has a basis of \d columns .* a task has \[99"),
    (lambda s: at(s, 1)["columns"].fill_(-1), r"of which a task has \[-1"),
    (lambda s: at(s, 1).update(beside=torch.zeros(5, 1)), "'first.weight' has directions of 5 inputs .* of 8 here"),
    (lambda s: at(s, 1).pop("beside"), "it lacks 'beside'"),
    (lambda s: s["memory"]["chosen"][0][FIRST].append(at(s, 0)), "'first.weight' has 1 bases .* columns of 2"),
    (lambda s: s["memory"]["chosen"][0].update(other=[]), "it lacks 'other'"),
    (lambda s: s["memory"]["bases"][FIRST].append(torch.eye(8)), r"of \[8, 8\] inputs in the state"),
    (lambda s: s["memory"]["bases"].update({FIRST: [torch.eye(7)]}), r"of \[7\] inputs in the state"),
    (lambda s: s["changes"][2][FIRST].update(tasks=[0, 7]), r"'first.weight' trusts the tasks \[7\] .* memory has 2"),
    (lambda s: s["changes"][2][FIRST].update(tasks=[-1, 0]), r"trusts the tasks \[-1\]"),
    (lambda s: s["changes"][2][FIRST]["Q"].pop(), "'first.weight' has Q of shape .* its tasks need"),
    (lambda s: s["changes"][2][FIRST].update(Q=[torch.eye(2)] * 2), r"has Q of shape \[\[2, 2\], \[2, 2\]\]"),
    (lambda s: s["changes"][2][FIRST].pop("tasks"), "it lacks 'tasks'"),
    (lambda s: s["memory"]["bases"][FIRST][0].mul_(2), "a subspace needs an orthonormal basis"),
]


@functools.cache  # a state that is refused changes nothing, so one serves all
def within_the_third_task(cls):
    method = cls(mlp(), heads=["head"], threshold=0.6, trust=0.0)
    learn_watched(method, [task_data(0), task_data(1)])
    method.begin_task(2, task_data(2))
    return method


@pytest.mark.parametrize(("spoil", "message"), FOREIGN)
@pytest.mark.parametrize("cls", [TRGP, CUBER, TRGPSD])
def test_a_foreign_state_is_refused_and_changes_nothing(cls, spoil, message):
    method = within_the_third_task(cls)
    assert len(method.changes[FIRST].tasks) == 2
    state = reloaded(method.state_dict())
    spoil(state)
    before, chosen, tasks = method.memory, method.chosen, list(method.tasks)
    with pytest.raises(ValueError, match=message) as refused:
        method.load_state_dict(state)
    assert isinstance(refused.value, ForeignState) or "orthonormal" in message
    assert method.memory is before
    assert method.chosen is chosen
    assert method.tasks == tasks


class Branches(nn.Module):
    """A layer that all tasks use, and one of two that each task chooses from."""

    def __init__(self):
        super().__init__()
        self.stem, self.left, self.right = nn.Linear(8, 9), nn.Linear(9, 6), nn.Linear(9, 6)
        self.head, self.way = nn.Linear(6, 3), "left"

    def forward(self, x):
        return self.head(self.get_submodule(self.way)(self.stem(x).tanh()).relu())


@pytest.mark.parametrize("cls", [TRGP, CUBER, TRGPSD])
def test_branches_that_a_task_does_not_take(cls):
    torch.manual_seed(0)
    model = Branches().double()
    method = cls(model, heads=["head"], threshold=0.7, trust=0.0)
    for task, way in enumerate(["left", "right", "left", "right"]):
        model.way = way
        learn_watched(method, [task_data(task)])
    ways = [set(of_task) - {"stem.weight"} for of_task in method.chosen]
    assert ways == [{"left.weight"}, {"right.weight"}] * 2
    trusted = [{name: change.tasks for name, change in of.items()} for of in method._changes]
    assert "right.weight" not in trusted[1]
    assert trusted[2]["left.weight"] == [0]
    assert "right.weight" not in trusted[2]
    assert trusted[3]["right.weight"] == [1]
    fresh = cls(Branches().double(), heads=["head"], threshold=0.7, trust=0.0)
    fresh.model.load_state_dict(model.state_dict())
    fresh.load_state_dict(reloaded(method.state_dict()))
    fresh.model.way = model.way = "left"
    x = task_data(0)[0][0]
    assert torch.equal(outputs_of(fresh, 2, x), outputs_of(method, 2, x))


# Settings, and what every method promises.


def test_readings():
    assert TRGP.reading("paper") == {}
    published = {"first_rule": "below", "off_by_one": True, "gate": "first", "closed": ("*shortcut*",)}
    assert TRGP.reading("official") == published
    TRGP(mlp(), heads=["head"], **published)


@pytest.mark.parametrize(
    ("argument", "value", "expected"),
    [
        ("trust", -0.1, "trust must be a share, 0 or more; got -0.1"),
        ("trust", float("nan"), "trust must be"),
        ("most_trusted", -1, "most_trusted must be a number of tasks, 0 or more; got -1"),
        ("gradient_samples", 0, "gradient_samples must be a positive number of inputs, or None for all; got 0"),
        ("gate", "second", "gate must be 'layer' or 'first'; got 'second'"),
        ("third_task", "first", "third_task must be 'any' or 'second'; got 'first'"),
        ("closed", "*shortcut*", r"closed must be a list of name patterns; got '\*shortcut\*'"),
        ("threshold", 2.0, "threshold must be a share"),
    ],
)
def test_a_bad_setting_is_named_and_leaves_the_model_alone(argument, value, expected):
    model = mlp()
    with pytest.raises(ValueError, match=expected):
        TRGP(model, heads=["head"], **{argument: value})
    assert not any("forward" in vars(module) for module in model.modules())


def test_it_keeps_the_promises_of_all_methods_while_it_scales():
    made = []

    def make(model):
        made.append(TRGP(model, trust=0.05, threshold=0.8, off_by_one=True))
        return made[-1]

    check_method(make)
    assert sum(len(of) for method in made for of in method._changes) > len(made)

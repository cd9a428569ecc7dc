"""Whom a layer of TRGP trusts: the tasks by hand, the layers, and the gradient it is decided by."""

import itertools

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import nn
from torch.nn.functional import cross_entropy
from torch.testing import assert_close

from codecl.algebra import Subspace
from codecl.methods import TRGP
from tests.algebra.cases import generator, normal, orthonormal
from tests.methods.cases import FIRST, SECOND, learn, mlp, task_data
from tests.methods.gpm_reference import projector
from tests.methods.trgp_reference import own_bases


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

"""TRGP-SD against principal angles on dense matrices: what tasks share is held wholly, the rest by μ."""

import copy
import functools

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from codecl import check_method
from codecl.algebra import Moments
from codecl.method.state import ForeignState
from codecl.methods import TRGP, TRGPSD
from tests.algebra import dense
from tests.algebra.cases import generator, normal, orthonormal
from tests.methods.cases import FIRST, SECOND, assert_same, learn, mlp, task_data
from tests.methods.gpm_reference import LAYERS, networks, one_layer, projector, streams
from tests.methods.trgp_reference import SlowSD, intersection, numbers_in_memory, reloaded, run_beside, tensors_in

few = settings(max_examples=6)


@few
@given(networks(), st.sampled_from([0.1, 0.5]), st.sampled_from([0.9, 0.3]), st.booleans())
def test_three_tasks_end_as_the_equations_do(model, tolerance, plasticity, off_by_one):
    options = {"tolerance": tolerance, "plasticity": plasticity, "trust": 0.3, "off_by_one": off_by_one}
    slow = SlowSD(copy.deepcopy(model), 0.2, 0.7, 0.05, **options)
    method = TRGPSD(
        model, heads=["head"], threshold=0.7, increment=0.05, samples=None, gradient_samples=None, **options
    )
    run_beside(slow, method)
    for name in LAYERS:
        for ours, theirs in zip(method.stable[f"{name}.weight"], slow.shared[name], strict=True):
            assert_close(projector(ours), theirs, atol=1e-7, rtol=0)


def after(tasks, **options):
    """A method on one layer, after tasks with the given rows in it."""
    method = TRGPSD(one_layer(tasks[0].shape[1]), heads=["head"], increment=0.0, **options)
    for t, X in enumerate(tasks):
        method.tasks.append(t)
        method.chosen.append({})
        method._fold("a.weight", [Moments.of(X)])
    method._protect()
    return method


@given(streams(), st.sampled_from([0.05, 0.3]), st.sampled_from(["reach", "below"]), st.booleans())
def test_the_split_of_the_memory_by_principal_angles(drawn, tolerance, first_rule, off_by_one):
    """What is held is orthonormal, spans the memory and no more, and what both sides have of it comes first."""
    tasks, threshold = drawn
    options = {"first_rule": first_rule, "off_by_one": off_by_one, "threshold": threshold}
    old = after(tasks[:-1], **options).memory["a.weight"][0].basis
    method = after(tasks, tolerance=tolerance, plasticity=0.4, **options)
    (B,), (shared,) = method.memory["a.weight"], method.stable["a.weight"]
    V = dense.gpm_later_task(tasks[-1][:0].mT, tasks[-1], threshold)
    cosines = torch.linalg.svdvals(old.mT @ V)
    assume(bool(((cosines - 1 + tolerance).abs() > 1e-6).all()))
    expected = intersection(old, V, tolerance) if old.shape[1] else projector(B.basis)
    assert_close(projector(shared), expected, atol=1e-6, rtol=0)
    (held,), (values,) = method._held("a.weight")
    assert_close(held.mT @ held, dense.identity(B.rank), atol=1e-10, rtol=0)
    assert_close(projector(held), projector(B.basis), atol=1e-10, rtol=0)
    assert torch.equal(held[:, values == 1], shared)
    assert set(values.tolist()) <= {1.0, 0.4}
    A = normal(generator(0), 1, 4, len(old))
    by_formula = A - A @ expected - 0.4 * A @ (projector(B.basis) - expected)
    assert_close(method.weights["a.weight"].projection(A), by_formula, atol=1e-6, rtol=0)


def test_the_split_by_hand():
    """The past has e₀, e₁, e₂; the new task e₀, and a direction at 45° between e₁ and e₃."""
    e = torch.eye(5, dtype=torch.float64)
    past, new = (
        3 * e[:3] + torch.diag(torch.tensor([0.2, 0.1, 0.0])).double() @ e[:3],
        torch.stack([2 * e[0], e[1] + e[3]]),
    )
    for tolerance, shared in ((0.1, [0]), (0.3, [0, 1])):  # cos 45° = 0.707
        method = after([past, new], threshold=0.999, tolerance=tolerance, plasticity=0.25)
        assert_close(projector(method.stable["a.weight"][0]), projector(e[:, shared]))
        G = torch.ones(1, 3, 5, dtype=torch.float64)
        projected = method.weights["a.weight"].projection(G)[0, 0]
        assert_close(projected, torch.tensor([0.0, *[0.0 if 1 in shared else 0.75], 0.75, 0.75, 1.0]).double())


def test_all_that_the_first_task_used_is_held_wholly():
    g = generator(0)
    X = normal(g, 9, 3) @ orthonormal(g, 6, 3).mT
    for first_rule, rank in (("reach", 3), ("below", 2)):
        method = after([X], threshold=0.9999, first_rule=first_rule, plasticity=0.0)
        (B,) = method.memory["a.weight"]
        assert B.rank == rank
        A = normal(g, 1, 2, 6)
        assert_close(method.weights["a.weight"].projection(A), B.remove(A), atol=1e-12, rtol=0)


def test_a_past_without_directions_is_no_past():
    """Nothing of the first task stays below the threshold: what the second adds is held wholly, and nothing else."""
    g = generator(1)
    first, second = normal(g, 1, 6), normal(g, 4, 6)
    for off_by_one in (False, True):
        method = after([first, second], threshold=0.95, first_rule="below", off_by_one=off_by_one, plasticity=0.0)
        (B,) = method.memory["a.weight"]
        assert B.rank == (2 if off_by_one else 3)
        A = normal(g, 1, 2, 6)
        assert_close(method.weights["a.weight"].projection(A), B.remove(A), atol=1e-12, rtol=0)


def test_full_plasticity_is_trgp():
    models = [mlp(), mlp()]
    options = {"heads": ["head"], "threshold": 0.7, "trust": 0.05}
    for method in (TRGP(models[0], **options), TRGPSD(models[1], plasticity=1.0, **options)):
        learn(method, [task_data(task) for task in range(3)])
        assert len(method.per_task.effective[2]) == 2
    for ours, theirs in zip(*(model.parameters() for model in models), strict=True):
        assert_close(ours, theirs, atol=1e-10, rtol=0)


def test_a_layer_that_a_task_does_not_reach_keeps_its_split():
    g = generator(2)
    method = after([normal(g, 3, 6), normal(g, 3, 6)], threshold=0.9, tolerance=0.5)
    before = method.stable["a.weight"]
    method.tasks.append(2)
    method._inputs = lambda loader: {}
    method.remember([])
    assert method.stable["a.weight"] is before
    assert method.weights["a.weight"].projection is not None


# State and memory.


@functools.cache  # none of the tests changes it
def learned():
    method = TRGPSD(mlp(), heads=["head"], threshold=0.7, trust=0.05, tolerance=0.3)
    learn(method, [task_data(task) for task in range(3)])
    return method


def test_the_split_comes_back_to_the_bit():
    method = learned()
    other = TRGPSD(mlp(), heads=["head"], threshold=0.7, trust=0.05, tolerance=0.3)
    other.model.load_state_dict(method.model.state_dict())
    other.load_state_dict(reloaded(method.state_dict()))
    for name in (FIRST, SECOND):
        assert torch.equal(other.stable[name][0], method.stable[name][0])
        assert 0 < method.stable[name][0].shape[1] < method.memory[name][0].rank
        A = normal(generator(1), *method.weights[name].shape)
        assert torch.equal(other.weights[name].projection(A), method.weights[name].projection(A))
    assert other.bytes() == method.bytes()


def test_bytes_by_hand():
    """As TRGP, and the directions that are shared."""
    method = learned()
    scaled = sum(S.shape[2] ** 2 for of in method.per_task.effective for change in of.values() for S in change.bases)
    own = 8 * (scaled + 3 * sum(p.numel() for p in method.model.head.parameters()))
    stable = sum(shared.numel() for several in method.stable.values() for shared in several)
    assert stable > 0
    assert method.bytes() == {"memory": 8 * (numbers_in_memory(method) + stable) + own, "per_task": own // 3}
    for tensor in tensors_in(method.state_dict()["memory"]):
        assert tensor.untyped_storage().nbytes() == tensor.numel() * tensor.element_size()


FOREIGN = [
    (lambda m: m.pop("stable"), "it lacks 'stable'"),
    (lambda m: m["stable"].pop(FIRST), "it lacks 'first.weight'"),
    (lambda m: m["stable"].update({FIRST: []}), r"'first.weight' has directions of \[\] inputs in the state"),
    (lambda m: m["stable"].update({FIRST: [torch.eye(7)]}), r"directions of \[7\] inputs in the state"),
    (
        lambda m: m["stable"].update({FIRST: [torch.eye(8)]}),
        "shares directions in the state that its bases do not have",
    ),
    (lambda m: m["stable"].update({FIRST: [2 * torch.eye(8)]}), "a subspace needs an orthonormal basis"),
    (lambda m: m["bases"].update({FIRST: []}), r"'first.weight' has directions of \[\] inputs in the state"),
    (lambda m: m["bases"][SECOND][0].mul_(2), "a subspace needs an orthonormal basis"),
    (lambda m: m["chosen"][0][SECOND][0]["columns"].fill_(99), "'second.weight' has a basis of"),
]


@pytest.mark.parametrize(("spoil", "message"), FOREIGN)
def test_a_foreign_state_is_refused_and_changes_nothing(spoil, message):
    method = learned()
    state = reloaded(method.state_dict())
    state["effective"] = [{} for _ in state["effective"]]
    spoil(state["memory"])
    before = reloaded(method.state_dict())
    with pytest.raises(ValueError, match=message) as refused:
        method.load_state_dict(state)
    assert isinstance(refused.value, ForeignState) or "orthonormal" in message
    assert_same(method.state_dict(), before)


# Settings, and what every method promises.


def test_readings():
    assert TRGPSD.preset("paper") == {}
    assert TRGPSD.preset("official") == TRGP.preset("official")


@pytest.mark.parametrize(
    ("argument", "value", "expected"),
    [
        ("tolerance", 0.0, r"tolerance must be 1 − cos θ in \(0, 1\); got 0.0"),
        ("tolerance", 1.0, "tolerance must be"),
        ("plasticity", 1.1, "plasticity must be a share from 0 to 1; got 1.1"),
        ("plasticity", float("nan"), "plasticity must be"),
        ("most_trusted", -1, "most_trusted must be"),
    ],
)
def test_a_bad_setting_is_named_and_leaves_the_model_alone(argument, value, expected):
    model = mlp()
    with pytest.raises(ValueError, match=expected):
        TRGPSD(model, heads=["head"], **{argument: value})
    assert not any("forward" in vars(module) for module in model.modules())


@pytest.mark.slow
def test_it_keeps_the_promises_of_all_methods_while_it_scales_and_shares():
    made = []

    def make(model):
        made.append(TRGPSD(model, trust=0.05, threshold=0.8, tolerance=0.5))
        return made[-1]

    check_method(make)
    whole = [method for method in made if len(method.chosen) == 3]
    assert all(len(method.per_task.effective[2]) == 3 for method in whole)
    for method in whole:
        assert any(
            0 < U.shape[1] < B.rank
            for n in method.memory
            for B, U in zip(method.memory[n], method.stable[n], strict=True)
        )

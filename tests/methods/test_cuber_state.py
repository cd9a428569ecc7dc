"""What CUBER remembers: regimes within a task, bytes by hand, foreign states refused."""

import pytest
import torch
from torch import optim
from torch.testing import assert_close

from codecl.method.state import ForeignState
from codecl.methods import CUBER
from tests.algebra.cases import generator, normal
from tests.methods.cases import FIRST, SECOND, assert_same, mlp, task_data
from tests.methods.cuber_cases import SETTINGS, demote, gaining, step
from tests.methods.trgp_reference import learn_watched, numbers_in_memory, reloaded, tensors_in


def fresh_copy(method, **options):
    """Another method with the state of ``method``, through a file."""
    other = CUBER(mlp(), **SETTINGS | options)
    other.model.load_state_dict(method.model.state_dict())
    other.load_state_dict(reloaded(method.state_dict()))
    return other


def test_a_state_from_within_a_task_brings_back_regimes_and_what_is_open():
    method, optimizer = gaining(strength=0.5)
    for x, y in method.watch(task_data(1)):
        step(method, optimizer, x, y)
    method.effective[FIRST].in_R3.fill_(True)
    method.effective[SECOND].in_R3.fill_(True)
    demote(method, names=[SECOND])
    other = fresh_copy(method, strength=0.5)
    guarded = optim.SGD(other.model.parameters(), lr=0.1)
    other.guard(guarded)
    for name, change in method.effective.items():
        assert other.effective[name].in_R3.tolist() == change.in_R3.tolist() == [name == FIRST]
        assert torch.equal(other.effective[name].W_before, change.W_before)
        A = normal(generator(1), *method.weights[name].shape)
        assert torch.equal(other.weights[name].projection(A), method.weights[name].projection(A))
    for of, with_ in ((method, optimizer), (other, guarded)):
        for x, y in of.watch(task_data(1)):
            step(of, with_, x, y)
        of.end_task(task_data(1))
    for ours, theirs in zip(tensors_in(other.state_dict()), tensors_in(method.state_dict()), strict=True):
        assert torch.equal(ours, theirs)
    for ours, theirs in zip(other.model.parameters(), method.model.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def test_the_learning_state_holds_the_regimes():
    method, optimizer = gaining()
    early = method.state_dict(within_task=True)
    demote(method, names=[SECOND])
    late = method.state_dict(within_task=True)
    A = normal(generator(1), *method.weights[SECOND].shape)
    (B,) = method.memory[SECOND]
    for state, flag, expected in ((early, True, A), (late, False, B.remove(A)), (early, True, A)):
        method.load_state_dict(state)
        assert method.effective[SECOND].in_R3.tolist() == [flag]
        assert_close(method.weights[SECOND].projection(A), expected, atol=1e-12, rtol=0)
    demote(method, names=[FIRST])
    assert early["memory"]["task"]["in_R3"][FIRST].tolist() == [True]  # a state that was taken does not change
    for x, y in method.watch(task_data(1)):
        step(method, optimizer, x, y)
    Q = method.effective[FIRST].Q[0].detach().clone()
    moved = method.state_dict(within_task=True)
    method.load_state_dict(early)
    assert not torch.equal(method.effective[FIRST].Q[0], Q)
    method.load_state_dict(moved)
    assert torch.equal(method.effective[FIRST].Q[0], Q)


def test_once_a_task_has_been_learned_all_of_the_past_is_protected_again():
    method, _ = gaining()
    method.end_task(task_data(1))
    other = fresh_copy(method)
    for name in (FIRST, SECOND):
        (B,), A = method.memory[name], normal(generator(1), *method.weights[name].shape)
        for of in (method, other):
            assert_close(of.weights[name].projection(A), B.remove(A), atol=1e-12, rtol=0)


@pytest.mark.parametrize(("dtype", "size"), [(torch.float64, 8), (torch.float32, 4)])
def test_bytes_by_hand(dtype, size):
    """As TRGP, a gradient of every weight for every task, and a byte for each regime."""
    method = CUBER(mlp(dtype=dtype), **SETTINGS | {"agreement": -1.0})
    tasks = [task_data(task, dtype=dtype) for task in range(3)]
    learn_watched(method, tasks)
    scaled = [S.shape[2] ** 2 for of in method.per_task.effective for change in of.values() for S in change.bases]
    head = sum(p.numel() for p in method.model.head.parameters())
    own = size * (sum(scaled) + 3 * head) + len(scaled)
    gradients = 3 * size * sum(method.model.get_parameter(name).numel() for name in (FIRST, SECOND))
    assert method.bytes() == {"memory": 8 * numbers_in_memory(method) + gradients + own, "per_task": own // 3}
    assert any(change.gaining() for change in method.per_task.effective[2].values())
    assert all(
        change.W_before.numel() == 0 and not change.open for of in method.per_task.effective for change in of.values()
    )
    state = method.state_dict()
    for tensor in tensors_in([state["memory"], state["effective"]]):  # a slice would be saved with all it was cut from
        assert tensor.untyped_storage().nbytes() == tensor.numel() * tensor.element_size()


def test_the_weight_of_before_is_held_during_the_task_alone():
    method, _ = gaining()
    during = method.bytes()["memory"]
    weights = 8 * sum(method.model.get_parameter(name).numel() for name in (FIRST, SECOND))
    method.memory_state = dict
    own = 8 * sum(p.numel() for p in method.model.head.parameters())
    scaled = sum(S.shape[2] ** 2 * 8 + 1 for change in method.effective.values() for S in change.bases)
    assert method.bytes()["memory"] == weights + own + scaled < during


FOREIGN = [
    (lambda s: s["memory"].pop("gradients"), "it lacks 'gradients'"),
    (lambda s: s["memory"]["gradients"].pop(), "gradients of 0 tasks, and inputs of 1"),
    (lambda s: s["memory"]["gradients"][0].update({FIRST: torch.zeros(1, 8, 16)}), r"a gradient of shape \[1, 8, 16\]"),
    (lambda s: s["memory"]["gradients"][0].update(other=torch.zeros(1)), "it lacks 'other'"),
    (lambda s: s["effective"][1][FIRST].update(W_before=torch.zeros(1, 8, 16)), r"a weight of shape \[1, 8, 16\]"),
    (
        lambda s: s["effective"][1][FIRST].update(in_R3=torch.tensor([True, True])),
        "2 regimes in the state",
    ),
    (lambda s: s["effective"][1][FIRST].pop("in_R3"), "it lacks 'in_R3'"),
]


@pytest.mark.parametrize(("spoil", "message"), FOREIGN)
def test_a_foreign_state_is_refused_and_changes_nothing(spoil, message):
    method, _ = gaining()
    state = reloaded(method.state_dict())
    spoil(state)
    before = reloaded(method.state_dict())
    with pytest.raises(ForeignState, match=message):
        method.load_state_dict(state)
    assert_same(method.state_dict(), before)

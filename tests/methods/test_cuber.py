"""CUBER against its equations on dense matrices: regimes, the cost of change, what is open, and who is demoted."""

import copy
from collections import OrderedDict

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import nn, optim
from torch.nn.functional import cross_entropy
from torch.testing import assert_close

from codecl import check_method
from codecl.algebra import Subspace
from codecl.methods import CUBER, TRGP
from codecl.methods.state import ForeignState

from ..algebra.cases import generator, normal, orthonormal
from .cases import mlp, task_data, train
from .gpm_reference import LAYERS, networks, projector
from .trgp_reference import (
    SlowCUBER,
    learn_watched,
    numbers_in_memory,
    own_bases,
    reloaded,
    run_beside,
    tensors_in,
)

few = settings(max_examples=6)
FIRST, SECOND = "first.weight", "second.weight"
SETTINGS = {"heads": ["head"], "threshold": 0.6, "trust": 0.05, "samples": None, "gradient_samples": None}
BATCH = [(torch.zeros(1, 8, dtype=torch.float64), torch.tensor([0]))]


@few
@given(networks(), st.sampled_from([0.0, -0.3, 0.2]), st.sampled_from([0.3, 0.0]))
def test_three_tasks_end_as_the_equations_do(model, agreement, strength):
    options = {"trust": 0.2, "agreement": agreement, "strength": strength}
    slow = SlowCUBER(copy.deepcopy(model), 0.2, 0.6, 0.05, **options)
    method = CUBER(model, **SETTINGS | {"increment": 0.05} | options)
    run_beside(slow, method)
    for task, of_task in enumerate(slow.past):
        for name in LAYERS:
            for ours, theirs in zip(method.past_gradients[task][f"{name}.weight"], of_task[name], strict=True):
                assert_close(ours, theirs, atol=1e-9, rtol=0)


class Noting(SlowCUBER):
    """The reference, noting who was in which regime at the start of a task and at its end."""

    def sort(self, G):
        super().sort(G)
        self.start = copy.deepcopy(self.R3)

    def end(self, batches):
        for name in self.R3:
            R1, R2 = set(range(self.learned)) - set(self.trusted[name]), set(self.trusted[name]) - set(self.start[name])
            self.noted = [*getattr(self, "noted", []), (R1, R2, set(self.start[name]), set(self.R3[name]))]
        super().end(batches)


def test_what_the_comparison_is_worth():
    """In such a run there are tasks of all regimes, some in R3 are demoted, and some stay."""
    torch.manual_seed(2)
    modules = {"conv": nn.Conv2d(4, 4, 2, dilation=(1, 2), groups=2), "tanh": nn.Tanh(), "flat": nn.Flatten()}
    modules |= {"hidden": nn.Linear(60, 7), "relu": nn.ReLU(), "head": nn.Linear(7, 3)}
    model = nn.Sequential(OrderedDict(modules)).double()
    slow = Noting(copy.deepcopy(model), 0.2, 0.6, trust=0.5, strength=0.3)
    method = CUBER(model, **SETTINGS | {"increment": 0.0, "trust": 0.5, "strength": 0.3})
    run_beside(slow, method, tasks=4)
    assert any(R1 for R1, _, _, _ in slow.noted)
    assert any(R2 for _, R2, _, _ in slow.noted)
    assert any(start - end for _, _, start, end in slow.noted)
    assert any(end for _, _, _, end in slow.noted)


# Regimes.


@st.composite
def pasts(draw, tasks=3):
    """A grouped convolution with two matrices, what learned tasks had in it, their gradients, and a new one."""
    g = generator(draw(st.integers(0, 2**31)))
    model = nn.Sequential(nn.Conv2d(4, 6, (2, 1), groups=2), nn.Flatten(), nn.Linear(6, 3)).double()
    B = [Subspace(orthonormal(g, 4, draw(st.integers(1, 4)))) for _ in range(2)]
    own = [[sorted(draw(st.sets(st.integers(0, b.rank - 1)))) for b in B] for _ in range(tasks)]
    return model, B, own, [normal(g, 2, 3, 4) for _ in range(tasks)], normal(g, 2, 3, 4)


def with_past(past, **options):
    model, B, own, gradients, G = past
    method = CUBER(model, heads=["2"], **options)
    method.tasks, method.memory = list(range(len(own))), {"0.weight": B}
    nothing = torch.zeros(4, 0, dtype=torch.float64)
    for of_task, g_j in zip(own, gradients, strict=True):
        columns = [{"columns": torch.tensor(c, dtype=torch.long), "beside": nothing} for c in of_task]
        method.chosen.append({"0.weight": columns})
        method.past_gradients.append({"0.weight": g_j})
    method.gradients = lambda batches: {"0.weight": G}
    return method


def regimes_by_hand(past, trust, agreement):
    """The regime of each task by its definition, at most two in R2 or R3."""
    _, B, own, gradients, G = past
    regimes, shares = {}, {}
    for j, (of_task, g_j) in enumerate(zip(own, gradients, strict=True)):
        parts = [matrix @ projector(b.basis[:, c]) for matrix, b, c in zip(G, B, of_task, strict=True)]
        shares[j] = float(torch.stack(parts).norm() / G.norm())
        cosine = float((g_j * G).sum() / (g_j.norm() * G.norm()))
        assume(abs(shares[j] - trust) > 1e-9 and abs(cosine - agreement) > 1e-9)
        regimes[j] = "R1" if shares[j] <= trust else "R3" if cosine > agreement else "R2"
    for j in sorted(shares, key=shares.get)[:-2]:
        regimes[j] = "R1"
    assume(len(set(shares.values())) == len(shares))
    return regimes


@given(pasts(), st.sampled_from([0.0, 0.3, 0.5]), st.sampled_from([0.0, 0.2, -0.2]))
def test_regimes_and_what_is_open(past, trust, agreement):
    """All that tasks in R1 and R2 had is protected, also where a task in R3 had it too; what only R3 had is open."""
    model, B, own, _, _ = past
    method = with_past(past, trust=trust, agreement=agreement)
    method._protect()
    expected = regimes_by_hand(past, trust, agreement)
    changes = method.prepare(BATCH)
    found = dict.fromkeys(expected, "R1")
    if changes:
        change = changes["0.weight"]
        found |= dict(zip(change.tasks, ["R3" if flag else "R2" for flag in change.in_R3], strict=True))
    assert found == expected
    A = normal(generator(0), 2, 5, 4)
    projected = method.weights["0.weight"].projection(A)
    for i, b in enumerate(B):
        held = {c for j, of_task in enumerate(own) for c in of_task[i] if expected[j] != "R3"}
        if not changes:
            held = set(range(b.rank))  # as TRGP
        O = b.basis[:, sorted(held)]  # noqa: E741
        assert_close(projected[i], A[i] - A[i] @ O @ O.mT, atol=1e-12, rtol=0)
    if "R3" in expected.values():
        assert torch.equal(change.W_before, model[0].weight.reshape(2, 3, 4))
    elif changes:
        assert change.W_before.numel() == 0


def test_a_task_that_had_no_gradient_in_a_layer_cannot_gain():
    g = generator(0)
    model = nn.Sequential(nn.Conv2d(4, 6, (2, 1), groups=2), nn.Flatten(), nn.Linear(6, 3)).double()
    B, G = [Subspace(torch.eye(4, dtype=torch.float64))] * 2, normal(g, 2, 3, 4)
    method = with_past((model, B, [[[0, 1, 2, 3]] * 2], [G], G))
    assert method.prepare(BATCH)["0.weight"].in_R3.tolist() == [True]
    method.past_gradients[0].clear()
    assert method.prepare(BATCH)["0.weight"].in_R3.tolist() == [False]


# A task in which the only old one may gain, in both layers.


def gaining(momentum=0.0, weight_decay=0.0, **options):
    """A second task begun, with the first in R3 everywhere: what its gradient was agrees with the new one."""
    model = mlp()
    method = CUBER(model, **SETTINGS | options)
    optimizer = optim.SGD(model.parameters(), lr=0.1, momentum=momentum, weight_decay=weight_decay)
    method.guard(optimizer)
    method.begin_task(0, task_data(0))
    train(model, method.watch(task_data(0)), optimizer, epochs=1)
    method.end_task(task_data(0))
    method.past_gradients = [method.gradients(task_data(1))]
    method.begin_task(1, task_data(1))
    return method, optimizer


def step(method, optimizer, x, y):
    optimizer.zero_grad()
    cross_entropy(method.model(x), y).backward()
    optimizer.step()


def demote(method, names=(FIRST, SECOND)):
    """The gradient turns around in the layers ``names``, and an epoch ends."""
    for name in names:
        method.past_gradients[0][name].neg_()
    for _ in method.watch(task_data(1)):
        pass


@pytest.mark.parametrize("weight_decay", [0.0, 0.1], ids=["gradient projected", "update projected"])
def test_the_cost_of_change_and_its_gradient(weight_decay):
    method, _ = gaining(strength=0.7, weight_decay=weight_decay)
    S = {name: own_bases(method, 0, name)[0] for name in (FIRST, SECOND)}
    W = {name: method.model.get_parameter(name) for name in S}
    before = {name: value.detach().clone() for name, value in W.items()}
    watched = method.watch(task_data(1))
    next(watched)
    assert float(method.penalty().detach()) == 0.0
    found = torch.autograd.grad(method.penalty(), list(W.values()))
    assert all(torch.equal(G, torch.zeros_like(G)) for G in found)
    with torch.no_grad():
        for seed, value in enumerate(W.values()):
            value += 0.1 * normal(generator(seed), *value.shape)
    moved = {name: (W[name].detach() - before[name]) @ projector(S[name]) for name in S}
    expected = 0.7 * sum(float(D.square().sum()) ** 0.5 for D in moved.values())
    assert float(method.penalty().detach()) == pytest.approx(expected, rel=1e-12)
    found = torch.autograd.grad(method.penalty(), list(W.values()))
    for G, D in zip(found, moved.values(), strict=True):  # nothing is projected out: all of the past is open
        assert_close(G, 0.7 * D / D.norm(), atol=1e-12, rtol=0)
    # One direction of the past is no longer open.
    O = S[FIRST][:, :1]  # noqa: E741
    held = [{"columns": torch.tensor([0]), "beside": S[FIRST][:, :0]}]
    method.chosen.append({FIRST: held})
    method._project_out(method.changes)
    G = torch.autograd.grad(method.penalty(), W[FIRST])[0]
    D = moved[FIRST] / moved[FIRST].norm()
    assert_close(G, 0.7 * (D if weight_decay else D - D @ O @ O.mT), atol=1e-12, rtol=0)
    watched.close()


def test_the_cost_is_part_of_the_step_and_of_the_loss():
    for strength in (0.0, 0.5):
        method, optimizer = gaining(strength=strength)
        batches = task_data(1) * 2
        for x, y in method.watch(batches[:3]):
            step(method, optimizer, x, y)
        method.changes[FIRST].in_R3.fill_(True)
        method.changes[SECOND].in_R3.fill_(True)
        W = {name: method.model.get_parameter(name) for name in (FIRST, SECOND)}
        before = {name: value.detach().clone() for name, value in W.items()}
        for x, y in method.watch(batches[3:]):
            optimizer.zero_grad()
            loss = cross_entropy(method.model(x), y)
            plain = torch.autograd.grad(loss, list(W.values()), retain_graph=True)
            cost = method.penalty()
            extra = torch.autograd.grad(cost, list(W.values()))

            def closure(loss=loss):
                loss.backward()
                return loss

            assert float(optimizer.step(closure)) == pytest.approx(float((loss + cost).detach()), rel=1e-12)
        for (name, value), a, b in zip(W.items(), plain, extra, strict=True):
            assert_close(value.detach(), before[name] - 0.1 * (a + b), atol=1e-12, rtol=0)
            assert (b.abs().max() > 1e-3) == (strength > 0)


def test_a_loop_that_shows_no_batches_is_refused():
    method, optimizer = gaining()
    with pytest.raises(RuntimeError, match=r"cuber looks at the batches .* `for batch in method.watch\(loader\)"):
        step(method, optimizer, *task_data(1)[0])


def test_demotion_protects_what_was_open_and_stays():
    method, _ = gaining()
    A = {name: normal(generator(1), *method.weights[name].shape) for name in (FIRST, SECOND)}
    project = lambda name: method.weights[name].projection(A[name])  # noqa: E731
    assert all(torch.equal(project(name), A[name]) for name in A)
    demote(method, names=[SECOND])
    assert [method.changes[name].in_R3.tolist() for name in (FIRST, SECOND)] == [[True], [False]]
    assert torch.equal(project(FIRST), A[FIRST])
    (B,) = method.memory[SECOND]
    assert_close(project(SECOND), B.remove(A[SECOND]), atol=1e-12, rtol=0)
    demote(method, names=[SECOND])  # it agrees again
    assert [method.changes[name].in_R3.tolist() for name in (FIRST, SECOND)] == [[True], [False]]
    assert_close(project(SECOND), B.remove(A[SECOND]), atol=1e-12, rtol=0)


def test_demotion_looks_at_the_gradient_of_the_last_batch_through_effective_weights():
    method, optimizer = gaining()
    for x, y in method.watch(task_data(1)):
        step(method, optimizer, x, y)
        seen = x, y
    method.changes[FIRST].in_R3.fill_(True)
    bare = mlp()
    bare.load_state_dict(method.model.state_dict())
    effective = {name: method.weights[name].effective().requires_grad_() for name in (FIRST, SECOND)}
    assert (effective[FIRST] - method.model.get_parameter(FIRST)).abs().max() > 1e-4
    cross_entropy(torch.func.functional_call(bare, effective, (seen[0],)), seen[1]).backward()
    (S,), (Q,) = method.changes[FIRST].bases, method.changes[FIRST].Q
    change = torch.eye(8, dtype=torch.float64) + S[0] @ (Q[0].detach() - torch.eye(len(Q[0]))) @ S[0].mT
    G = effective[FIRST].grad @ change.mT
    for shift, stays in ((-1e-6, False), (1e-6, True)):
        method.changes[FIRST].in_R3.fill_(True)
        g = normal(generator(3), *G.shape)
        g = g - (g * G).sum() / G.square().sum() * G  # at right angles to G
        method.past_gradients[0][FIRST] = (g + shift * G * g.norm() / G.norm()).unsqueeze(0)
        for _ in method.watch([task_data(0)[0], seen]):
            pass
        assert method.changes[FIRST].in_R3.tolist() == [stays]


def test_a_layer_without_gradient_in_the_last_batch_keeps_its_regime():
    method, _ = gaining()
    method.gradients = lambda batches: {}
    demote(method)
    assert all(change.in_R3.all() for change in method.changes.values())
    method.gradients = lambda batches: {
        name: torch.zeros(method.weights[name].shape).double() for name in (FIRST, SECOND)
    }
    demote(method)
    assert all(change.in_R3.all() for change in method.changes.values())


@pytest.mark.parametrize(("momentum", "weight_decay"), [(0.0, 0.0), (0.9, 0.0), (0.9, 0.1)])
def test_after_demotion_nothing_moves_in_what_is_protected(momentum, weight_decay):
    method, optimizer = gaining(momentum=momentum, weight_decay=weight_decay)
    inside = lambda: {n: method.model.get_parameter(n) @ own_bases(method, 0, n)[0] for n in (FIRST, SECOND)}  # noqa: E731
    start = inside()
    for x, y in method.watch(task_data(1)):
        step(method, optimizer, x, y)
    method.changes[FIRST].in_R3.fill_(True)
    method.changes[SECOND].in_R3.fill_(True)
    demote(method)
    before = inside()
    assert all((before[name] - start[name]).abs().max() > 1e-4 for name in before)
    for x, y in method.watch(task_data(1) * 3):
        step(method, optimizer, x, y)
    for name, now in inside().items():
        assert_close(now, before[name], atol=1e-12, rtol=0)


# TRGP where nobody gains.


@pytest.mark.parametrize("forgets", [True, False], ids=["no gradients", "agreement=1"])
@pytest.mark.parametrize("off_by_one", [False, True])
def test_without_tasks_that_may_gain_it_is_trgp_to_the_bit(forgets, off_by_one):
    models, states = [mlp(), mlp()], []
    options = SETTINGS | {"off_by_one": off_by_one}
    for method in (TRGP(models[0], **options), CUBER(models[1], agreement=0.0 if forgets else 1.0, **options)):
        optimizer = optim.SGD(method.model.parameters(), lr=0.1)
        method.guard(optimizer)
        for task in range(3):
            method.begin_task(task, task_data(task))
            for _ in range(2):
                train(method.model, method.watch(task_data(task)), optimizer, epochs=1)
            method.end_task(task_data(task))
            if forgets and isinstance(method, CUBER):
                method.past_gradients[-1].clear()
        states.append(method.state_dict())
        assert len(method._changes[2]) == 2
    for ours, theirs in zip(*(model.parameters() for model in models), strict=True):
        assert torch.equal(ours, theirs)
    for part in ("bases", "chosen"):
        for ours, theirs in zip(*(tensors_in(state["memory"][part]) for state in states), strict=True):
            assert torch.equal(ours, theirs)


# State and memory.


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
    method.changes[FIRST].in_R3.fill_(True)
    method.changes[SECOND].in_R3.fill_(True)
    demote(method, names=[SECOND])
    other = fresh_copy(method, strength=0.5)
    guarded = optim.SGD(other.model.parameters(), lr=0.1)
    other.guard(guarded)
    for name, change in method.changes.items():
        assert other.changes[name].in_R3.tolist() == change.in_R3.tolist() == [name == FIRST]
        assert torch.equal(other.changes[name].W_before, change.W_before)
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
    early = method.learning_state()
    demote(method, names=[SECOND])
    late = method.learning_state()
    A = normal(generator(1), *method.weights[SECOND].shape)
    (B,) = method.memory[SECOND]
    for state, flag, expected in ((early, True, A), (late, False, B.remove(A)), (early, True, A)):
        method.load_learning_state(state)
        assert method.changes[SECOND].in_R3.tolist() == [flag]
        assert_close(method.weights[SECOND].projection(A), expected, atol=1e-12, rtol=0)
    demote(method, names=[FIRST])
    assert early[-2].tolist() == [True]  # a state that was taken does not change
    for x, y in method.watch(task_data(1)):
        step(method, optimizer, x, y)
    Q = method.changes[FIRST].Q[0].detach().clone()
    moved = method.learning_state()
    method.load_learning_state(early)
    assert not torch.equal(method.changes[FIRST].Q[0], Q)
    method.load_learning_state(moved)
    assert torch.equal(method.changes[FIRST].Q[0], Q)


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
    scaled = [S.shape[2] ** 2 for of in method._changes for change in of.values() for S in change.bases]
    head = sum(p.numel() for p in method.model.head.parameters())
    own = size * (sum(scaled) + 3 * head) + len(scaled)
    gradients = 3 * size * sum(method.model.get_parameter(name).numel() for name in (FIRST, SECOND))
    assert method.bytes() == {"memory": 8 * numbers_in_memory(method) + gradients + own, "per_task": own // 3}
    assert any(change.gaining() for change in method._changes[2].values())
    assert all(change.W_before.numel() == 0 and not change.open for of in method._changes for change in of.values())
    state = method.state_dict()
    for tensor in tensors_in([state["memory"], state["changes"]]):  # a slice would be saved with all it was cut from
        assert tensor.untyped_storage().nbytes() == tensor.numel() * tensor.element_size()


def test_the_weight_of_before_is_held_during_the_task_alone():
    method, _ = gaining()
    during = method.bytes()["memory"]
    weights = 8 * sum(method.model.get_parameter(name).numel() for name in (FIRST, SECOND))
    method.memory_state = dict
    own = 8 * sum(p.numel() for p in method.model.head.parameters())
    scaled = sum(S.shape[2] ** 2 * 8 + 1 for change in method.changes.values() for S in change.bases)
    assert method.bytes()["memory"] == weights + own + scaled < during


FOREIGN = [
    (lambda s: s["memory"].pop("gradients"), "it lacks 'gradients'"),
    (lambda s: s["memory"]["gradients"].pop(), "gradients of 0 tasks, and inputs of 1"),
    (lambda s: s["memory"]["gradients"][0].update({FIRST: torch.zeros(1, 8, 16)}), r"a gradient of shape \[1, 8, 16\]"),
    (lambda s: s["memory"]["gradients"][0].update(other=torch.zeros(1)), "it lacks 'other'"),
    (lambda s: s["changes"][1][FIRST].update(W_before=torch.zeros(1, 8, 16)), r"a weight of shape \[1, 8, 16\]"),
    (lambda s: s["changes"][1][FIRST].update(in_R3=torch.tensor([True, True])), "2 regimes in the state, and 1 tasks"),
    (lambda s: s["changes"][1][FIRST].pop("in_R3"), "it lacks 'in_R3'"),
]


@pytest.mark.parametrize(("spoil", "message"), FOREIGN)
def test_a_foreign_state_is_refused_and_changes_nothing(spoil, message):
    method, _ = gaining()
    state = reloaded(method.state_dict())
    spoil(state)
    kept = method.memory, method.chosen, method.past_gradients, method.changes[FIRST]
    with pytest.raises(ForeignState, match=message):
        method.load_state_dict(state)
    assert all(a is b for a, b in zip(kept, (method.memory, method.chosen, method.past_gradients), strict=False))
    assert method.changes[FIRST] is kept[3]


# Settings, and what every method promises.


def test_readings():
    assert CUBER.reading("paper") == {}
    assert CUBER.reading("official") == {"first_rule": "below"}


@pytest.mark.parametrize(
    ("argument", "value", "expected"),
    [
        ("agreement", 1.1, "agreement must be a cosine, from −1 to 1; got 1.1"),
        ("agreement", float("nan"), "agreement must be"),
        ("strength", -1.0, "strength must be 0 or more; got -1.0"),
        ("trust", -1.0, "trust must be"),
    ],
)
def test_a_bad_setting_is_named_and_leaves_the_model_alone(argument, value, expected):
    model = mlp()
    with pytest.raises(ValueError, match=expected):
        CUBER(model, heads=["head"], **{argument: value})
    assert not any("forward" in vars(module) for module in model.modules())


def test_it_keeps_the_promises_of_all_methods_while_tasks_gain_and_are_demoted():
    noted = []

    class Noted(CUBER):
        def end_epoch(self):
            before = [len(change.gaining()) for change in self._transfers(self.changes).values()]
            super().end_epoch()
            after = [len(change.gaining()) for change in self._transfers(self.changes).values()]
            noted.extend(zip(before, after, strict=True))

    check_method(lambda model: Noted(model, trust=0.05, threshold=0.8, agreement=-0.1, strength=0.1))
    assert any(after < before for before, after in noted)
    assert any(after > 0 for _, after in noted)

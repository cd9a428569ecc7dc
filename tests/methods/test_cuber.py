"""CUBER against its equations on dense matrices: regimes, the cost of change, what is open, and who is demoted."""

import copy
from collections import OrderedDict

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import nn, optim
from torch.testing import assert_close

from codecl import check_method
from codecl.algebra import Subspace
from codecl.methods import CUBER, TRGP
from tests.algebra.cases import generator, normal, orthonormal
from tests.methods.cases import mlp, task_data, train
from tests.methods.cuber_cases import SETTINGS
from tests.methods.gpm_reference import LAYERS, networks, projector
from tests.methods.trgp_reference import SlowCUBER, run_beside, tensors_in

few = settings(max_examples=6)
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
        assert len(method.per_task.effective[2]) == 2
    for ours, theirs in zip(*(model.parameters() for model in models), strict=True):
        assert torch.equal(ours, theirs)
    for part in ("bases", "chosen"):
        for ours, theirs in zip(*(tensors_in(state["memory"][part]) for state in states), strict=True):
            assert torch.equal(ours, theirs)


# Settings, and what every method promises.


def test_readings():
    assert CUBER.preset("paper") == {}
    assert CUBER.preset("official") == {"first_rule": "below"}


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


@pytest.mark.slow
def test_it_keeps_the_promises_of_all_methods_while_tasks_gain_and_are_demoted():
    noted = []

    class Noted(CUBER):
        def end_epoch(self):
            before = [len(change.gaining()) for change in self._transfers(self.effective).values()]
            super().end_epoch()
            after = [len(change.gaining()) for change in self._transfers(self.effective).values()]
            noted.extend(zip(before, after, strict=True))

    check_method(lambda model: Noted(model, trust=0.05, threshold=0.8, agreement=-0.1, strength=0.1))
    assert any(after < before for before, after in noted)
    assert any(after > 0 for _, after in noted)

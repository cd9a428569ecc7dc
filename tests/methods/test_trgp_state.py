"""What TRGP remembers: states come back to the bit, bytes by hand, foreign states refused."""

import copy
import functools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from codecl.method.state import ForeignState
from codecl.methods import CUBER, TRGP, TRGPSD
from tests.methods.cases import FIRST, assert_same, learn, mlp, outputs_of, task_data
from tests.methods.gpm_reference import LAYERS, images, networks
from tests.methods.trgp_reference import (
    learn_two_begin_third,
    learn_watched,
    numbers_in_memory,
    own_bases,
    reloaded,
    tensors_in,
)

few = settings(max_examples=6)


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
            ours, theirs = fresh.per_task.effective[task].get(name), method.per_task.effective[task].get(name)
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
    scaled = sum(S.shape[2] ** 2 for of in method.per_task.effective for change in of.values() for S in change.bases)
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
    (lambda s: s["effective"][2][FIRST].update(tasks=[0, 7]), r"'first.weight' trusts the tasks \[7\] .* memory has 2"),
    (lambda s: s["effective"][2][FIRST].update(tasks=[-1, 0]), r"trusts the tasks \[-1\]"),
    (lambda s: s["effective"][2][FIRST]["Q"].pop(), "'first.weight' has Q of shape .* its tasks need"),
    (lambda s: s["effective"][2][FIRST].update(Q=[torch.eye(2)] * 2), r"has Q of shape \[\[2, 2\], \[2, 2\]\]"),
    (lambda s: s["effective"][2][FIRST].pop("tasks"), "it lacks 'tasks'"),
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
    assert len(method.effective[FIRST].tasks) == 2
    state = reloaded(method.state_dict())
    spoil(state)
    before = reloaded(method.state_dict())
    with pytest.raises(ValueError, match=message) as refused:
        method.load_state_dict(state)
    assert isinstance(refused.value, ForeignState) or "orthonormal" in message
    assert_same(method.state_dict(), before)


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
    trusted = [{name: change.tasks for name, change in of.items()} for of in method.per_task.effective]
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

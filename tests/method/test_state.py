"""Saving and loading: training on from a restored state is training that never stopped, to the last bit."""

import copy
import io

import pytest
import torch
from torch import nn, optim
from torch.nn.functional import cross_entropy

from codecl import CodeCL, Method, MultiHead
from codecl.method.state import ForeignState
from codecl.networks import MLP
from tests.methods.cases import assert_same, learn, mlp, outputs_of, task_data

pytestmark = pytest.mark.slow

TASKS = [task_data(0), task_data(1), task_data(2)]
X = torch.randn(5, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
SETTINGS = {"aperture": 3.0, "free_dims": 3, "overlap": 0.0}


def plain_network():
    torch.manual_seed(0)
    layers = [nn.Linear(8, 7), nn.BatchNorm1d(7), nn.Tanh(), nn.Linear(7, 6), nn.ReLU(), nn.Linear(6, 3)]
    return nn.Sequential(*layers).double()


def multihead_network():
    torch.manual_seed(0)
    return MultiHead(MLP((8, 7, 6)), 6, [3, 4, 5], bias=True).double()


PLAIN = (plain_network, {"heads": ["5"]})
NETWORKS = {
    "plain": PLAIN,
    "per-task norms": (plain_network, {"heads": ["5"], "norm": "per-task", "bias": "per-task"}),
    "multihead": (multihead_network, {}),
    "official": (plain_network, {"heads": ["5"], "smallest": 3}),
}
OPTIMIZERS = {
    "sgd": lambda model: optim.SGD(model.parameters(), lr=0.1, momentum=0.9),
    "decay": lambda model: optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01),
    "adam": lambda model: optim.Adam(model.parameters(), lr=0.01),
}


class Run:
    """Three tasks in single steps. ``rebuild`` throws everything away but what was saved."""

    def __init__(self, network, optimizer):
        self.network, self.options = NETWORKS[network]
        self.reading = CodeCL.official if network == "official" else CodeCL
        self.optimizer_of = OPTIMIZERS[optimizer]
        self.model = self.network()
        self.method = self.reading(self.model, **SETTINGS | self.options)
        self.optimizer = self.optimizer_of(self.model)
        self.method.guard(self.optimizer)

    def rebuild(self, guard_first):
        buffer = io.BytesIO()
        torch.save([self.model.state_dict(), self.method.state_dict(), self.optimizer.state_dict()], buffer)
        buffer.seek(0)
        of_model, of_method, of_optimizer = torch.load(buffer, weights_only=True)
        with torch.random.fork_rng():
            self.model = self.network()
        self.model.load_state_dict(of_model)
        self.method = self.reading(self.model, **SETTINGS | self.options)
        self.optimizer = self.optimizer_of(self.model)
        if guard_first:
            self.method.guard(self.optimizer)
        self.method.load_state_dict(of_method)
        if not guard_first:
            self.method.guard(self.optimizer)
        self.optimizer.load_state_dict(of_optimizer)

    def go(self, stops=(), guard_first=False):
        for task, batches in enumerate(TASKS):
            torch.manual_seed(task)  # a new head is drawn at random
            self.method.begin_task(f"task {task}", batches)
            for step, (x, y) in enumerate(batches * 3):
                if (task, step) in stops:
                    self.rebuild(guard_first)
                self.optimizer.zero_grad()
                cross_entropy(self.model(x), y).backward()
                self.optimizer.step()
            self.method.end_task(batches)
            if (task, "end") in stops:
                self.rebuild(guard_first)
        return self


@pytest.mark.parametrize("guard_first", [False, True], ids=["load then guard", "guard then load"])
@pytest.mark.parametrize(
    "stops", [{(0, "end")}, {(1, "end")}, {(0, 2)}, {(1, 3)}, {(0, 1), (0, "end"), (1, 2), (1, 5), (2, 4)}]
)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("network", NETWORKS)
def test_training_on_is_training_that_never_stopped(network, optimizer, stops, guard_first):
    through, resumed = Run(network, optimizer).go(), Run(network, optimizer).go(stops, guard_first)
    assert_same(resumed.model.state_dict(), through.model.state_dict())
    assert_same(resumed.method.state_dict(), through.method.state_dict())
    assert_same(resumed.optimizer.state_dict()["state"], through.optimizer.state_dict()["state"])
    for task in range(3):
        assert torch.equal(outputs_of(resumed.method, task, X), outputs_of(through.method, task, X))
    flags = [[p.requires_grad for p in run.model.parameters()] for run in (resumed, through)]
    assert flags[0] == flags[1]
    assert not any(
        p.requires_grad
        for of in resumed.method.per_task.effective
        for change in of.values()
        for p in change.parameters()
    )


def learned(model=None, tasks=2, **settings):
    method = CodeCL(model or mlp(), **{"heads": ["head"]} | SETTINGS | settings)
    learn(method, TASKS[:tasks], epochs=2)
    return method


def test_a_state_is_made_of_tensors_by_parameter_name():
    method = learned()
    state = method.state_dict()
    assert state["weights"] == {"first.weight": [1, 16, 8], "second.weight": [1, 6, 16]}
    assert state["tasks"] == [0, 1]
    assert not state["learning"]
    assert list(state["memory"]["factors"]) == ["first.weight", "second.weight"]
    (factor,) = state["memory"]["factors"]["first.weight"]
    Q = factor @ factor.mT
    C = Q @ torch.linalg.inv(torch.eye(8, dtype=torch.float64) + Q)
    assert (C - method.memory["first.weight"][0].dense()).abs().max() < 1e-12
    assert [sorted(own) for own in state["per_task"]] == [["head.bias", "head.weight"]] * 2
    assert state["effective"][0] == {}
    assert torch.equal(state["effective"][1]["first.weight"]["M"], method.per_task.effective[1]["first.weight"].M)


def test_a_state_does_not_change_when_training_goes_on():
    method = CodeCL(mlp(), heads=["head"], **SETTINGS)
    learn(method, TASKS[:1])
    method.guard(optimizer := optim.SGD(method.model.parameters(), lr=0.1))
    method.begin_task(1, TASKS[1])
    state = method.state_dict()
    kept = copy.deepcopy(state)
    for x, y in TASKS[1]:
        cross_entropy(method.model(x), y).backward()
        optimizer.step()
    method.end_task(TASKS[1])
    assert_same(state, kept)


def without(state, *path):
    state = copy.deepcopy(state)
    inner = state
    for key in path[:-1]:
        inner = inner[key]
    del inner[path[-1]]
    return state


def swapped(factors):
    return factors | {"first.weight": factors["second.weight"]}


def other_shape():
    torch.manual_seed(1)
    model = mlp()
    model.second, model.head = nn.Linear(16, 5).double(), nn.Linear(5, 3).double()
    return model


def other_head():
    model = mlp()
    model.head = nn.Linear(6, 4).double()
    return model


FOREIGN = {
    "not a state": (lambda s: {"weights": {}}, "not the state of a codecl method"),
    "not a mapping": (lambda s: [1], "not the state of a codecl method"),
    "another version": (lambda s: {**s, "format": 99}, "format 99; this version of codecl reads format 2"),
    "another method": (lambda s: {**s, "method": "gpm"}, "of method 'gpm', this one is 'code-cl'"),
    "no memory": (lambda s: without(s, "memory"), r"incomplete: it lacks \['memory'\]"),
    "no memory of one layer": (lambda s: without(s, "memory", "factors", "second.weight"), "lacks 'second.weight'"),
    "a change without M": (lambda s: without(s, "effective", 1, "first.weight", "M"), "lacks 'M'"),
    "an M of another size": (
        lambda s: {
            **s,
            "effective": [{}, {"first.weight": s["effective"][1]["first.weight"] | {"M": torch.ones(1, 9, 9)}}],
        },
        r"'first.weight' has a mixture M \[1, 9, 9\] of",
    ),
    "a task short of changes": (lambda s: without(s, "effective", 1), "incomplete: it names 2 tasks"),
    "a task short of heads": (lambda s: without(s, "per_task", 0), "incomplete: it names 2 tasks"),
    "a head without bias": (lambda s: without(s, "per_task", 1, "head.bias"), r"'head.bias' is \[3\] here and absent"),
    "another shape": (
        lambda s: learned(other_shape()).state_dict(),
        r"another model.*'second.weight' is \[1, 6, 16\] here and \[1, 5, 16\] in the state",
    ),
    "another head": (
        lambda s: learned(other_head()).state_dict(),
        r"task 0 .*'head.weight' is \[3, 6\] here and \[4, 6\] in the state",
    ),
    "other weights": (
        lambda s: learned(skip=["second"]).state_dict(),
        r"'second.weight' is \[1, 6, 16\] here and absent in the state",
    ),
    "other policies": (lambda s: learned(bias="per-task").state_dict(), r"'first.bias' is absent here and \[16\]"),
    "directions of another width": (
        lambda s: {**s, "memory": {"factors": swapped(s["memory"]["factors"])}},
        r"'first.weight' has directions of \[16\] inputs in the state, and of \[8\] here",
    ),
    "changes of another width": (
        lambda s: {**s, "effective": [{}, {"first.weight": s["effective"][1]["second.weight"]}]},
        r"'first.weight' has directions of \[16\] inputs in the state, and of \[8\] here",
    ),
}


@pytest.mark.parametrize("what", FOREIGN)
def test_a_foreign_state_is_refused_and_changes_nothing(what):
    spoil, message = FOREIGN[what]
    method = learned()
    before, outputs = copy.deepcopy(method.state_dict()), [outputs_of(method, task, X) for task in range(2)]
    with pytest.raises(ForeignState, match=message):
        method.load_state_dict(spoil(learned(tasks=2).state_dict()))
    assert_same(method.state_dict(), before)
    for task in range(2):
        assert torch.equal(outputs_of(method, task, X), outputs[task])


def test_the_state_of_fine_tuning_is_not_that_of_code_cl():
    tuned = Method(mlp(), heads=["head"])
    with pytest.raises(ForeignState, match="method 'finetune'"):
        learned().load_state_dict(tuned.state_dict())


def test_loading_an_empty_state_starts_afresh():
    method = learned()
    method.load_state_dict(CodeCL(mlp(), heads=["head"], **SETTINGS).state_dict())
    assert method.tasks == []
    assert method.memory == {}
    assert all(w.projection is None and w.change is None for w in method.weights.values())
    assert all(parameter.requires_grad for parameter in method.model.parameters())
    learn(method, TASKS)
    assert method.tasks == [0, 1, 2]


def stored(value):
    """The tensors in a state, one by one."""
    if isinstance(value, torch.Tensor):
        return [value]
    children = value.values() if isinstance(value, dict) else value if isinstance(value, list) else []
    return [tensor for child in children for tensor in stored(child)]


@pytest.mark.parametrize("tasks", [0, 1, 2, 3])
def test_bytes_are_those_of_the_stored_tensors(tasks):
    method = learned(tasks=tasks)
    state = method.state_dict()
    assert method.bytes()["memory"] == sum(t.numel() * t.element_size() for t in stored(state))
    of_tasks = sum(t.numel() * t.element_size() for t in stored([state["per_task"], state["effective"]]))
    assert method.bytes()["per_task"] == of_tasks // max(tasks, 1)
    if tasks == 2:  # heads of 6·3 + 3, mixings of 3·3 over 8 and 16 inputs, all of 8 bytes
        assert of_tasks == 8 * (2 * 21 + (8 + 3) * 3 + (16 + 3) * 3)


@pytest.mark.parametrize("tasks", [1, 2, 3])
def test_memory_is_never_larger_than_dense_conceptors(tasks):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 6), nn.Linear(6, 3, bias=False)).double()
    model[3].requires_grad_(False)
    method = CodeCL(model, aperture=3.0, free_dims=0)
    learn(method, TASKS[:tasks], epochs=1)
    ranks = [C.rank for several in method.memory.values() for C in several]
    assert ranks[0] == 8
    assert method.bytes() == {"memory": 8 * (8 * ranks[0] + 16 * ranks[1]), "per_task": 0}
    assert method.bytes()["memory"] <= 8 * (8 * 8 + 16 * 16)

"""``contents``: what it says of a memory, against dense matrices; and that it survives saving."""

import itertools
import json

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from codecl import GPM, TRGP, CodeCL, Conceptor, Method
from codecl.attach import project_away, project_conceptors
from codecl.method.memory_summary import nonzero_columns, spectrum
from codecl.methods import METHODS
from codecl.methods.api import API
from codecl.networks import MultiHead
from codecl.training.check import Network, small_stream
from codecl.training.engine import Plan, Trainer
from tests.methods.cases import inputs, learn, mlp, task_data

PROTECTING = [method for method in METHODS.values() if method.protects]
TASKS = [task_data(0), task_data(1), task_data(2)]
SETTINGS = {"code-cl": {"overlap": 0.0, "free_dims": 3}, "trgp": {"trust": 0.0}, "api": {"rho": 1.0, "channels": 4}}
A = 3.0


def network():
    torch.manual_seed(0)
    return MultiHead(Network(), Network.features, [3] * 3)


def dense(weight):
    """``C`` of every matrix, from what the projection leaves."""
    d = getattr(weight, "width", weight.shape[2])
    eye = torch.eye(d, dtype=torch.float64).expand(weight.shape[0], d, d)
    return eye - weight.projection(eye)


@pytest.mark.parametrize("kind", PROTECTING, ids=lambda kind: kind.name)
def test_the_log_has_what_every_method_remembers(kind):
    """Grouped convolutions and linear layers: plain numbers, true ones, and the same after loading."""
    events = []
    method = kind(network(), **SETTINGS.get(kind.name, {}))
    Trainer(method, small_stream(3), Plan(epochs=1), observers=(events.append,)).run()
    told = [event["layers"] for event in events if event["event"] == "task"]
    assert told[-1] == method.memory_summary() == json.loads(json.dumps(method.memory_summary()))
    assert [set(layers) for layers in told] == [set(method.weights)] * 3
    for name, weight in method.weights.items():
        of = told[-1][name]
        assert of["shape"] == list(weight.shape)
        if kind.name == "hat":  # holds entries, and no directions
            lost = 1 - weight.projection(torch.ones(weight.shape, dtype=torch.float64)).mean()
            assert of["capacity"] == pytest.approx(float(lost), abs=1e-6)
            continue
        C = dense(weight)
        assert of["capacity"] == pytest.approx(float(C.diagonal(dim1=1, dim2=2).mean()), abs=2e-6)
        if "rank" in of:
            assert of["rank"] == pytest.approx(float(torch.linalg.matrix_rank(C, atol=1e-4).double().mean()))
    assert sum(of["bytes"] for of in told[-1].values()) <= method.bytes()["memory"]
    assert kind.name == "hat" or all(of["bytes"] > 0 for of in told[-1].values())
    for earlier, later in itertools.pairwise(told):
        assert all(later[name].get("rank", 0) >= earlier[name].get("rank", 0) for name in later)

    model = network()
    model.load_state_dict(method.model.state_dict())
    again = kind(model, **SETTINGS.get(kind.name, {}))
    again.load_state_dict(method.state_dict())
    assert again.memory_summary() == method.memory_summary()


def correlation(batches):
    X = inputs(batches)
    return X.mT @ X / len(X)


def conceptor(batches):
    R = correlation(batches)
    return R @ torch.linalg.inv(R + A**-2 * torch.eye(8, dtype=R.dtype))


def test_code_cl_tells_overlap_freed_directions_and_spectrum():
    """The first layer sees the inputs themselves, so that the paper's equations can be written down."""
    method = CodeCL(mlp(), heads=["head"], aperture=A, free_dims=3, overlap=0.0, samples=None)
    learn(method, TASKS[:1])
    assert {"overlap", "shared"}.isdisjoint(method.memory_summary()["first.weight"])
    learn(method, TASKS[1:2])
    C, B, eye = conceptor(TASKS[0]), conceptor(TASKS[1]), torch.eye(8, dtype=torch.float64)
    both = torch.linalg.inv(torch.linalg.inv(C) + torch.linalg.inv(B) - eye)  # equation 4
    either = eye - torch.linalg.inv(torch.linalg.inv(eye - C) + torch.linalg.inv(eye - B) - eye)  # equation 5
    of = method.memory_summary()["first.weight"]
    assert of["overlap"] == pytest.approx(float(both.trace() / C.trace()), abs=1e-9)
    assert (of["shared"], of["freed"], of["rank"]) == (8, 3, 8)
    assert of["capacity"] == pytest.approx(float(either.trace()) / 8, abs=1e-9)
    assert_close(torch.tensor(of["spectrum"]).double(), torch.linalg.eigvalsh(either).flip(0), atol=1e-6, rtol=0)
    # the factor of C, and U and M of the second task
    assert of["bytes"] == 8 * (8 * 8 + 8 * 3 + 3 * 3)


def test_nothing_is_freed_below_the_overlap_and_the_overlap_is_told():
    method = CodeCL(mlp(), heads=["head"], aperture=A, free_dims=3, overlap=1.0, samples=None)
    learn(method, TASKS[:2])
    of = method.memory_summary()["first.weight"]
    assert of["freed"] == 0
    assert 0 < of["overlap"] < 1


def test_gpm_counts_its_directions_and_trgp_names_whom_it_trusts():
    method = GPM(mlp(), heads=["head"], threshold=0.9, samples=None)
    learn(method, TASKS[:1])
    shares = torch.linalg.eigvalsh(correlation(TASKS[0])).flip(0).cumsum(0)
    k = int((shares < 0.9 * shares[-1]).sum()) + 1
    of = method.memory_summary()["first.weight"]
    assert (of["rank"], of["bytes"]) == (k, 8 * 8 * k)
    assert of["capacity"] == pytest.approx(k / 8, abs=1e-6)

    trusting = TRGP(mlp(), heads=["head"], threshold=0.9, trust=0.0, samples=None)
    learn(trusting, TASKS)
    changes = trusting.per_task.effective[-1]
    assert {name: of["trusted"] for name, of in trusting.memory_summary().items()} == {
        name: changes[name].tasks for name in trusting.weights
    }
    assert sorted(trusting.memory_summary()["first.weight"]["trusted"]) == [0, 1]
    closed = TRGP(mlp(), heads=["head"], threshold=0.9, trust=1.0, samples=None)
    learn(closed, TASKS[:2])
    assert closed.memory_summary()["first.weight"]["trusted"] == []


def test_api_tells_what_it_added():
    method = API(mlp(), heads=["head"], threshold=1.0, increment=0.0, rho=1.0, channels=4, samples=None)
    added = []
    for batches in TASKS:
        learn(method, [batches])
        added.append(method.memory_summary()["first.weight"])
    assert added[0]["added"] == added[0]["expansion"] == 0
    assert added[1]["added"] == added[1]["expansion"] == method.Phi["first.weight"][0].shape[2] > 0
    assert added[2]["expansion"] == added[1]["added"] + added[2]["added"]
    assert added[0]["rank"] == 8
    method.rho = 0.0
    learn(method, TASKS[:1])
    of = method.memory_summary()["first.weight"]
    assert (of["added"], of["expansion"]) == (0, added[2]["expansion"])


@pytest.mark.parametrize("k", [2, 5])
def test_capacity_of_any_projection(k):
    """As a basis and as a matrix, with and without a rest, for a stack of two."""
    U = torch.linalg.qr(torch.randn(2, 6, k, dtype=torch.float64)).Q
    s = torch.rand(2, k, dtype=torch.float64)
    for rests in ([0, 0], [0, 1], [1, 1]):
        projection = project_away(list(U), torch.zeros(1, dtype=torch.float64), list(s), rests)
        expected = sum(float(s[i].sum()) + rests[i] * (6 - k) for i in range(2)) / 12
        assert projection.capacity == pytest.approx(expected, abs=1e-6)
    assert str(project_away([U[0][:, :0]], torch.zeros(1)).capacity) == "0.0"


def test_a_long_spectrum_is_thinned_evenly_from_its_largest_to_its_smallest():
    values = torch.rand(1000, dtype=torch.float64)
    thin = spectrum([values[:300], values[300:]])
    ordered = values.sort(descending=True).values
    assert len(thin) == 32
    assert thin == [round(float(ordered[round(i * 999 / 31)]), 6) for i in range(32)]
    assert spectrum([torch.tensor([0.25, 0.5]), torch.tensor([1.0])]) == [1.0, 0.5, 0.25]
    assert spectrum([torch.zeros(0)]) == []


def test_padding_is_no_direction():
    U = torch.zeros(2, 5, 3)
    U[0, :, 0], U[1, 1, 0], U[1, 2, 2] = 1.0, -1.0, 2.0
    assert nonzero_columns(U) == 1.5


class Noting(Method):
    """A method as a user writes it."""

    name = "noting"
    protects = True

    def prepare(self, loader):
        self.note("first.weight", found=len(self.tasks))
        if len(self.tasks) == 1:
            self.note("first.weight", more=[1, 2])
        return {}

    def remember(self, loader):
        weight = self.weights["first.weight"]
        C = Conceptor.fit(inputs(loader), A)
        weight.projection = project_conceptors([C], weight.parameter)
        self.seen = {"kept": [{"first.weight": C.factor}], "other": torch.zeros(7)}

    def memory_state(self):
        return getattr(self, "seen", {})

    def describe(self, name):
        return {"letters": len(name)}


def test_a_method_of_ones_own_adds_a_few_lines():
    method = Noting(mlp(), heads=["head"])
    learn(method, TASKS[:1])
    first, second = method.memory_summary().values()
    assert second == {"shape": [1, 6, 16], "bytes": 0, "letters": 13}
    held = Conceptor.fit(inputs(TASKS[0]), A).capacity
    assert first == {"shape": [1, 16, 8], "bytes": 8 * 64, "capacity": pytest.approx(held, abs=1e-6), "letters": 12}
    method.begin_task(1, TASKS[1])
    assert method.memory_summary()["first.weight"]["found"] == 1
    again = Noting(mlp(), heads=["head"])
    again.model.load_state_dict(method.model.state_dict())
    again.load_state_dict(method.state_dict())
    assert again.notes == {"first.weight": {"found": 1, "more": [1, 2]}}
    again.note("first.weight", found=9)
    assert method.memory_summary()["first.weight"]["found"] == 1
    method.end_task(TASKS[1])
    method.begin_task(2, TASKS[2])
    assert method.notes == {"first.weight": {"found": 2}}


def test_what_protects_nothing_has_nothing_to_tell():
    assert Method(nn.Sequential(nn.Linear(3, 2))).memory_summary() == {}

"""A weight that cannot be protected is named, with what may be done about it. Nothing is skipped silently."""

import pytest
import torch
from torch import nn
from torch.nn.utils.parametrizations import orthogonal

from codecl import CodeCL, UncoveredWeights
from codecl.attach import survey
from codecl.layers import LinearKind, register, register_added
from codecl.layers import base as kinds
from tests.attach.survey_cases import Net, roles
from tests.layers.cases import normal, redrawn


class Mixture(nn.Module):
    """Raw parameters, of which nothing is known."""

    def __init__(self, count: int = 2) -> None:
        super().__init__()
        self.parts = nn.ParameterList([torch.ones(2, 2) for _ in range(count)])


UNCOVERED = {"mixture": (Mixture(), "ParameterList"), "prelu": (nn.PReLU(), "PReLU")}


@pytest.mark.parametrize(("layer", "holder"), UNCOVERED.values(), ids=UNCOVERED)
def test_a_weight_of_an_unknown_layer_stops_construction(layer, holder):
    model = nn.ModuleDict({"fc": nn.Linear(3, 3), "other": layer})
    first = next(name for name, _ in layer.named_parameters())
    with pytest.raises(UncoveredWeights) as error:
        CodeCL(model)
    message = str(error.value)
    assert f"'other.{first}' ({holder}): no layer kind is registered" in message
    assert f"{len(list(layer.parameters()))} trainable weights would be left unprotected" in message
    assert "EmbeddingBag, GRU, GRUCell, LSTM, LSTMCell, Linear, MultiheadAttention, RNN" in message
    remedies = ("register(", "added=[", 'rest="freeze"', "heads=[", f"skip=['other.{first}'", "requires_grad_(False)")
    for remedy in remedies:
        assert remedy in message
    assert "forward" not in vars(model["fc"])  # nothing was attached
    layer.requires_grad_(False)
    assert set(roles(model).values()) == {"protected", "bias", "frozen"}
    layer.requires_grad_(True)
    assert survey(model, skip=["other"])[f"other.{first}"].role == "skipped"


def test_a_long_list_of_uncovered_weights_is_cut():
    with pytest.raises(UncoveredWeights, match="… and 14 more"):
        survey(Mixture(24))


def test_a_loose_parameter_is_uncovered():
    model = Net()
    model.scale = nn.Parameter(torch.ones(3))
    with pytest.raises(UncoveredWeights, match=r"'scale' \(Net\)"):
        CodeCL(model)


def test_a_parametrized_weight_is_uncovered():
    model = nn.Sequential(orthogonal(nn.Linear(3, 3)), nn.Linear(3, 3))
    with pytest.raises(UncoveredWeights, match=r"'0.parametrizations.weight.original'"):
        CodeCL(model)
    assert survey(model, skip=["0"])["1.weight"].role == "protected"


def test_a_loose_parameter_that_is_only_added_follows_the_bias_policy():
    model = Net()
    model.shift = nn.Parameter(torch.ones(3))
    row = survey(model, added=["shift"], bias="per-task")["shift"]
    assert (row.role, row.note) == ("bias", "named in added; per-task: a copy for every task")
    with pytest.raises(ValueError, match=r"added: there is no module or parameter 'shfit'.*'shift'"):
        survey(model, added=["shfit"])


class Positions(nn.Module):
    def __init__(self):
        super().__init__()
        self.token, self.scale = nn.Parameter(torch.zeros(3)), nn.Parameter(torch.ones(3))


def test_a_type_may_say_which_of_its_parameters_are_added(monkeypatch):
    monkeypatch.setattr(kinds, "_KINDS", dict(kinds._KINDS))
    register_added(Positions, "token")
    with pytest.raises(UncoveredWeights, match=r"'1.scale' \(Positions\): no layer kind is registered") as error:
        survey(nn.Sequential(nn.Linear(3, 3), Positions()))
    assert "'1.token'" not in str(error.value).split("skip=")[0]
    assert "Positions" not in str(error.value).split("Protected layer types")[1]


def test_a_weight_without_values_is_refused():
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(3, 3))
    with pytest.raises(UncoveredWeights, match=r"'0.weight' \(Linear\): on the meta device: it has no values yet"):
        CodeCL(model)


def test_a_kind_refuses_a_module(monkeypatch):
    class Gate(nn.Linear):
        pass

    monkeypatch.setattr(kinds, "_KINDS", dict(kinds._KINDS))
    register(Gate)(type("GateKind", (LinearKind,), {"refusal": classmethod(lambda cls, module: "it opens and closes")}))
    with pytest.raises(UncoveredWeights, match="'0' is Gate: it opens and closes"):
        survey(nn.Sequential(Gate(2, 2)))


def test_a_lazy_layer_is_named_until_its_shape_is_known():
    model = nn.Sequential(nn.LazyLinear(3), nn.Linear(3, 2))
    with pytest.raises(UncoveredWeights, match=r"'0.weight' \(LazyLinear\): lazy.*run one batch through the model"):
        CodeCL(model)
    assert roles(model, heads=["0"])["0.weight"] == "head"
    model(torch.zeros(1, 5))
    assert survey(model)["0.weight"].note == "3 outputs × 5 inputs"


def test_the_rest_is_held_or_kept_per_task_when_asked():
    model = nn.Sequential(nn.Linear(3, 3), nn.PReLU(), Mixture())
    x = normal(0, 4, 3, dtype=torch.float32)
    table = survey(model, rest="freeze")
    assert [row.name for row in table.of_role("rest")] == ["1.weight", "2.parts.0", "2.parts.1"]
    assert table["1.weight"].note == (
        "no layer kind is registered that knows this weight of PReLU; freeze: held after the first task"
    )
    model = redrawn(nn.Sequential(nn.Linear(3, 3), nn.PReLU(), nn.Linear(3, 2)), dtype=torch.float32)
    for rest in ("freeze", "per-task"):
        method = CodeCL(model, rest=rest, heads=["2"])
        method.begin_task(0, [x])
        method.end_task([x])
        before = model(x).detach()
        assert model[1].weight.requires_grad == (rest == "per-task")
        method.begin_task(1, [x])
        if rest == "per-task":
            model[1].weight.data += 0.5
            assert not torch.equal(model(x), before)
        method.end_task([x])
        with method.task(0):
            assert torch.equal(model(x), before)
        method.detach()
    with pytest.raises(ValueError, match=r"rest must be 'freeze', 'per-task' or 'free', or None; got 'held'"):
        CodeCL(model, rest="held")

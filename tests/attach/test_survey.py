"""Every weight of a model in one table: protected, or not and why. Nothing is skipped silently."""

import pytest
import torch
from torch import nn
from torch.nn.utils.parametrizations import orthogonal

from codecl import CodeCL, Method, UncoveredWeights
from codecl.attach import survey
from codecl.layers import LinearKind, register, register_added
from codecl.layers import base as kinds
from tests.layers.cases import normal, redrawn


class Net(nn.Module):
    """One layer of each role."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(4, 6, 3, groups=2)
        self.norm = nn.BatchNorm2d(6)
        self.still = nn.Linear(6, 6).requires_grad_(False)
        self.adapter = nn.Linear(6, 6)
        self.classifier = nn.Linear(6, 3)

    def forward(self, x):
        return self.classifier(self.adapter(self.still(self.norm(self.conv(x)).mean((2, 3)))))


def roles(model: nn.Module, **settings) -> dict[str, str]:
    return {row.name: row.role for row in survey(model, **settings)}


def test_every_role_has_its_row():
    method = CodeCL(Net(), heads=["classifier"], skip=["adapter.weight"])
    assert {row.name: row.role for row in method.layers} == {
        "conv.weight": "protected",
        "conv.bias": "bias",
        "norm.weight": "norm",
        "norm.bias": "norm",
        "still.weight": "frozen",
        "still.bias": "frozen",
        "adapter.weight": "skipped",
        "adapter.bias": "bias",
        "classifier.weight": "head",
        "classifier.bias": "head",
    }
    assert [row.name for row in method.layers] == [name for name, _ in method.model.named_parameters()]
    assert len(method.layers) == 10
    assert list(method.weights) == ["conv.weight"]
    assert method.layers["conv.weight"].shape == (6, 2, 3, 3)
    assert method.layers["conv.weight"].note == "3 outputs × 18 inputs in each of 2 groups"
    assert method.weights["conv.weight"].shape == (2, 3, 18)
    assert [row.name for row in method.layers.of_role("head", "skipped")] == [
        "adapter.weight",
        "classifier.weight",
        "classifier.bias",
    ]


def test_it_prints_as_a_table(capsys):
    print(CodeCL(Net(), heads=["classifier"], skip=["adapter"], bias="per-task", norm="free").layers)
    head, rule, *rows = capsys.readouterr().out.rstrip("\n").split("\n")
    assert head.split() == ["weight", "layer", "shape", "role", "note"]
    assert set(rule) == {"-", " "}
    start = head.index("note")
    notes = {row.split()[0]: (row.split()[1:4], row[start:]) for row in rows}
    assert len(notes) == 10
    groups = "3 outputs × 18 inputs in each of 2 groups"
    assert notes["conv.weight"] == (["Conv2d", "6×2×3×3", "protected"], groups)
    assert notes["conv.bias"] == (["Conv2d", "6", "bias"], "per-task: a copy for every task")
    assert notes["norm.weight"][1] == "free: trains throughout, old tasks are not protected from it"
    assert notes["still.bias"][1] == "requires_grad was off when the method was attached"
    assert notes["adapter.weight"][1] == "named in skip: trains freely"
    assert notes["classifier.weight"][1] == "one per task, never projected"
    assert "freeze: held after the first task" in str(survey(nn.Linear(2, 2)))


def test_a_parameter_without_dimensions_prints_as_a_scalar():
    model = nn.Linear(2, 2)
    model.scale = nn.Parameter(torch.ones(()))
    assert "scalar" in str(survey(model, skip=["scale"]))


def test_looking_up_an_unknown_name_suggests_the_nearest():
    with pytest.raises(KeyError, match=r"no parameter 'conv.wieght'. Did you mean 'conv.weight'\?"):
        survey(Net())["conv.wieght"]


@pytest.mark.parametrize("argument", ["heads", "skip"])
def test_unknown_names_are_refused_with_a_suggestion(argument):
    with pytest.raises(ValueError, match=rf"{argument}: .* 'classifer'. Did you mean 'classifier'\?"):
        CodeCL(Net(), **{argument: ["classifer"]})
    with pytest.raises(ValueError, match=rf"{argument}: .* 'zzz'. Known: 'conv'"):
        CodeCL(Net(), **{argument: ["zzz"]})


@pytest.mark.parametrize("argument", ["heads", "skip"])
def test_a_string_is_not_a_list_of_names(argument):
    with pytest.raises(TypeError, match=rf"{argument}=\['classifier'\]"):
        survey(Net(), **{argument: "classifier"})


def test_a_name_covers_what_is_inside_it_and_no_longer_name():
    model = nn.Sequential()
    model.add_module("head", nn.Sequential(nn.Linear(2, 2)))
    model.add_module("head2", nn.Linear(2, 2))
    assert roles(model, heads=["head"]) == {
        "head.0.weight": "head",
        "head.0.bias": "head",
        "head2.weight": "protected",
        "head2.bias": "bias",
    }


@pytest.mark.parametrize("argument", ["norm", "bias"])
def test_an_unknown_policy_is_refused(argument):
    with pytest.raises(ValueError, match=rf"{argument} must be 'freeze', 'per-task' or 'free'; got 'frozen'"):
        CodeCL(Net(), **{argument: "frozen"})


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


ATTENTION = {
    "MultiheadAttention": (nn.MultiheadAttention(4, 2), 2),
    "TransformerEncoderLayer": (nn.TransformerEncoderLayer(4, 2, 4), 4),
    "TransformerDecoderLayer": (nn.TransformerDecoderLayer(4, 2, 4), 6),
    "separate": (nn.MultiheadAttention(4, 2, kdim=3, vdim=5, add_bias_kv=True), 4),
}


@pytest.mark.parametrize("name", ATTENTION)
def test_all_weights_of_attention_are_protected(name):
    layer, count = ATTENTION[name]
    table = survey(nn.ModuleDict({"attn": layer}))
    assert len(table.protected) == count
    assert {row.role for row in table} <= {"protected", "bias", "norm"}


def test_the_output_projection_belongs_to_the_attention_that_uses_it():
    """``out_proj`` is a Linear layer that is never called."""
    table = survey(nn.MultiheadAttention(4, 2))
    (use,) = table.protected["out_proj.weight"].uses
    assert (type(use.module), use.name, use.full_name) == (nn.MultiheadAttention, "out_proj.weight", "out_proj.weight")
    assert table["out_proj.bias"].role == "bias"
    assert table["in_proj_weight"].note == "4 outputs × 4 inputs in each of 3 groups"


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


class Tied(nn.Module):
    def __init__(self, one: nn.Module, other: nn.Module) -> None:
        super().__init__()
        self.one, self.other = one, other
        other.weight = one.weight


def test_a_tied_weight_is_one_row():
    model = Tied(nn.Linear(4, 4), nn.Linear(4, 4))
    table = survey(model)
    assert {row.name: row.role for row in table} == {
        "one.weight": "protected",
        "one.bias": "bias",
        "other.bias": "bias",
    }
    assert table["one.weight"].note == "4 outputs × 4 inputs, tied with 'other.weight'"
    assert [use.module_name for use in table.protected["one.weight"].uses] == ["one", "other"]


def test_a_module_that_occurs_twice_is_one_row():
    layer = nn.Linear(3, 3)
    table = survey(nn.Sequential(layer, nn.ReLU(), layer))
    assert [row.name for row in table] == ["0.weight", "0.bias"]
    assert len(table.protected["0.weight"].uses) == 1


def test_a_tie_between_a_head_and_the_body_is_refused():
    model = Tied(nn.Linear(4, 4), nn.Linear(4, 4))
    with pytest.raises(UncoveredWeights, match=r"'one.weight'.*tied between a head and 'one.weight'"):
        survey(model, heads=["other"])
    assert roles(model, heads=["one", "other"])["one.weight"] == "head"
    assert roles(model, skip=["other"])["one.weight"] == "skipped"


@pytest.mark.parametrize("order", [False, True])
def test_a_transposed_tie_has_two_sides(order):
    """An embedding multiplies the other side of the matrix that it shares with an output layer."""
    pair = [nn.Embedding(6, 4), nn.Linear(4, 6)]
    one, other = survey(Tied(*pair[::-1] if order else pair)).protected.values()
    assert {one.shape, other.shape} == {(6, 4, 1), (1, 6, 4)}
    assert one.twins == [other]


def test_a_bias_that_a_model_also_holds_itself_is_a_bias():
    """As in BERT's head for masked words."""
    model = nn.Sequential(nn.Linear(3, 3))
    model.bias = model[0].bias
    assert roles(model) == {"bias": "bias", "0.weight": "protected"}


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


def test_a_tie_between_different_matrices_is_refused():
    one, other = nn.Conv1d(4, 4, 1, groups=2), nn.Conv1d(2, 4, 1)  # both weights are 4×2×1
    with pytest.raises(UncoveredWeights, match=r"tied between 'one.weight', 'other.weight', which see it as different"):
        survey(Tied(one, other))


def test_a_tie_between_strides_is_no_matter():
    table = survey(Tied(nn.Conv1d(2, 4, 2), nn.Conv1d(2, 4, 2, stride=2, dilation=2)))
    assert table["one.weight"].role == "protected"


def test_a_frozen_layer_must_stay_frozen():
    model = redrawn(nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2)), dtype=torch.float32)
    model[0].weight.requires_grad_(False)
    method = CodeCL(model, heads=["2"])
    batches = [normal(0, 8, 4, dtype=torch.float32)]
    method.begin_task(0, batches)
    method.end_task(batches)
    model[0].weight.requires_grad_(True)
    with pytest.raises(RuntimeError, match=r"\['0.weight'\] did not train when the method was attached"):
        method.begin_task(1, batches)
    model[0].weight.requires_grad_(False)
    method.begin_task(1, batches)


def test_a_layer_that_is_never_called_is_named_and_protects_nothing():
    class Half(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.unused = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x):
            return self.used(x)

    method = CodeCL(Half())
    assert "never called" not in str(method.layers)
    method.begin_task(0)
    method.end_task([torch.ones(2, 4)])
    assert method.weights["unused.weight"].projection is None
    assert method.weights["used.weight"].projection is not None
    (line,) = [line for line in str(method.layers).split("\n") if "never called" in line]
    assert line.startswith("unused.weight")
    method.begin_task(1, [torch.ones(2, 4)])


def test_a_method_that_protects_nothing_accepts_everything():
    model = nn.ModuleDict({"rnn": nn.LSTM(2, 2), "norm": nn.LayerNorm(2), "head": nn.Linear(2, 2)})
    method = Method(model, heads=["head"])
    assert {row.role for row in method.layers} == {"free", "head"}
    assert method.layers["norm.weight"].note == "nothing is protected by this method"
    assert method.weights == {}


def test_a_layer_alone_is_a_model():
    table = survey(nn.Linear(3, 2))
    assert {row.name: row.role for row in table} == {"weight": "protected", "bias": "bias"}


@pytest.mark.parametrize("protects", [True, False])
def test_a_model_without_parameters_is_refused(protects):
    with pytest.raises(ValueError, match=r"^ReLU has no parameters: there is nothing to learn\. Attach to a network\.$"):
        survey(nn.ReLU(), protects=protects)

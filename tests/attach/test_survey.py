"""Every weight of a model in one table, with its role: by its layer, and by what the user has named."""

import pytest
import torch
from torch import nn

from codecl import CodeCL, Method
from codecl.attach import survey
from tests.attach.survey_cases import Net, roles
from tests.layers.cases import normal, redrawn


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
    with pytest.raises(
        ValueError, match=r"^ReLU has no parameters: there is nothing to learn\. Attach to a network\.$"
    ):
        survey(nn.ReLU(), protects=protects)


@pytest.mark.parametrize(("model", "given"), [(None, "None"), (nn.Linear, "the class Linear: make one first")])
def test_what_is_no_network_is_refused(model, given):
    with pytest.raises(TypeError, match=rf"^a method is attached to a network, an nn\.Module; got {given}\.$"):
        CodeCL(model)

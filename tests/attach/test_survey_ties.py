"""A weight or a module that occurs more than once is one row of the table, or refused."""

import pytest
from torch import nn

from codecl import UncoveredWeights
from codecl.attach import survey
from tests.attach.survey_cases import roles


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


def test_a_tie_between_different_matrices_is_refused():
    one, other = nn.Conv1d(4, 4, 1, groups=2), nn.Conv1d(2, 4, 1)  # both weights are 4×2×1
    with pytest.raises(UncoveredWeights, match=r"tied between 'one.weight', 'other.weight', which see it as different"):
        survey(Tied(one, other))


def test_a_tie_between_strides_is_no_matter():
    table = survey(Tied(nn.Conv1d(2, 4, 2), nn.Conv1d(2, 4, 2, stride=2, dilation=2)))
    assert table["one.weight"].role == "protected"

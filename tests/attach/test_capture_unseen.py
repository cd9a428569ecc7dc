"""A weight that is used in another way than its module says is noticed, and named."""

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from codecl import UnseenUse
from codecl.attach import capture_moments
from tests.attach.capture_cases import X, captured, square
from tests.layers.cases import attached, normal, redrawn


class Scaled(nn.Linear):
    def forward(self, x):
        return super().forward(x) * x.mean()


class SameThing(nn.Linear):
    def forward(self, x):
        return torch.einsum("...d,od->...o", x, self.weight) + self.bias


class Transposing(nn.Linear):
    """The same numbers in another order."""

    def forward(self, x):
        return super().forward(x).transpose(-1, -2)


class WithExtra(nn.Linear):
    def forward(self, x):
        return super().forward(x), None


class Standardized(nn.Conv1d):
    """Overrides what ``forward`` calls, not ``forward``."""

    def _conv_forward(self, input, weight, bias):
        return super()._conv_forward(input, weight / weight.norm(), bias)


@pytest.mark.parametrize("layer", [Scaled(4, 3), WithExtra(4, 3), Standardized(4, 3, 1)])
def test_a_forward_that_is_not_the_weight_times_its_rows_is_refused(layer):
    model = redrawn(nn.Sequential(layer))
    with attached(model) as weights, pytest.raises(UnseenUse, match=rf"'0' is {type(layer).__name__}.*skip=\["):
        capture_moments(model, weights, [normal(0, 2, 4, 4)])


@pytest.mark.parametrize("layer", [SameThing(4, 3), Transposing(4, 3), SameThing(4, 3).float()])
def test_a_forward_of_its_own_that_is_equivalent_is_accepted(layer):
    model = redrawn(nn.Sequential(layer), dtype=layer.weight.dtype)
    x = normal(0, 2, 5, 4, dtype=layer.weight.dtype)
    assert_close(captured(model, [x])["0.weight"], [square(x.double().flatten(0, 1))])


def test_not_finite_rows_of_a_subclass_name_the_weight_too():
    model = redrawn(nn.Sequential(SameThing(4, 3)))
    with attached(model) as weights, pytest.raises(ValueError, match=r"'0.weight': rows hold NaN"):
        capture_moments(model, weights, [X * float("nan")])


def test_an_empty_batch_tells_nothing_about_a_subclass():
    model = redrawn(nn.Sequential(SameThing(4, 3)))
    assert captured(model, [X[:0]]) == {}


class Around(nn.Module):
    """Uses the weight of ``fc`` by hand."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.fc, self.how = nn.Linear(4, 4), how

    def forward(self, x):
        W = self.fc.weight
        match self.how:
            case "linear":
                return self.fc(x) + nn.functional.linear(x, W)
            case "keyword":
                return self.fc(x) + nn.functional.linear(x, weight=W)
            case "product":
                return self.fc(x) + x @ W.mT
            case "detached":
                return self.fc(x) + x @ W.detach()
            case "data":
                return self.fc(x) + nn.functional.linear(x, W.data)
            case "list":
                return self.fc(x) + x @ torch.cat([W, W])[:4]
            case "several results":
                return self.fc(x) + x @ W.split(4)[0]
            case "harmless":
                start = W.new_zeros(x.shape) + torch.zeros_like(x, dtype=W.dtype, device=W.device)
                assert W.shape[0] == W.size(0) == len(W)
                assert W.requires_grad
                assert W.data.new_zeros(3).sum() == 0
                assert self.state_dict()["fc.weight"].shape == W.shape
                assert torch.zeros_like(W).sum() == 0
                return self.fc(x.float().type_as(W).to(W) + start)


@pytest.mark.parametrize("how", ["linear", "keyword", "product", "detached", "data", "list", "several results"])
def test_a_weight_used_outside_its_module_is_noticed(how):
    model = redrawn(Around(how))
    with (
        attached(model) as weights,
        pytest.raises(UnseenUse, match=r"'fc.weight' is used by .* outside a call of 'fc'"),
    ):
        capture_moments(model, weights, [X])
    assert model(X).shape == (6, 4)


def test_asking_a_weight_for_its_dtype_or_shape_is_no_use_of_it():
    model = redrawn(Around("harmless"))
    assert_close(captured(model, [X])["fc.weight"], [square(X.float().double())])


def test_a_skipped_weight_may_be_used_anyhow():
    model = redrawn(nn.ModuleDict({"net": Around("linear"), "other": nn.Linear(4, 4)}))
    run = lambda model, batch: model["other"](model["net"](batch))  # noqa: E731
    with attached(model, skip=["net"]) as weights:
        assert list(capture_moments(model, weights, [X], run)) == ["other.weight"]

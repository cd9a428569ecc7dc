"""The canonical form: rows times weight is the output, whatever the layer and its settings."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.testing import assert_close

from codecl.layers import ConvolutionKind, LayerKind, LinearKind, convolution, kind_of, moments_of
from codecl.layers.shifts import gram_of_patches
from tests.layers.cases import (
    CONVOLUTIONS,
    UNEVEN,
    convolutions,
    linears,
    normal,
    redrawn,
    seeds,
    transposed_convolutions,
)

pytestmark = UNEVEN


def bound(layer: nn.Module) -> LayerKind:
    kind = kind_of(layer)
    assert kind is not None
    return kind(layer, "weight")


def pieces(layer: nn.Module, *args, **kwargs) -> list[torch.Tensor]:
    """The rows of one call."""
    kind = bound(layer)
    return [kind.rows(piece) for piece in kind.split(kind.call(args, kwargs))]


def output_of_rows(layer: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """``rows · weightᵀ + bias``, ``[n, g · o]``."""
    rows = torch.cat(pieces(layer, x), dim=1)
    y = torch.einsum("gnd,god->ngo", rows, bound(layer).matrices(layer.weight)).flatten(1)
    return y if layer.bias is None else y + layer.bias


@given(linears())
def test_rows_of_a_linear_layer_with_any_leading_dimensions(case):
    layer, x = case
    assert_close(output_of_rows(layer, x), layer(x).reshape(-1, layer.out_features))


@settings(max_examples=200)
@given(convolutions())
def test_rows_of_a_convolution_with_any_settings(case):
    layer, x = case
    channels = -1 - len(layer.kernel_size)
    assert_close(output_of_rows(layer, x), layer(x).movedim(channels, -1).reshape(-1, layer.out_channels))


@settings(max_examples=200)
@given(transposed_convolutions())
def test_rows_of_a_transposed_convolution_with_any_settings(case):
    layer, args = case
    channels = -1 - len(layer.kernel_size)
    rows = torch.cat(pieces(layer, *args), dim=1)
    kind = bound(layer)
    W = kind.matrices(layer.weight)
    assert_close(kind.parameter(W), layer.weight)
    y = torch.einsum("gnd,god->ngo", rows, W).flatten(1) + (0 if layer.bias is None else layer.bias)
    assert_close(y, layer(*args).movedim(channels, -1).reshape(-1, layer.out_channels))


@given(st.integers(1, 3), st.integers(1, 3), st.integers(1, 3), st.lists(st.integers(0, 3), max_size=2), seeds)
def test_rows_of_a_bilinear_layer(d1, d2, o, leading, seed):
    layer = redrawn(nn.Bilinear(d1, d2, o), seed)
    x1, x2 = normal(seed + 8, *leading, d1), normal(seed + 9, *leading, d2)
    (rows,) = pieces(layer, x1, x2)
    pairs = zip(x1.reshape(-1, d1), x2.reshape(-1, d2), strict=True)
    expected = [[a * b for a in one for b in other] for one, other in pairs]
    assert_close(rows[0], torch.tensor(expected, dtype=torch.float64).reshape(-1, d1 * d2))
    y = rows[0] @ bound(layer).matrices(layer.weight)[0].mT + layer.bias
    assert_close(y, layer(x1, x2).reshape(-1, o))
    kind = bound(layer)
    assert kind.describes(kind.call((x1,), {"input2": x2}), lambda: layer(x1, x2))
    if leading:
        assert kind.inputs((x1, x2)) == leading[0]
        part = kind.rows(kind.first((x1, x2), 1))[0]
        assert_close(part, rows[0][: len(part)])


@pytest.mark.parametrize("axes", CONVOLUTIONS)
@pytest.mark.parametrize("mode", ["zeros", "reflect", "replicate", "circular"])
def test_string_padding_of_an_even_spread_kernel_pads_one_side_more(axes, mode):
    layer = redrawn(CONVOLUTIONS[axes](2, 4, 4, padding="same", dilation=3 - min(axes, 2), padding_mode=mode))
    x = normal(1, 2, 2, *[7] * axes)
    assert_close(output_of_rows(layer, x), layer(x).movedim(1, -1).flatten(0, -2))


def test_a_group_sees_the_rows_of_its_own_channels():
    layer = redrawn(nn.Conv2d(6, 6, 3, groups=3))
    x = normal(1, 2, 6, 5, 5)
    (rows,) = pieces(layer, x)
    for group, channels in enumerate(x.split(2, dim=1)):
        alone = nn.functional.unfold(channels, 3)  # [batch, d, positions]
        assert_close(rows[group], alone.movedim(1, -1).flatten(0, 1))


def test_a_depthwise_convolution_has_a_matrix_for_each_channel():
    layer = redrawn(nn.Conv1d(5, 10, 3, groups=5))
    kind = bound(layer)
    assert_close(kind.matrices(layer.weight), layer.weight.detach().reshape(5, 2, 3))
    assert_close(kind.parameter(kind.matrices(layer.weight)), layer.weight.detach())


def test_rows_of_a_keyword_call():
    linear, conv = redrawn(nn.Linear(3, 2)), redrawn(nn.Conv1d(3, 2, 2))
    x = normal(0, 4, 3, 3)
    for layer in (linear, conv):
        (by_keyword,), (by_position,) = pieces(layer, input=x), pieces(layer, x)
        assert_close(by_keyword, by_position)
        assert by_position.abs().sum() > 1


def test_stride_of_the_patches_can_be_set_aside():
    layer, dense = (redrawn(nn.Conv2d(2, 3, 3, stride=s, padding=1, groups=1)) for s in (2, 1))
    x = normal(2, 2, 2, 6, 6)
    assert_close(bound(layer).patches(x, stride=1), bound(dense).rows(x))
    assert bound(layer).rows(x).shape[1] == 2 * 9


@pytest.mark.parametrize("numbers", [1, 300, 2**24])
@pytest.mark.parametrize("groups", [1, 2])
def test_patches_in_pieces_are_the_same_rows(monkeypatch, numbers, groups):
    layer, x = redrawn(nn.Conv2d(4, 4, 3, groups=groups)), normal(0, 5, 4, 6, 6)
    monkeypatch.setattr(convolution, "NUMBERS_AT_ONCE", numbers)
    assert len(pieces(layer, x)) == (1 if numbers == 2**24 else 5)
    assert_close(torch.cat(pieces(layer, x), dim=1), bound(layer).rows(x))
    assert_close(torch.cat(pieces(layer, x[0]), dim=1), bound(layer).rows(x[:1]))


def test_an_empty_batch_has_no_rows():
    for layer, x in ((nn.Conv2d(2, 3, 3), torch.zeros(0, 2, 5, 5)), (nn.Linear(4, 3), torch.zeros(2, 0, 4))):
        assert sum(stack.shape[1] for stack in pieces(layer, x)) == 0


class Own(nn.Conv2d):
    pass


def test_dispatch_follows_subclasses():
    assert kind_of(Own(1, 1, 1)) is ConvolutionKind
    assert kind_of(nn.modules.linear.NonDynamicallyQuantizableLinear(2, 2)) is kind_of(nn.Linear(2, 2)) is LinearKind
    assert kind_of(nn.PReLU()) is None


def test_only_layers_with_patches_have_a_kernel():
    assert bound(nn.Conv2d(2, 3, (3, 2))).kernel == (3, 2)
    assert bound(nn.Linear(2, 3)).kernel == ()
    assert bound(nn.Embedding(2, 3)).kernel == ()


def test_a_bound_kind_knows_its_weight_also_while_another_takes_its_place():
    layer = nn.MultiheadAttention(4, 2)
    kind = kind_of(layer)(layer, "out_proj.weight", "block.attention")
    assert kind.full_name == "block.attention.out_proj.weight"
    assert kind.value is layer.out_proj.weight
    other = torch.zeros(4, 4)
    ((parameters, key, value),) = kind.places(other)
    parameters[key] = value
    assert kind.value is other


@settings(max_examples=200)
@given(st.one_of(convolutions(), transposed_convolutions()))
def test_moments_of_patches_from_shifted_inputs(case):
    layer, given_ = case
    kind = bound(layer)
    x = kind.call(given_ if isinstance(given_, tuple) else (given_,), {})
    patches = kind.patches(x, stride=1)
    parts = kind._padded(x).split(layer.in_channels // layer.groups, dim=1)
    for part, rows in zip(parts, patches, strict=True):
        assert_close(gram_of_patches(part, layer.kernel_size, layer.dilation), rows.mT @ rows)


@settings(max_examples=200)
@given(st.one_of(convolutions(), transposed_convolutions()))
def test_moments_are_those_of_the_rows_however_they_are_computed(case):
    layer, given_ = case
    kind = bound(layer.float())
    args = given_ if isinstance(given_, tuple) else (given_,)
    x = kind.call((args[0].float(), *args[1:]), {})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(convolution, "CHANNELS_TO_SHIFT", 1)
        found = kind.moments(x)
    expected = moments_of(kind.rows(x))
    assert len(found) == len(expected)
    for a, b in zip(found, expected, strict=True):
        assert (a.count, a.floor, a.dim) == (b.count, b.floor, b.dim)
        assert_close(a._as_gram(), b._as_gram())


def test_patches_that_are_not_finite_are_named_as_rows_are():
    layer = nn.Conv2d(16, 2, 3)
    x = torch.ones(60, 16, 4, 4)
    x[0, 0, 0, 0] = torch.nan
    with pytest.raises(ValueError, match="NaN or infinite values \\(1 of 240 rows\\)"):
        bound(layer).moments(x)


def test_inputs_of_another_number_of_channels_are_named():
    with pytest.raises(ValueError, match=r"takes 1 channels; got inputs \[2, 3, 8, 8\]"):
        bound(nn.Conv2d(1, 4, 3)).rows(torch.zeros(2, 3, 8, 8))

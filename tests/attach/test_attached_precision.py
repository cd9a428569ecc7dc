"""Under autocast and with bfloat16 weights, attached forwards keep the weight side in the dtype of the weight."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.testing import assert_close

from codecl.attach import Mixing
from tests.attach.forward_cases import mixing_of, remembered
from tests.layers.cases import (
    UNEVEN,
    attached,
    backward_nodes,
    memories,
    normal,
    orthonormal,
    redrawn,
    seeds,
)

pytestmark = UNEVEN


@pytest.mark.parametrize("backward_inside", [False, True])
@pytest.mark.parametrize("layer", [nn.Linear(8, 5), nn.Linear(8, 80), nn.Conv1d(4, 5, 2)], ids=["few", "many", "conv"])
def test_under_autocast_the_weight_side_stays_in_float32(layer, backward_inside):
    layer = redrawn(layer, dtype=torch.float32)
    memory, mixing = remembered(), mixing_of()
    mixing = Mixing(mixing.U.float(), mixing.M.detach().float())
    x = normal(1, 16, 8, dtype=torch.float32) if isinstance(layer, nn.Linear) else normal(1, 16, 4, 6).float()
    with attached(layer) as weights:
        weights["weight"].projection, weights["weight"].change = memory.projection(layer.weight), mixing
        seen = []
        layer.register_forward_hook(lambda *_: seen.append(torch.is_autocast_enabled("cpu")))
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = layer(x)
            loss = y.float().square().sum()
            if backward_inside:
                loss.backward()
        if not backward_inside:
            loss.backward()
        assert y.dtype == torch.bfloat16
        assert seen == [True]
        G = layer.weight.grad.flatten(1).double()
        leak = (G @ memory.bases[0]).abs().max() / G.abs().max()
        assert G.abs().max() > 1
        assert leak < 1e-6  # bfloat16 would leak 5e-3
        assert layer.weight.grad.dtype == torch.float32


@given(st.data(), st.integers(1, 4), st.integers(4, 9), seeds, st.sampled_from([torch.float32, torch.bfloat16]))
def test_under_autocast_rows_are_projected_as_they_arrive(data, n, o, seed, dtype):
    """``dW = δᵀ X (I − C)`` of the narrow ``δ`` and the wide ``X``: only the product of the forward pass is rounded."""
    memory, mixing = (
        data.draw(memories(1, 6)),
        Mixing(orthonormal(seed, 6, 2)[None].float(), normal(seed, 1, 2, 2).float()),
    )
    layer, x = redrawn(nn.Linear(6, o), dtype=torch.float32), normal(seed, n, 6).to(dtype).requires_grad_()
    delta = normal(seed + 1, n, o).bfloat16()
    with attached(layer) as weights:
        weights["weight"].projection, weights["weight"].change = memory.projection(layer.weight), mixing
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = layer(x)
        y.backward(delta)
    assert "ProjectedLinearBackward" in backward_nodes(y)
    U, M, X = mixing.U[0].double(), mixing.M[0].detach().double(), x.detach().double()
    X_eff = X + X @ U @ M.mT @ U.mT
    assert_close(
        y, nn.functional.linear(X_eff.bfloat16(), layer.weight.bfloat16(), layer.bias.bfloat16()), rtol=2e-2, atol=2e-2
    )
    C = memory.dense[0]
    expected = delta.double().mT @ X_eff @ (torch.eye(6).double() - C)
    assert_close(layer.weight.grad.double(), expected, rtol=1e-5, atol=1e-5)
    assert_close(layer.bias.grad.double(), delta.double().sum(0), rtol=1e-6, atol=1e-6)
    dX = delta.double() @ layer.weight.detach().double() @ (torch.eye(6).double() + U @ M @ U.mT)
    assert_close(x.grad.double(), dX, rtol=3e-2, atol=1e-1)
    assert x.grad.dtype == dtype


def test_the_effective_weight_is_not_rounded_by_autocast():
    conv, x = redrawn(nn.Conv1d(4, 5, 2), dtype=torch.float32), normal(1, 2, 4, 6, dtype=torch.float32)
    mixing = Mixing(orthonormal(8, 8, 2)[None].float(), normal(9, 1, 2, 2).float())
    with attached(conv) as weights:
        weights["weight"].change = mixing
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = conv(x)
            exact = weights["weight"].effective()
            baked = nn.functional.conv1d(x, exact, conv.bias)
        assert torch.equal(y, baked)


def test_bfloat16_weights_are_projected_on_the_weight_side():
    layer, memory = redrawn(nn.Linear(8, 5), dtype=torch.bfloat16), remembered()
    with attached(layer) as weights:
        weights["weight"].projection = memory.projection(layer.weight)
        y = layer(normal(1, 2, 8).bfloat16())
        y.sum().backward()
    assert "ProjectedLinearBackward" not in backward_nodes(y)
    bare = normal(1, 2, 8).bfloat16().sum(0)
    expected = bare.double() @ (torch.eye(8).double() - memory.dense[0])
    assert_close(layer.weight.grad[0].double(), expected, rtol=2e-2, atol=2e-3)

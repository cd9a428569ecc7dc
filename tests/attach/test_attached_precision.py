"""Under autocast and with bfloat16 weights, attached forwards keep the weight side in the dtype of the weight."""

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from codecl.attach import Mixing
from tests.attach.forward_cases import mixing_of, remembered
from tests.layers.cases import UNEVEN, attached, backward_nodes, normal, orthonormal, redrawn

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

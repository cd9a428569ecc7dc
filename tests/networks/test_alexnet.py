"""AlexNet against methods in plain functions, and against the published sizes."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.testing import assert_close

from codecl.networks import AlexNet, Dropout, MultiHead


def reference(state: dict[str, Tensor], x: Tensor) -> Tensor:
    def normalised(x: Tensor, i: int) -> Tensor:
        return F.batch_norm(x, None, None, state[f"bn{i}.weight"], state[f"bn{i}.bias"], training=True)

    for i in (1, 2, 3):
        x = F.max_pool2d(F.relu(normalised(F.conv2d(x, state[f"conv{i}.weight"]), i)), 2)
    x = F.relu(normalised(x.reshape(-1, 1024) @ state["fc1.weight"].T, 4))
    return F.relu(normalised(x @ state["fc2.weight"].T, 5))


def drawn(net: nn.Module) -> nn.Module:
    """``net`` in float64 with batch-norm parameters other than 1 and 0."""
    for m in net.modules():
        if isinstance(m, (nn.BatchNorm1d, nn.BatchNorm2d)):
            nn.init.uniform_(m.weight, 0.5, 1.5)
            nn.init.normal_(m.bias)
    return net.double()


@pytest.mark.parametrize("net", [AlexNet().eval(), AlexNet(dropout=False)], ids=["eval", "without dropout"])
def test_forward(net: AlexNet) -> None:
    torch.manual_seed(0)
    drawn(net)
    x = torch.randn(4, 3, 32, 32, dtype=torch.float64)
    y = net(x)
    assert y.shape == (4, net.features)
    assert_close(y, reference(net.state_dict(), x))


def test_parameters() -> None:
    net = AlexNet()
    weights = [W for W in net.parameters() if W.dim() > 1]
    d = [W[0].numel() for W in weights]
    assert d == [48, 576, 512, 1024, 2048]
    assert [len(W) for W in weights] == [64, 128, 256, 2048, 2048]
    assert sum(W.numel() for W in weights) == 6_499_328
    assert sum(b.numel() for b in net.parameters() if b.dim() == 1) == 9088
    assert not list(net.buffers())


def test_a_head_of_ten_classes() -> None:
    net = MultiHead(AlexNet(), AlexNet.features, 10)
    assert sum(W.numel() for W in net.heads.parameters()) == 20_480
    assert net(torch.randn(2, 3, 32, 32)).shape == (2, 10)


def test_maps() -> None:
    net, sizes = AlexNet(), []
    for m in (net.conv1, net.conv2, net.conv3):
        m.register_forward_hook(lambda _, x, y: sizes.append((x[0].shape[-1], y.shape[-1])))
    net(torch.randn(2, 3, 32, 32))
    assert sizes == [(32, 29), (14, 12), (6, 5)]


def test_dropout_rates_in_order() -> None:
    net, rates = AlexNet(), []
    for m in net.modules():
        if isinstance(m, Dropout):
            m.register_forward_hook(lambda m, x, _: rates.append((m.p, *x[0].shape[1:])))
    net(torch.randn(2, 3, 32, 32))
    assert rates == [(0.2, 64, 29, 29), (0.2, 128, 12, 12), (0.5, 256, 5, 5), (0.5, 2048), (0.5, 2048)]


def test_evaluation_uses_batch_statistics() -> None:
    torch.manual_seed(0)
    net, x = AlexNet().eval(), torch.randn(4, 3, 32, 32)
    assert not torch.allclose(net(x)[:2], net(x[:2]), atol=1e-3)

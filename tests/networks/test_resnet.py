"""The reduced ResNet-18 against plain functions, and against the published layer table."""

from collections.abc import Mapping

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.testing import assert_close

from codecl.networks import ReducedResNet18

SETTINGS = [  # image_size, stride, pool, features, sides of the maps after conv1 and the stages
    (32, 1, "average", 640, [32, 32, 16, 8, 4]),
    (84, 2, "average", 1440, [42, 42, 21, 11, 6]),
    (84, 2, "adaptive", 640, [42, 42, 21, 11, 6]),
]


def reference(state: Mapping[str, Tensor], x: Tensor, stride: int, pool: str) -> Tensor:
    def conv(x: Tensor, name: str, number: str = "", stride: int = 1) -> Tensor:
        W = state[f"{name}conv{number}.weight"]
        y = F.conv2d(x, W, stride=stride, padding=W.shape[-1] // 2)
        weight, bias = state[f"{name}bn{number}.weight"], state[f"{name}bn{number}.bias"]
        return F.batch_norm(y, None, None, weight, bias, training=True)

    x = F.relu(conv(x, "", "1", stride))
    for stage in range(4):
        for block in range(2):
            name, s = f"stages.{stage}.{block}.", 2 if stage > 0 and block == 0 else 1
            y = conv(F.relu(conv(x, name, "1", s)), name, "2")
            x = F.relu(y + (conv(x, name + "shortcut.", stride=2) if s == 2 else x))
    if pool == "average":
        n, c, h, w = x.shape
        return x.reshape(n, c, h // 2, 2, w // 2, 2).mean((3, 5)).reshape(n, -1)
    h = x.shape[-1] // 2
    quarters = [x[..., i : i + h, j : j + h].mean((2, 3)) for i in (0, h) for j in (0, h)]
    return torch.stack(quarters, dim=2).reshape(len(x), -1)


@pytest.mark.parametrize(("image_size", "stride", "pool", "features", "maps"), SETTINGS)
def test_values_gradients_and_maps(image_size: int, stride: int, pool: str, features: int, maps: list[int]) -> None:
    torch.manual_seed(0)
    net = ReducedResNet18(image_size=image_size, stride=stride, pool=pool).double().eval()  # type: ignore[arg-type]
    for m in net.modules():
        if isinstance(m, nn.BatchNorm2d):
            nn.init.uniform_(m.weight, 0.5, 1.5)
            nn.init.normal_(m.bias)
    sizes: list[int] = []
    for m in (net.conv1, *net.stages):
        m.register_forward_hook(lambda m, x, y: sizes.append(y.shape[-1]))
    x = torch.randn(2, 3, image_size, image_size, dtype=torch.float64)
    y = net(x)
    assert y.shape == (2, features)
    assert net.features == features
    assert sizes == maps
    values = dict(net.named_parameters())
    expected = reference(values, x, stride, pool)
    assert_close(y, expected)
    weights = torch.randn_like(y)
    ours, theirs = (torch.autograd.grad((out * weights).sum(), list(values.values())) for out in (y, expected))
    for gradient, by_reference in zip(ours, theirs, strict=True):
        assert_close(gradient, by_reference, rtol=1e-6, atol=1e-7)


def test_parameters() -> None:
    net = ReducedResNet18()
    weights = {name: W for name, W in net.named_parameters() if W.dim() > 1}
    d = [W[0].numel() for W in weights.values()]
    stage1, stage2 = [180] * 4, [180, 360, 20, 360, 360]
    assert d == [27, *stage1, *stage2, 360, 720, 40, 720, 720, 720, 1440, 80, 1440, 1440]
    assert [len(W) for W in weights.values()] == [20] * 5 + [40] * 5 + [80] * 5 + [160] * 5
    shortcuts = [i for i, name in enumerate(weights) if "shortcut" in name]
    assert shortcuts == [7, 12, 17]
    assert sum(W.numel() for W in weights.values()) == 540 + 14_400 + 51_200 + 204_800 + 819_200  # 1.09 M
    assert sum(b.numel() for b in net.parameters() if b.dim() == 1) == 3000
    assert not list(net.buffers())


def test_names() -> None:
    names = [name for name, W in ReducedResNet18().named_parameters() if W.dim() > 1]
    assert names[:3] == ["conv1.weight", "stages.0.0.conv1.weight", "stages.0.0.conv2.weight"]
    assert names[7] == "stages.1.0.shortcut.conv.weight"


@pytest.mark.parametrize("image_size", [33, 50, 64, 97])
@pytest.mark.parametrize("stride", [1, 2, 3])
def test_features_follow_the_image_size(image_size: int, stride: int) -> None:
    net = ReducedResNet18(image_size=image_size, stride=stride).eval()
    with torch.no_grad():
        assert net(torch.randn(2, 3, image_size, image_size)).shape == (2, net.features)


def test_an_image_too_small_for_the_pool_is_refused() -> None:
    with pytest.raises(ValueError, match="image_size=16 leaves a 1×1 map"):
        ReducedResNet18(image_size=16, stride=2)


def test_an_unknown_pool_is_refused() -> None:
    with pytest.raises(ValueError, match="got 'max'"):
        ReducedResNet18(pool="max")  # type: ignore[arg-type]

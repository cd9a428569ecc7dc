"""LeNet against plain functions, and against the published sizes."""

import hypothesis.strategies as st
import torch
import torch.nn.functional as F
from hypothesis import given
from torch import Tensor, nn
from torch.testing import assert_close

from codecl.networks import LeNet, MultiHead, kaiming
from codecl.networks.lenet import LocalResponseNorm


def response_normalised(x: Tensor) -> Tensor:
    """Channel c over (1 + α · mean of the squares of channels c−2 … c+1)^0.75, zeros beyond the ends."""
    squares = F.pad(x.square(), (0, 0, 0, 0, 2, 1))
    channels = x.shape[1]
    mean = torch.stack([squares[:, c : c + 4].sum(1) / 4 for c in range(channels)], dim=1)
    return x / (1 + 0.001 / 9 * mean) ** 0.75


def test_values_and_gradients() -> None:
    torch.manual_seed(0)
    net = LeNet().double().eval()
    x = 50 * torch.randn(3, 3, 32, 32, dtype=torch.float64)  # large, so that the normalisation matters
    V1, V2, W1, W2 = net.parameters()
    y = F.max_pool2d(response_normalised(F.relu(F.conv2d(x, V1, padding=2))), 3, 2, 1)
    y = F.max_pool2d(response_normalised(F.relu(F.conv2d(y, V2, padding=2))), 3, 2, 1)
    y = F.relu(F.relu(y.reshape(3, 3200) @ W1.T) @ W2.T)
    assert y.shape == (3, net.features)
    found, weights = net(x), torch.randn_like(y)
    assert_close(found, y)
    ours, theirs = (torch.autograd.grad((out * weights).sum(), list(net.parameters())) for out in (found, y))
    for gradient, by_reference in zip(ours, theirs, strict=True):
        assert_close(gradient, by_reference)


@given(
    size=st.integers(1, 6),
    channels=st.integers(1, 9),
    side=st.integers(1, 5),
    k=st.floats(0.5, 2),
    beta=st.just(0.75) | st.floats(0.1, 2),
    memory=st.sampled_from([torch.contiguous_format, torch.channels_last]),
)
def test_the_response_norm_is_torchs(
    size: int, channels: int, side: int, k: float, beta: float, memory: torch.memory_format
) -> None:
    torch.manual_seed(0)
    x = torch.randn(2, channels, side, side + 1, dtype=torch.float64).contiguous(memory_format=memory).requires_grad_()
    weights = torch.randn_like(x)
    found = []
    for norm in (LocalResponseNorm, nn.LocalResponseNorm):
        y = norm(size, alpha=0.7, beta=beta, k=k)(x)
        found.append((y, *torch.autograd.grad((y * weights).sum(), x)))
    for ours, theirs in zip(*found, strict=True):
        assert_close(ours, theirs)


def test_parameters() -> None:
    net = MultiHead(LeNet(), LeNet.features, 5, init=kaiming)
    net.select(19)
    d = [W[0].numel() for W in net.backbone.parameters()]
    assert d == [75, 500, 3200, 800]
    assert sum(W.numel() for W in net.parameters()) == 3_036_500
    assert not list(net.buffers())


def test_weights_are_uniform_with_the_relu_gain() -> None:
    torch.manual_seed(0)
    net = MultiHead(LeNet(), LeNet.features, 5, init=kaiming)
    for W in net.parameters():
        bound = (6 / W[0].numel()) ** 0.5
        assert W.abs().max() <= bound
        assert W.abs().max() > 0.98 * bound
        assert abs(float(W.detach().std()) * 3**0.5 / bound - 1) < 0.05


def test_maps() -> None:
    net, sizes = LeNet(), []
    for m in net.modules():
        if isinstance(m, nn.Conv2d | nn.Linear):
            m.register_forward_hook(lambda _, x, y: sizes.append((x[0].shape[-1], y.shape[-1])))
    net(torch.randn(1, 3, 32, 32))
    assert sizes == [(32, 32), (16, 16), (3200, 800), (800, 500)]

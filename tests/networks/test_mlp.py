"""The MLP against its equation."""

import pytest
import torch
from torch.testing import assert_close

from codecl.networks import MLP, MultiHead


def test_parameters_of_permuted_mnist() -> None:
    net = MLP(output=10)
    weights = list(net.parameters())
    assert [tuple(W.shape) for W in weights] == [(100, 784), (100, 100), (10, 100)]
    assert sum(W.numel() for W in weights) == 784 * 100 + 100 * 100 + 100 * 10
    assert net.features == 10


def test_a_head_on_the_backbone_has_as_many_parameters() -> None:
    net = MultiHead(MLP(), MLP().features, 10)
    assert MLP().features == 100
    assert sum(W.numel() for W in net.parameters()) == 784 * 100 + 100 * 100 + 100 * 10


def test_backbone_ends_with_relu() -> None:
    net, x = MLP().double(), torch.randn(5, 1, 28, 28, dtype=torch.float64)
    W1, W2 = net.parameters()
    assert_close(net(x), (W2 @ (W1 @ x.reshape(5, 784).T).clamp(min=0)).clamp(min=0).T)


def test_output_layer_has_no_activation() -> None:
    net, x = MLP((9, 8, 7), output=6).double(), torch.randn(5, 9, dtype=torch.float64)
    W1, W2, W3 = net.parameters()
    y = net(x)
    assert_close(y, (W3 @ (W2 @ (W1 @ x.T).clamp(min=0)).clamp(min=0)).T)
    assert (y < 0).any()


def test_too_few_sizes_are_refused() -> None:
    with pytest.raises(ValueError, match=r"at least one hidden layer, got \(784,\)"):
        MLP((784,))

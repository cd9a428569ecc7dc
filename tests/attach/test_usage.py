"""Whether every call of a model uses all its parameters, by what its classes are."""

import pytest
import torch
from torch import nn

from codecl.attach.usage import uses_everything
from codecl.networks import MLP, AlexNet, LeNet, MultiHead, ReducedResNet18, VisionTransformer
from tests.distributed.worker import Branch

NETWORKS = {
    "mlp": lambda: MLP((3072, 5, 4)),
    "mlp with an output": lambda: MLP((3072, 5, 4), output=3),
    "alexnet": AlexNet,
    "lenet": LeNet,
    "resnet": ReducedResNet18,
    "vit": lambda: VisionTransformer(image_size=32, patch=8, width=8, depth=2, heads=2),
    "multi-head": lambda: MultiHead(MLP((3072, 5, 4)), 4, 2),
    "layers": lambda: nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.PReLU(), nn.Flatten(2), nn.Linear(900, 6), nn.LayerNorm(6),
        nn.Sequential(nn.GRU(6, 5, num_layers=2, bidirectional=True)),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", NETWORKS)
def test_what_is_said_to_use_everything_does(name):
    network = NETWORKS[name]()
    assert uses_everything(network)
    found = network(torch.randn(2, 3, 32, 32))
    (found if isinstance(found, torch.Tensor) else found[0]).square().sum().backward()
    assert [key for key, parameter in network.named_parameters() if parameter.grad is None] == []


def test_what_may_use_less_is_not_said_to():
    class Sometimes(MLP):
        def forward(self, x):
            return x if x.sum() > 0 else super().forward(x)

    assert not uses_everything(Branch())
    assert not uses_everything(Sometimes((3, 2)))
    assert not uses_everything(MultiHead(nn.Sequential(Branch()), 16, 2))
    assert not uses_everything(nn.AdaptiveLogSoftmaxWithLoss(32, 6, [2, 4]))

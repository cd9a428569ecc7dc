"""The LeNet of the CIFAR-100 superclass benchmark, in the form of GPM (Saha et al., 2021).

    3×32×32 → conv 20, 5×5 → LRN, pool → conv 50, 5×5 → LRN, pool → fc 800 → fc 500
               32 → 16                    16 → 8

Every layer is followed by ReLU. No biases, no batch norm. Maps are kept in channels-last order, in which a CPU is
faster.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class LeNet(nn.Module):
    """Four layers for 3×32×32 images, to 500 features. Its heads are initialised alike: ``init=kaiming``."""

    uses_everything = True
    features = 500

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 20, 5, padding=2, bias=False)
        self.conv2 = nn.Conv2d(20, 50, 5, padding=2, bias=False)
        self.fc1 = nn.Linear(3200, 800, bias=False)
        self.fc2 = nn.Linear(800, 500, bias=False)
        self.lrn = LocalResponseNorm(4, alpha=0.001 / 9, beta=0.75, k=1.0)
        for layer in (self.conv1, self.conv2, self.fc1, self.fc2):
            kaiming(layer)

    def forward(self, x: Tensor) -> Tensor:
        x = x.contiguous(memory_format=torch.channels_last)
        x = F.max_pool2d(self.lrn(F.relu(self.conv1(x))), 3, stride=2, padding=1)
        x = F.max_pool2d(self.lrn(F.relu(self.conv2(x))), 3, stride=2, padding=1)
        x = F.relu(self.fc1(x.flatten(1)))
        return F.relu(self.fc2(x))


class LocalResponseNorm(nn.LocalResponseNorm):
    """torch's norm of maps, ``x / (k + α · mean of the squares of near channels)^β``, in less time.

    The mean is a 1×1 convolution with a band of equal weights.
    """

    def forward(self, x: Tensor) -> Tensor:
        channel = torch.arange(x.shape[1], device=x.device)
        apart = channel - channel.unsqueeze(1)
        near = (apart >= -(self.size // 2)) & (apart <= (self.size - 1) // 2)
        band = near.to(x.dtype) * (self.alpha / self.size)
        return x * (self.k + F.conv2d(x.square(), band[:, :, None, None])).pow(-self.beta)


def kaiming(layer: nn.Conv2d | nn.Linear) -> None:
    """Draw the weight of ``layer`` uniformly from ±√(6 / fan_in) (He et al., 2015, for ReLU)."""
    nn.init.kaiming_uniform_(layer.weight, mode="fan_in", nonlinearity="relu")

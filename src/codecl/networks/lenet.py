"""The LeNet of the CIFAR-100 superclass benchmark, in the form of GPM (Saha et al., 2021).

    3×32×32 → conv 20, 5×5 → LRN, pool → conv 50, 5×5 → LRN, pool → fc 800 → fc 500
               32 → 16                    16 → 8

Every layer is followed by ReLU. No biases, no batch norm. Maps are kept in channels-last order, in which a CPU is
faster.
"""

from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable


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

    The mean is a 1×1 convolution with a band of equal weights, and the gradient a formula in place of a chain.
    """

    def forward(self, x: Tensor) -> Tensor:
        channel = torch.arange(x.shape[1], device=x.device)
        apart = channel - channel.unsqueeze(1)
        near = (apart >= -(self.size // 2)) & (apart <= (self.size - 1) // 2)
        band = (near.to(x.dtype) * (self.alpha / self.size))[:, :, None, None]
        if torch.is_grad_enabled() and x.requires_grad:
            return cast(Tensor, _Normed.apply(x, band, self.k, self.beta))  # type: ignore[no-untyped-call]
        return x * _inverse_power(self.k + F.conv2d(x.square(), band), self.beta)


class _Normed(torch.autograd.Function):
    """``y = x s^-β`` with ``s = k + B x²``, and ``dx = dy s^-β - 2β x Bᵀ(dy y / s)``, in few passes over the maps."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, band: Tensor, k: float, beta: float) -> Tensor:
        s = F.conv2d(x.square(), band).add_(k)
        shrunk = _inverse_power(s, beta)
        ctx.save_for_backward(x, band, s, shrunk)
        ctx.beta = beta
        return x * shrunk

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None, None, None]:
        x, band, s, shrunk = ctx.saved_tensors
        dx = dy * shrunk
        spread = F.conv2d((dx * x).div_(s), band.transpose(0, 1))
        return dx.addcmul_(x, spread, value=-2 * ctx.beta), None, None, None


def _inverse_power(s: Tensor, beta: float) -> Tensor:
    """``s^-β``; for β = ¾, which LeNet has, by two roots, for they are vectorised and a power is not."""
    if beta != 0.75:
        return s.pow(-beta)
    root = s.rsqrt()
    return root * root.sqrt()


def kaiming(layer: nn.Conv2d | nn.Linear) -> None:
    """Draw the weight of ``layer`` uniformly from ±√(6 / fan_in) (He et al., 2015, for ReLU)."""
    nn.init.kaiming_uniform_(layer.weight, mode="fan_in", nonlinearity="relu")

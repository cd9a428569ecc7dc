"""The reduced ResNet-18 of 5-Datasets and Split miniImageNet, in the form of GPM (Saha et al., 2021).

    conv 3×3 → four stages of two basic blocks, widths 20, 40, 80, 160, strides 1, 2, 2, 2 → average pool

No biases. Batch norm keeps no running statistics: those of the batch serve in evaluation too. Maps are kept in
channels-last order, in which a CPU is faster.
"""

from collections import OrderedDict
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Block(nn.Module):
    """ReLU(bn2(conv2(ReLU(bn1(conv1(x))))) + shortcut(x)), the basic block of He et al. (2016).

    The shortcut is a strided 1×1 convolution with batch norm where the shape changes, otherwise the identity.
    It stands after ``conv2`` in the order of the parameters, as in GPM.
    """

    uses_everything = True

    def __init__(self, width_in: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(width_in, width, 3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width, track_running_stats=False)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width, track_running_stats=False)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or width_in != width:
            conv = nn.Conv2d(width_in, width, 1, stride=stride, bias=False)
            bn = nn.BatchNorm2d(width, track_running_stats=False)
            self.shortcut = nn.Sequential(OrderedDict(conv=conv, bn=bn))

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        return F.relu(y + self.shortcut(x))


class ReducedResNet18(nn.Module):
    """ResNet-18 with 20 instead of 64 first channels, for square images.

    5-Datasets: the defaults (640 features). Split miniImageNet: ``image_size=84, stride=2``, and then
    ``pool="average"`` as in GPM (1440 features) or ``pool="adaptive"`` as in CODE-CL (640).

    Args:
        stride: of the first convolution.
        pool: ``"average"`` over 2×2 windows, or ``"adaptive"`` to a 2×2 map.
    """

    uses_everything = True

    def __init__(
        self,
        *,
        image_size: int = 32,
        stride: int = 1,
        pool: Literal["average", "adaptive"] = "average",
    ) -> None:
        super().__init__()
        if pool not in ("average", "adaptive"):
            raise ValueError(f'pool must be "average" or "adaptive", got {pool!r}')
        self.pool = pool
        self.conv1 = nn.Conv2d(3, 20, 3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(20, track_running_stats=False)
        self.stages = nn.Sequential(
            nn.Sequential(Block(20, 20, 1), Block(20, 20, 1)),
            nn.Sequential(Block(20, 40, 2), Block(40, 40, 1)),
            nn.Sequential(Block(40, 80, 2), Block(80, 80, 1)),
            nn.Sequential(Block(80, 160, 2), Block(160, 160, 1)),
        )
        size = image_size
        for s in (stride, 2, 2, 2):
            size = -(-size // s)  # a padded 3×3 convolution of stride s gives ⌈size / s⌉
        pooled = size // 2 if pool == "average" else 2
        if pooled < 1:
            raise ValueError(f"image_size={image_size} leaves a {size}×{size} map, too small for the 2×2 average pool")
        self.features = 160 * pooled**2

    def forward(self, x: Tensor) -> Tensor:
        x = x.contiguous(memory_format=torch.channels_last)
        x = self.stages(F.relu(self.bn1(self.conv1(x))))
        x = F.avg_pool2d(x, 2) if self.pool == "average" else F.adaptive_avg_pool2d(x, 2)
        return x.flatten(1)

"""The AlexNet-like network of Split CIFAR-100 (Serrà et al., 2018, in the form of GPM, Saha et al., 2021).

    3×32×32 → conv 64, 4×4 → pool → conv 128, 3×3 → pool → conv 256, 2×2 → pool → fc 2048 → fc 2048
               29 → 14               12 → 6                 5 → 2

Every layer is followed by batch norm, ReLU and dropout, in this order; pooling comes last. No biases.
Batch norm keeps no running statistics: those of the batch serve in evaluation too.

Two things make it fast on a CPU and change no value. Maps are kept in channels-last order, in which convolution, norm
and pooling are vectorised over the channels. And ReLU comes last, on the map that pooling has made small: it commutes
with the maximum and with factors that are not negative.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from codecl.networks.dropout import Dropout


class AlexNet(nn.Module):
    """Five layers for 3×32×32 images, to 2048 features. ``dropout=False`` leaves the dropout out."""

    uses_everything = True
    features = 2048

    def __init__(self, *, dropout: bool = True) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 4, bias=False)
        self.bn1 = nn.BatchNorm2d(64, track_running_stats=False)
        self.conv2 = nn.Conv2d(64, 128, 3, bias=False)
        self.bn2 = nn.BatchNorm2d(128, track_running_stats=False)
        self.conv3 = nn.Conv2d(128, 256, 2, bias=False)
        self.bn3 = nn.BatchNorm2d(256, track_running_stats=False)
        self.fc1 = nn.Linear(1024, 2048, bias=False)
        self.bn4 = nn.BatchNorm1d(2048, track_running_stats=False)
        self.fc2 = nn.Linear(2048, 2048, bias=False)
        self.bn5 = nn.BatchNorm1d(2048, track_running_stats=False)
        self.light = Dropout(0.2 if dropout else 0.0)  # after conv1, conv2
        self.heavy = Dropout(0.5 if dropout else 0.0)  # after conv3, fc1, fc2

    def forward(self, x: Tensor) -> Tensor:
        x = x.contiguous(memory_format=torch.channels_last)
        x = F.relu(F.max_pool2d(self.light(self.bn1(self.conv1(x))), 2))
        x = F.relu(F.max_pool2d(self.light(self.bn2(self.conv2(x))), 2))
        x = F.relu(F.max_pool2d(self.heavy(self.bn3(self.conv3(x))), 2))
        x = F.relu(self.heavy(self.bn4(self.fc1(x.flatten(1)))))
        return F.relu(self.heavy(self.bn5(self.fc2(x))))

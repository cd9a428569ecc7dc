"""The networks of the benchmarks: backbones without heads, and ``MultiHead``, one head per task."""

from codecl.networks.alexnet import AlexNet
from codecl.networks.dropout import Dropout
from codecl.networks.lenet import LeNet, kaiming
from codecl.networks.mlp import MLP
from codecl.networks.multihead import MultiHead
from codecl.networks.resnet import ReducedResNet18
from codecl.networks.vit import VisionTransformer

__all__ = ["MLP", "AlexNet", "Dropout", "LeNet", "MultiHead", "ReducedResNet18", "VisionTransformer", "kaiming"]

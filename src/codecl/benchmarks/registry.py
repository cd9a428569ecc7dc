"""The benchmarks that a command can name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from torch import nn

from codecl.benchmarks import cifar100, digits, five_datasets, miniimagenet, permuted_mnist
from codecl.benchmarks.splits import with_heads
from codecl.networks import AlexNet, LeNet, ReducedResNet18, VisionTransformer, kaiming
from codecl.training.stream import Stream


@dataclass(frozen=True)
class Benchmark:
    """A stream of tasks and the network it is learned with.

    ``stream(root, seed, **switches)`` reads the data below ``root`` and ``network(stream, **switches)`` builds for it;
    ``switches`` names what may be chosen about the data, each with its choices, the first being the default.
    """

    summary: str
    tasks: int
    stream: Callable[..., Stream]
    network: Callable[..., nn.Module]
    switches: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


SPLITS = {"split_seed": ("0", "run")}  # CODE-CL and SGP fix the seed of the validation split, GPM takes the run's

BENCHMARKS: dict[str, Benchmark] = {
    "permuted-digits": Benchmark(
        "embedded: shuffled 8×8 digits, MLP", 5, digits.stream, digits.network,
    ),
    "split-cifar100": Benchmark(
        "CIFAR-100 in tens of classes, AlexNet", 10, cifar100.split, with_heads(AlexNet), SPLITS,
    ),
    "split-cifar100-vit": Benchmark(
        "CIFAR-100 in tens of classes, small vision transformer", 10, cifar100.split,
        with_heads(VisionTransformer), SPLITS,
    ),
    "ol-cifar100": Benchmark(
        "CIFAR-100 in tens of classes that overlap, AlexNet", 7, cifar100.overlapping, with_heads(AlexNet), SPLITS,
    ),
    "cifar100-superclass": Benchmark(
        "CIFAR-100 by coarse class, LeNet", 20, cifar100.superclass, with_heads(LeNet, init=kaiming),
        {"pixels": ("true", "scrambled"), "order": ("0", "1", "2", "3", "4")},
    ),
    "split-miniimagenet": Benchmark(
        "miniImageNet in fives of classes, reduced ResNet18", 20, miniimagenet.stream, miniimagenet.network,
        {"protocol": ("avalanche", "gpm"), "class_seed": ("37", "run")},
    ),
    "5-datasets": Benchmark(
        "CIFAR-10, MNIST, SVHN, Fashion-MNIST, notMNIST; reduced ResNet18", 5, five_datasets.stream,
        with_heads(ReducedResNet18), {"fashion": ("true", "mnist"), "order": ("loader", "text")},
    ),
    "permuted-mnist": Benchmark(
        "MNIST with permuted pixels, MLP with one head", 10, permuted_mnist.stream, permuted_mnist.network,
        {"list_seed": ("run", "2")},
    ),
}  # fmt: skip
EMBEDDED = "permuted-digits"

"""The methods and benchmarks that a command can name."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from torch import nn

from codecl.benchmarks import cifar100, digits, five_datasets, miniimagenet, permuted_mnist
from codecl.errors import UsageError
from codecl.methods import AGEM, API, CUBER, DFGP, ER, EWC, GPM, HAT, OWM, SGP, TRGP, TRGPSD, CodeCL, Method, Multitask
from codecl.text import unknown_name
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


METHODS: dict[str, type[Method]] = {
    method.name: method
    for method in (
        *(CodeCL, GPM, SGP, TRGP, CUBER, TRGPSD, DFGP, API, OWM),  # gradient projection
        *(EWC, HAT, AGEM, ER, Multitask, Method),  # the other schools
    )
}

SPLITS = {"split_seed": ("0", "run")}  # CODE-CL and SGP fix the seed of the validation split, GPM takes the run's

BENCHMARKS: dict[str, Benchmark] = {
    "permuted-digits": Benchmark("embedded: shuffled 8×8 digits, MLP", 5, digits.stream, digits.network),
    "split-cifar100": Benchmark("CIFAR-100 in tens of classes, AlexNet", 10, cifar100.split, cifar100.alexnet, SPLITS),
    "split-cifar100-vit": Benchmark(
        "CIFAR-100 in tens of classes, small vision transformer", 10, cifar100.split, cifar100.vit, SPLITS
    ),
    "ol-cifar100": Benchmark(
        "CIFAR-100 in tens of classes that overlap, AlexNet", 7, cifar100.overlapping, cifar100.alexnet, SPLITS
    ),
    "cifar100-superclass": Benchmark(
        "CIFAR-100 by coarse class, LeNet",
        20,
        cifar100.superclass,
        cifar100.lenet,
        {"pixels": ("true", "scrambled"), "order": ("0", "1", "2", "3", "4")},
    ),
    "split-miniimagenet": Benchmark(
        "miniImageNet in fives of classes, reduced ResNet18",
        20,
        miniimagenet.stream,
        miniimagenet.network,
        {"protocol": ("avalanche", "gpm"), "class_seed": ("37", "run")},
    ),
    "5-datasets": Benchmark(
        "CIFAR-10, MNIST, SVHN, Fashion-MNIST, notMNIST; reduced ResNet18",
        5,
        five_datasets.stream,
        five_datasets.network,
        {"fashion": ("true", "mnist"), "order": ("loader", "text")},
    ),
    "permuted-mnist": Benchmark(
        "MNIST with permuted pixels, MLP with one head",
        10,
        permuted_mnist.stream,
        permuted_mnist.network,
        {"list_seed": ("run", "2")},
    ),
}
EMBEDDED = "permuted-digits"


def find_method(name: str) -> type[Method]:
    """A method by name, or a user's own by ``package.module:Class``."""
    if ":" not in name:
        if name not in METHODS:
            raise UsageError(unknown_name("method", name, METHODS))
        return METHODS[name]
    found = _imported("method", name)
    if not (isinstance(found, type) and issubclass(found, Method)):
        raise UsageError(f"{name!r} is not a subclass of codecl.Method.")
    return found


def find_benchmark(name: str) -> Benchmark:
    """A benchmark by name, or a user's own by ``package.module:NAME``."""
    if ":" not in name:
        if name not in BENCHMARKS:
            raise UsageError(unknown_name("benchmark", name, BENCHMARKS))
        return BENCHMARKS[name]
    found = _imported("benchmark", name)
    if not isinstance(found, Benchmark):
        raise UsageError(f"{name!r} is not a Benchmark of codecl.benchmarks.registry.")
    return found


def title(name: str) -> str:
    """How tables call a method: by its name, and what its label adds."""
    label = METHODS[name].label if name in METHODS else ""
    return f"{name} ({label})" if label else name


def _imported(what: str, name: str) -> object:
    module, _, attribute = name.partition(":")
    try:
        return getattr(importlib.import_module(module), attribute)
    except Exception as error:  # whatever a module of the user's raises
        raise UsageError(f"the {what} {name!r} cannot be imported: {type(error).__name__}: {error}.") from error

"""What is set on a model for a while: forwards, switches, flags and buffers, all restored exactly."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from torch import nn

from codecl.layers.norms import is_norm

FUSING: dict[type[nn.Module], tuple[str, object]] = {
    nn.TransformerEncoderLayer: ("activation_relu_or_gelu", 0),
    nn.TransformerEncoder: ("use_nested_tensor", False),
}
"""In evaluation these types hand the weights of everything inside them to one function, past the forwards that protect
them. The attribute of each that permits it, and its value where that is off; no flag of the process is touched, so
other models go on fusing."""
_ABSENT = object()


def patch(changes: Iterable[tuple[nn.Module, str, Any]]) -> Callable[[], None]:
    """Set attributes of modules, in their instance dictionaries alone.

    Returns:
        A function that restores the dictionaries.
    """
    before = []
    for module, name, value in changes:
        before.append((vars(module), name, vars(module).get(name, _ABSENT)))
        vars(module)[name] = value

    def restore() -> None:
        for attributes, name, value in before:
            if value is _ABSENT:
                attributes.pop(name, None)
            else:
                attributes[name] = value

    return restore


def fusing_off(model: nn.Module, used: Collection[nn.Module]) -> Iterator[tuple[nn.Module, str, object]]:
    """The changes by which every module of ``model`` that contains one of ``used`` calls its layers one by one."""
    for module in model.modules():
        for fusing, (name, off) in FUSING.items():
            if isinstance(module, fusing) and hasattr(module, name) and any(m in used for m in module.modules()):
                yield module, name, off


class FrozenForward:
    """The forward of a frozen layer with running statistics: it runs as in evaluation, also after ``train()``.

    Trained with batch statistics and evaluated with frozen ones, a later task would be tested on another function than
    it learned.
    """

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.original: Callable[..., Any] = module.forward

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        training, self.module.training = self.module.training, False
        try:
            return self.original(*args, **kwargs)
        finally:
            self.module.training = training


def hold_statistics(modules: Iterable[nn.Module]) -> Callable[[], None]:
    """Freeze the running statistics of those norms among ``modules`` that have any; returns what lets them go on."""
    frozen = [m for m in modules if is_norm(m) and any(True for _ in m.buffers(recurse=False))]
    return patch((module, "forward", FrozenForward(module)) for module in frozen)


@contextmanager
def in_mode(model: nn.Module, training: bool) -> Iterator[None]:
    """Run in training or evaluation mode; every module has its own flag back afterwards."""
    flags = [(module, module.training) for module in model.modules()]
    try:
        for module, _ in flags:
            module.training = training
        yield
    finally:
        for module, before in flags:
            module.training = before


def evaluating(model: nn.Module) -> AbstractContextManager[None]:
    """Run in evaluation mode."""
    return in_mode(model, training=False)


@contextmanager
def untouched_buffers(model: nn.Module) -> Iterator[None]:
    """Running statistics and other buffers are the same afterwards."""
    kept = [(buffer, buffer.clone()) for buffer in model.buffers()]
    try:
        yield
    finally:
        for buffer, value in kept:
            buffer.copy_(value)

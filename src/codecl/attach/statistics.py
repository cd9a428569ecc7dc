"""Freezing the running statistics of normalisation layers."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from torch import nn

from codecl.attach.patching import patch_forwards
from codecl.layers.norms import is_norm


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
    """Freeze the running statistics of those ``modules`` that have any.

    Returns:
        A function that lets them go on.
    """
    frozen = [m for m in modules if is_norm(m) and any(True for _ in m.buffers(recurse=False))]
    return patch_forwards({module: FrozenForward(module) for module in frozen})

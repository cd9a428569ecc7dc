"""Replacing ``module.forward``, in the instance dictionary alone, and restoring it exactly."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import nn


def patch_forwards(forwards: Mapping[nn.Module, Callable[..., Any]]) -> Callable[[], None]:
    """Set ``module.forward`` for each module.

    Returns:
        A function that restores the instance dictionaries.
    """
    found = {module: vars(module)["forward"] for module in forwards if "forward" in vars(module)}
    for module, forward in forwards.items():
        module.forward = forward

    def restore() -> None:
        for module in forwards:
            vars(module).pop("forward", None)
            if module in found:
                module.forward = found[module]

    return restore

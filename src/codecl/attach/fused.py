"""Transformer layers that fuse all their weights into one call, past the forwards of what is inside them.

In evaluation ``nn.TransformerEncoderLayer`` hands the weights of everything inside it to one function. While a method
is attached it calls its layers one by one, as in training: two attributes of the modules themselves say so.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from torch import nn

SWITCHES: dict[type[nn.Module], tuple[str, object]] = {
    nn.TransformerEncoderLayer: ("activation_relu_or_gelu", 0),
    nn.TransformerEncoder: ("use_nested_tensor", False),
}


def unfuse(model: nn.Module, used: Collection[nn.Module]) -> Callable[[], None]:
    """Switch fusing off in every module of ``model`` around one of those ``used``; returns what restores it."""
    found: list[tuple[nn.Module, str, object]] = []
    for module in model.modules():
        if any(inner in used for inner in module.modules()):
            found += [(module, name, getattr(module, name)) for name, _ in _switches(module) if hasattr(module, name)]
    for module, name, _ in found:
        setattr(module, name, dict(_switches(module))[name])

    def restore() -> None:
        for module, name, value in found:
            setattr(module, name, value)

    return restore


def _switches(module: nn.Module) -> list[tuple[str, object]]:
    return [switch for kind, switch in SWITCHES.items() if isinstance(module, kind)]

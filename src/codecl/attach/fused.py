"""Transformer layers that fuse all their weights into one call, past the forwards of the modules inside them.

In evaluation ``nn.TransformerEncoderLayer`` hands the weights of everything inside it to one function. While a method
is attached it calls its layers one by one, as in training. Attributes of the modules themselves switch this; no flag of
the process is touched, so other models go on fusing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

from torch import nn

SWITCHES: dict[type[nn.Module], tuple[str, object]] = {
    nn.TransformerEncoderLayer: ("activation_relu_or_gelu", 0),
    nn.TransformerEncoder: ("use_nested_tensor", False),
}
"""The attribute of each type that permits fusing, and its value where that is off."""


def unfuse(model: nn.Module, used: Collection[nn.Module]) -> Callable[[], None]:
    """Switch fusing off in every module of ``model`` that contains one of ``used``.

    Returns:
        A function that restores the attributes.
    """
    off = [
        (module, name, value)
        for module in model.modules()
        for module_type, (name, value) in SWITCHES.items()
        if isinstance(module, module_type) and hasattr(module, name) and any(m in used for m in module.modules())
    ]
    before = [(module, name, getattr(module, name)) for module, name, _ in off]
    _set(off)
    return lambda: _set(before)


def _set(attributes: Iterable[tuple[nn.Module, str, object]]) -> None:
    for module, name, value in attributes:
        setattr(module, name, value)

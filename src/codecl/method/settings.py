"""Settings of a method: what cannot be, and values that differ from layer to layer."""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping

ByWeight = float | Mapping[str, float]
"""One number for all weights, or a mapping from name patterns; the first that fits counts."""


def check(sound: bool, name: str, value: object, expected: str) -> None:
    """Refuse a setting."""
    if not sound:
        raise ValueError(f"{name} must be {expected}; got {value!r}.")


def of_weight(setting: str, value: ByWeight, name: str) -> float:
    """The value of ``setting`` for the weight ``name``."""
    if not isinstance(value, Mapping):
        return float(value)
    for pattern, of_pattern in value.items():
        if fnmatch.fnmatch(name, pattern):
            return float(of_pattern)
    raise ValueError(
        f"{setting}: no pattern matches '{name}'; the patterns are {list(value)}. End with '*' for the rest."
    )


def values_of(value: ByWeight) -> list[float]:
    """All numbers in it."""
    return list(value.values()) if isinstance(value, Mapping) else [value]

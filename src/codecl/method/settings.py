"""Settings of a method: what cannot be, and values that differ from layer to layer."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Mapping

ByWeight = float | Mapping[str, float]
"""One number for all weights, or a mapping from name patterns; the first that fits counts."""


def check(sound: bool, name: str, value: object, expected: str) -> None:
    """Refuse a setting."""
    if not sound:
        raise ValueError(f"{name} must be {expected}; got {value!r}.")


def by_weight(setting: str, value: ByWeight, names: Iterable[str]) -> dict[str, float]:
    """The value of ``setting`` for each weight of ``names``."""
    if not isinstance(value, Mapping):
        return dict.fromkeys(names, float(value))
    return {name: float(value[_pattern(setting, value, name)]) for name in names}


def _pattern(setting: str, value: Mapping[str, float], name: str) -> str:
    for pattern in value:
        if fnmatch.fnmatch(name, pattern):
            return pattern
    raise ValueError(
        f"{setting}: no pattern matches '{name}'; the patterns are {list(value)}. End with '*' for the rest."
    )


def values_of(value: ByWeight) -> list[float]:
    """All numbers in it."""
    return list(value.values()) if isinstance(value, Mapping) else [value]

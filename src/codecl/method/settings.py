"""Settings of a method: what cannot be, and values that differ from layer to layer."""

from __future__ import annotations

import fnmatch
import inspect
import numbers
import types
import typing
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Literal

from codecl.text import nearest, unknown_name

NAMELESS = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.POSITIONAL_ONLY)
ByWeight = float | Mapping[str, float]
"""One number for all weights, or a mapping from name patterns; the first that fits counts."""


def check(sound: bool, name: str, value: object, expected: str) -> None:
    """Refuse a setting."""
    if not sound:
        long = isinstance(value, int) and value.bit_length() > 64
        raise ValueError(f"{name} must be {expected}; got {'a huge number' if long else format(repr(value), '.80')}.")


def by_weight(setting: str, value: ByWeight, names: Iterable[str]) -> dict[str, float]:
    """The value of ``setting`` for each weight of ``names``."""
    names = list(names)
    if not isinstance(value, Mapping):
        return dict.fromkeys(names, float(value))
    check_patterns(setting, list(value), names)
    return {name: float(value[_pattern(setting, value, name)]) for name in names}


def _pattern(setting: str, value: Mapping[str, float], name: str) -> str:
    if found := matching(name, value):
        return found[0]
    raise ValueError(
        f"{setting}: no pattern matches '{name}'; the patterns are {list(value)}. End with '*' for the rest."
    )


def check_patterns(setting: str, patterns: Sequence[str], names: Collection[str]) -> None:
    """Refuse a name that none of ``names``, those of the weights, is; a pattern may match nothing."""
    for pattern in patterns:
        if not set(pattern) & set("*?[") and pattern not in names:
            raise ValueError(f"{setting}: {unknown_name('weight', pattern, names)}")


def matching(name: str, patterns: Iterable[str]) -> list[str]:
    """Those of ``patterns`` that the name of a weight matches."""
    return [pattern for pattern in patterns if fnmatch.fnmatch(name, pattern)]


def values_of(value: ByWeight) -> list[float]:
    """All numbers in it."""
    return list(value.values()) if isinstance(value, Mapping) else [value]


def setting_hints(owner: type) -> dict[str, Any]:
    """The type hints of the constructors of ``owner`` and its bases, as far as they can be resolved."""
    hints: dict[str, Any] = {}
    for cls in reversed(owner.__mro__):
        with suppress(NameError, TypeError):  # names that only a type checker knows, or no constructor of its own
            hints |= typing.get_type_hints(vars(cls).get("__init__"))
    return hints


def accepted(owner: type) -> dict[str, inspect.Parameter]:
    """What the constructor of ``owner`` takes by name, and where it passes the rest on, those of its bases."""
    found: dict[str, inspect.Parameter] = {}
    for cls in owner.__mro__:
        if cls is not object and "__init__" in vars(cls):
            parameters = inspect.signature(vars(cls)["__init__"]).parameters.values()
            found |= {p.name: p for p in parameters if p.kind not in NAMELESS and p.name not in ("self", *found)}
            if all(p.kind is not inspect.Parameter.VAR_KEYWORD for p in parameters):
                break
    return found


def check_settings(owner: type, settings: Mapping[str, Any]) -> None:
    """Refuse settings of another type than the constructors of ``owner`` say, and slips in their names.

    A name that is unlike all others is left to the constructors: one may take it out of what it passes on.
    """
    known, hints = accepted(owner), setting_hints(owner)
    for name, value in settings.items():
        if name not in known and nearest(name, known):
            raise TypeError(f"{owner.__name__}: {unknown_name('setting', name, known)}")
        if name in hints:
            check(_fits(value, hints[name]), name, value, _described(hints[name]))


def _fits(value: Any, hint: Any) -> bool:
    kind, inner = typing.get_origin(hint) or hint, typing.get_args(hint)
    if kind in (typing.Union, types.UnionType):
        return any(_fits(value, one) for one in inner)
    if kind is Literal:
        return value in inner
    if kind in (Sequence, Mapping):
        items = value.values() if isinstance(value, Mapping) else value
        return isinstance(value, kind) and not isinstance(value, str) and all(_fits(one, inner[-1]) for one in items)
    if kind in (int, float):
        number = numbers.Integral if kind is int else numbers.Real
        huge = isinstance(value, numbers.Integral) and int(value).bit_length() > 63
        return isinstance(value, number) and not isinstance(value, bool) and not huge
    return isinstance(value, kind) if kind in (bool, str, types.NoneType) else True


def _described(hint: Any) -> str:
    kind, inner = typing.get_origin(hint) or hint, typing.get_args(hint)
    if kind in (typing.Union, types.UnionType):
        return ", or ".join(_described(one) for one in inner)
    if kind is Literal:
        return " or ".join((", ".join(map(repr, inner[:-1])), repr(inner[-1])))
    if kind in (Sequence, Mapping):
        return f"{'a list' if kind is Sequence else 'a table'}, each {_described(inner[-1])}"
    words = {int: "a whole number", float: "a number", bool: "True or False", str: "text", types.NoneType: "None"}
    return words.get(kind, str(kind))

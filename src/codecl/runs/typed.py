"""Values that a file or a user states, checked against type hints: a fault is one ``ValueError`` in a sentence."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeGuard, Union, get_args, get_origin, get_type_hints

WORDS: dict[Any, str] = {
    str: "text", bool: "true or false", int: "a whole number", float: "a finite number", NoneType: "none",
    list: "a list", Sequence: "a list", dict: "a table", Mapping: "a table",
}  # fmt: skip
LARGEST = 1e15
"""Of seconds, bytes and counts: nobody measured more, and sums of it stay finite."""

Rule = Callable[[str, Any], None]


def is_number(value: Any) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def between(low: float, high: float = LARGEST) -> Rule:
    """The range of a number."""

    def rule(name: str, value: Any) -> None:
        if not low <= value <= high:
            limit = f"{low:g} or more" if value < low else f"at most {high:g}"
            raise ValueError(f"{name} must be {limit}; got {value!r:.80}.")

    return rule


def keys(**hints: Any) -> Rule:
    """What a table must have, by name; it may have more."""

    def rule(name: str, table: Any) -> None:
        for key, hint in hints.items():
            check(f"{name}.{key}" if name else key, table.get(key), hint)

    return rule


Whole = Annotated[int, between(0)]
Amount = Annotated[float, between(0)]
Percent = Annotated[float, between(0, 100)]


def check(name: str, value: Any, hint: Any) -> None:
    """Refuse a ``value`` that is not what ``hint`` says; rules stand in ``Annotated``.

    >>> check("epochs", [3, "4"], list[int])
    Traceback (most recent call last):
    ValueError: epochs[1] must be a whole number; got '4'.
    """
    kind, args = get_origin(hint) or hint, get_args(hint)
    if kind is Annotated:
        check(name, value, args[0])
        for rule in args[1:]:
            rule(name, value)
        return
    arms = args if kind in (Union, UnionType) else (hint,)
    arm = next((arm for arm in arms if _fits(value, arm)), None)
    if arm is None:
        raise ValueError(f"{name} must be {' or '.join(map(_word, arms))}; got {value!r:.80}.")
    if arm is not hint:
        check(name, value, arm)
    elif args and isinstance(value, dict):
        for key, item in value.items():
            check(f"{name}.{key}", item, args[1])
    elif args and isinstance(value, list | tuple):
        for i, item in enumerate(value):
            check(f"{name}[{i}]", item, args[0])


def _fits(value: Any, hint: Any) -> bool:
    """Whether ``value`` is of this kind, whatever is in it."""
    kind = get_origin(hint) or hint
    if kind is Annotated:
        return _fits(value, get_args(hint)[0])
    if kind is Literal:
        return value in get_args(hint)
    if kind is float:
        return is_number(value) and math.isfinite(value)
    if kind in (Mapping, Sequence):
        return isinstance(value, dict if kind is Mapping else list | tuple)
    return kind not in WORDS or (isinstance(value, kind) and (kind is bool) == isinstance(value, bool))


def _word(hint: Any) -> str:
    kind, args = get_origin(hint) or hint, get_args(hint)
    if kind is Literal:
        return " or ".join(map(repr, args))
    return _word(args[0]) if kind is Annotated else WORDS[kind]


class Checked:
    """The base of dataclasses whose fields are checked against their hints when one is made."""

    def __post_init__(self) -> None:
        for name, hint in field_hints(type(self)).items():
            check(self.key(name), getattr(self, name), hint)

    @classmethod
    def key(cls, name: str) -> str:
        """What files and messages call a field."""
        return name


def _field_hints(record: Any) -> dict[str, Any]:
    """The fields of a dataclass with their hints."""
    hints = get_type_hints(record, include_extras=True)
    return {field.name: hints[field.name] for field in dataclasses.fields(record)}


field_hints: Callable[[Any], dict[str, Any]] = functools.cache(_field_hints)

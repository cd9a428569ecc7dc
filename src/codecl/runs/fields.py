"""What a field of a record must be: each check is one ``ValueError`` that names the field and what was found."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, TypeGuard

LARGEST = 1e15
"""Of seconds, bytes and counts: nobody measured more, and sums of it stay finite."""


def is_number(value: Any) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def check_text(name: str, value: Any) -> None:
    if not isinstance(value, str):
        raise ValueError(f"{name} must be text; got {value!r:.80}.")


def check_number(name: str, value: Any) -> None:
    if not is_number(value) or not math.isfinite(value):
        raise ValueError(f"{name} must be a finite number; got {value!r:.80}.")


def check_whole(name: str, value: Any) -> None:
    if type(value) is not int or value < 0:
        raise ValueError(f"{name} must be a whole number, 0 or more; got {value!r:.80}.")
    check_amount(name, value)


def check_amount(name: str, value: Any) -> None:
    if not is_number(value) or not value >= 0:
        raise ValueError(f"{name} must be a number, 0 or more; got {value!r:.80}.")
    if value > LARGEST:
        raise ValueError(f"{name} must be at most {LARGEST:g}; got {value!r:.80}.")


def check_amounts(name: str, values: Mapping[str, Any], needed: Iterable[str] = ()) -> None:
    """Every value of a table, and that it has the ``needed`` ones."""
    for key in dict.fromkeys([*needed, *values]):
        check_amount(f"{name}.{key}", values.get(key))

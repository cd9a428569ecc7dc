"""Reading files that anyone may have written: every fault is a ``ValueError`` in one sentence.

Only regular files are read (a FIFO would never end), only up to a size, only UTF-8. Of what JSON and TOML can say,
nothing comes through that Python or a report cannot take: deep nesting, integers beyond 64 bits, numbers that are not
finite, text that cannot be encoded.
"""

from __future__ import annotations

import json
import math
import tomllib
from pathlib import Path
from typing import Any

from codecl.files import open_regular

MEGABYTE = 2**20
MAX_DEPTH = 64
"""Far below Python's recursion limit, far above what a record needs."""


def read_bytes(path: Path, limit: int) -> bytes:
    """The content of the regular file ``path``; ``OSError`` if it cannot be read, ``ValueError`` above ``limit``."""
    with open_regular(path) as file:
        data = file.read(limit + 1)
    if len(data) > limit:
        raise ValueError(f"it is larger than {limit // MEGABYTE} MB.")
    return data


def read_text(path: Path, limit: int) -> str:
    """The content of ``path`` as text; the errors of ``read_bytes``, and ``ValueError`` if it is not UTF-8."""
    return decode(read_bytes(path, limit))


def decode(data: bytes) -> str:
    """``data`` as UTF-8.

    >>> decode(b"caf\\xe9")
    Traceback (most recent call last):
    ValueError: it is not UTF-8: byte 3 is 0xe9.
    """
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"it is not UTF-8: byte {error.start} is {data[error.start]:#04x}.") from None


def parse_json(text: str) -> Any:
    """The value of a JSON document."""
    try:
        value = json.loads(text, parse_int=_integer)
    except json.JSONDecodeError as error:
        raise ValueError(f"it is not JSON: {error}.") from None
    except RecursionError:
        raise ValueError(f"it is nested more than {MAX_DEPTH} levels deep.") from None
    _check(value, finite=True)
    return value


def parse_toml(text: str) -> dict[str, Any]:
    """The table of a TOML document; ``tomllib.TOMLDecodeError`` is a ``ValueError`` too."""
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise tomllib.TOMLDecodeError(f"{error}.") from None
    except RecursionError:
        raise ValueError(f"it is nested more than {MAX_DEPTH} levels deep.") from None
    except ValueError:  # Python refuses to convert very long integers
        raise ValueError("it has a whole number of more than 64 bits.") from None
    _check(table, finite=False)
    return table


def _integer(digits: str) -> int:
    if len(digits) > 20:  # before Python refuses to convert it
        raise ValueError(f"it has a whole number of {len(digits)} digits.")
    return int(digits)


def _check(value: Any, finite: bool) -> None:
    """Refuse what is nested too deeply, and scalars that cannot be used."""
    level = [value]
    for _ in range(MAX_DEPTH):
        for item in level:
            _check_scalar(item, finite)
        containers = [item for item in level if isinstance(item, dict | list)]
        level = [
            child for item in containers for child in ([*item, *item.values()] if isinstance(item, dict) else item)
        ]
        if not level:
            return
    raise ValueError(f"it is nested more than {MAX_DEPTH} levels deep.")


def _children(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return [*value, *value.values()]
    return value if isinstance(value, list) else []


def _check_scalar(value: Any, finite: bool) -> None:
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            raise ValueError(f"it has text that is not Unicode: {value!r:.80}.") from None
    elif isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise ValueError("it has a whole number of more than 64 bits.")
    elif finite and isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"it has a number that is not finite: {value}.")

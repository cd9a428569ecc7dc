"""JSON and TOML that anyone may have written: every fault is a ``ValueError`` in one sentence.

Only regular files are read (a FIFO would never end), only up to a size, only UTF-8. Nothing comes through that Python
or a report cannot take: deep nesting, integers beyond 64 bits, numbers that are not finite, text that cannot be
encoded. TOML has no word for None: the text "none" stands for it.
"""

from __future__ import annotations

import json
import math
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from codecl.errors import UsageError
from codecl.files import open_regular

MEGABYTE = 2**20
MAX_DEPTH = 64
"""Far below Python's recursion limit, far above what a record needs."""
MAX_DOTS = 1000
"""In a line of TOML: the time that Python's parser takes grows with the square of the parts of a dotted key."""
TOO_DEEP = f"it is nested more than {MAX_DEPTH} levels deep."
TOO_LONG = "it has a whole number of more than 64 bits."


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
    return _cleaned(_parse(text, json.loads), toml=False)


def parse_toml(text: str) -> dict[str, Any]:
    """The table of a TOML document; ``tomllib.TOMLDecodeError`` is a ``ValueError`` too."""
    if any(line.count(".") > MAX_DOTS for line in text.splitlines()):
        raise ValueError(f"it has a line of more than {MAX_DOTS} dots.")
    table: dict[str, Any] = _cleaned(_parse(text, tomllib.loads), toml=True)
    return table


def to_toml(value: Any) -> str:
    """A value as TOML.

    >>> to_toml({"a": [1, None]})
    '{ a = [1, "none"] }'
    """
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{toml_key(key)} = {to_toml(item)}" for key, item in value.items()) + " }"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(to_toml, value)) + "]"
    if isinstance(value, float):
        return repr(value)
    if value is not None and not isinstance(value, str | int):
        raise UsageError(f"{value!r} cannot be written to a recipe.")
    # JSON's escapes, but for surrogate pairs and the one control character that JSON leaves.
    return json.dumps("none" if value is None else value, ensure_ascii=False).replace("\x7f", "\\u007f")


def toml_key(name: str) -> str:
    """The name of a field as TOML."""
    return name if name.isascii() and name.replace("_", "").replace("-", "").isalnum() else to_toml(name)


def _parse(text: str, loads: Callable[[str], Any]) -> Any:
    try:
        return loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"it is not JSON: {error}.") from None
    except tomllib.TOMLDecodeError as error:
        raise tomllib.TOMLDecodeError(f"{error}.") from None
    except RecursionError:
        raise ValueError(TOO_DEEP) from None
    except ValueError:  # Python refuses to convert very long integers
        raise ValueError(TOO_LONG) from None


def _cleaned(value: Any, toml: bool, depth: int = 1) -> Any:
    """``value``, if it is nested no deeper than it may be and its scalars can be used."""
    if depth > MAX_DEPTH:
        raise ValueError(TOO_DEEP)
    if isinstance(value, dict):
        return {_cleaned(key, False, depth): _cleaned(item, toml, depth + 1) for key, item in value.items()}
    if isinstance(value, list):
        return [_cleaned(item, toml, depth + 1) for item in value]
    if isinstance(value, str) and not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise ValueError(f"it has text that is not Unicode: {value!r:.80}.") from None
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise ValueError(TOO_LONG)
    if isinstance(value, float) and not (toml or math.isfinite(value)):
        raise ValueError(f"it has a number that is not finite: {value}.")
    return None if toml and value == "none" else value

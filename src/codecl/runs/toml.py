"""The values of recipes as TOML, which has no word for None: the text "none" stands for it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from codecl.errors import UsageError
from codecl.runs.untrusted import parse_toml


def from_toml(text: str) -> dict[str, Any]:
    """The table of a TOML document; ``ValueError`` if it is none."""
    table: dict[str, Any] = _with_none(parse_toml(text))
    return table


def to_toml(value: Any) -> str:
    """A value of a recipe as TOML.

    >>> to_toml({"a": [1, None]})
    '{ a = [1, "none"] }'
    """
    if value is None:
        return '"none"'  # TOML has no word for it
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return _quoted(value)
    if isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{toml_key(key)} = {to_toml(item)}" for key, item in value.items()) + " }"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(to_toml(item) for item in value) + "]"
    raise UsageError(f"{value!r} cannot be written to a recipe.")


def toml_key(name: str) -> str:
    """The name of a field as TOML."""
    bare = name.isascii() and name.replace("_", "").replace("-", "").isalnum()
    return name if bare else _quoted(name)


def _quoted(text: str) -> str:
    """A basic string of TOML: JSON's escapes, but for surrogate pairs and the one control character JSON leaves."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _with_none(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _with_none(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_with_none(item) for item in value]
    return None if value == "none" else value

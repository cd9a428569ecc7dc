"""What a user asked for that cannot be."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class UsageError(ValueError):
    """The command line prints it in one line and exits with 2."""


def unknown_name(what: str, name: str, known: Iterable[str]) -> str:
    """«There is no … 'x'», with the nearest name that does exist."""
    known = list(known)
    near = difflib.get_close_matches(name, known, n=1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    return f"there is no {what} {name!r}.{hint} Known: {', '.join(known)}."

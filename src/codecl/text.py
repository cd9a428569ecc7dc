"""Words that every part of the project says in the same way."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def unknown_name(what: str, name: object, known: Iterable[object]) -> str:
    """«There is no … 'x'», with the nearest name that does exist and the first of those that do."""
    known = list(known)
    near = difflib.get_close_matches(str(name), [str(k) for k in known], n=1)
    listed = ", ".join(repr(k) for k in known[:12]) + (", …" if len(known) > 12 else "")
    hint = f" Did you mean {near[0]!r}?" if near else ""
    return f"there is no {what} {name!r}.{hint} Known: {listed or 'none'}."

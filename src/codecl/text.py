"""How the project puts things into words: unknown names, durations, sizes, aligned tables."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

CONTROL = re.compile("[\\x00-\\x09\\x0b-\\x1f\\x7f-\\x9f\\u2028\\u2029\\u202a-\\u202e\\u2066-\\u2069]")
"""Control characters, and those that turn the direction of writing, but for the end of a line."""
MARKDOWN_ESCAPES = str.maketrans({"<": "&lt;", "@": "&#64;", **{c: f"\\{c}" for c in "\\|*`[]!"}})
MOST_NAMES = 60
"""Those of all methods and hyperparameters, and not those of a whole network."""


def nearest(name: object, known: Iterable[object]) -> str:
    """The one of ``known`` that ``name`` may be a slip for; empty if it is like none."""
    names = [str(k) for k in known]
    swapped = [k for k in names if sorted(k) == sorted(str(name))]  # two letters in each other's place
    return next(iter(swapped or difflib.get_close_matches(str(name), names, n=1)), "")


def unknown_name(what: str, name: object, known: Iterable[object]) -> str:
    """The sentence that there is no such name, with the nearest one that exists and those that do.

    >>> unknown_name("method", "fintune", ["gpm", "finetune"])
    "there is no method 'fintune'. Did you mean 'finetune'? Known: 'gpm', 'finetune'."
    """
    known = list(known)
    near, more = nearest(name, known), len(known) - MOST_NAMES
    listed = ", ".join(map(repr, known[:MOST_NAMES])) + f" and {more} more" * (more > 0)
    hint = f" Did you mean {near!r}?" if near else ""
    return f"there is no {what} {name!r}.{hint} Known: {listed or 'none'}."


def printable(text: str) -> str:
    """``text`` without control characters but for the ends of lines: what a name says must not steer a terminal.

    >>> printable("a\\x1b[31mb\\0")
    'a?[31mb?'
    """
    return CONTROL.sub("?", text)


def one_line(text: str) -> str:
    """The same in one line."""
    return printable(text).replace("\n", "?")


def markdown_text(text: str) -> str:
    """``text`` as it is, without markup, links, pictures or mentions.

    >>> markdown_text("![a](https://b)|<c>")
    '\\\\!\\\\[a\\\\](https&#58;//b)\\\\|&lt;c>'
    """
    return one_line(text).translate(MARKDOWN_ESCAPES).replace("://", "&#58;//").replace("www.", "www&#46;")


def installing(extra: str) -> str:
    """How to install an extra, from the package or from a checkout.

    >>> installing("report")
    "pip install 'codecl[report]' (in a checkout: pip install '.[report]')"
    """
    return f"pip install 'codecl[{extra}]' (in a checkout: pip install '.[{extra}]')"


def duration(seconds: float) -> str:
    """Seconds in two units.

    >>> duration(75)
    '1m15s'
    """
    whole = round(seconds)
    hours, minutes = divmod(whole // 60, 60)
    if hours:
        return f"{hours}h{minutes:02d}m"
    return f"{minutes}m{whole % 60:02d}s" if minutes else f"{whole}s"


def size(count: int) -> str:
    """Bytes with three digits.

    >>> size(176_768)
    '177 kB'
    """
    value = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if value < 999.5:  # from there on three digits round to 1000, which is 1 of the next unit
            return f"{value:.3g} {unit}"
        value /= 1000
    return f"{value:.3g} TB" if value < 999.5 else f"{value:.0f} TB"


def table(head: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[bool] | None = None) -> str:
    """Aligned columns under a ruled head.

    Args:
        head: The names of the columns.
        rows: A text for every column.
        right: Which columns are aligned to the right; by default all but the first.

    >>> print(table(["method", "ACC"], [["gpm", "9.5"], ["code-cl", "72.4"]]))
    method    ACC
    -------  ----
    gpm       9.5
    code-cl  72.4
    """
    head, *rows = pad([head, *rows], right or [False, *[True] * (len(head) - 1)])
    rule = ["-" * len(cell) for cell in head]
    return "\n".join("  ".join(line).rstrip() for line in (head, rule, *rows))


def pad(lines: Sequence[Sequence[str]], right: Sequence[bool]) -> list[list[str]]:
    """The cells of ``lines``, every column as wide as its widest cell; ``right`` says where blanks come first."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    sides = [str.rjust if is_right else str.ljust for is_right in right]
    return [[side(cell, width) for side, cell, width in zip(sides, line, widths, strict=True)] for line in lines]


def shown(value: Any) -> str:
    """A value of a recipe as a person types it.

    >>> shown(4.0), shown(None), shown([1, 0.5])
    ('4', 'none', '[1, 0.5]')
    """
    value = plain(value)
    return value if isinstance(value, str) else "none" if value is None else json.dumps(value)


def plain(value: Any) -> Any:
    """``value`` with whole numbers as integers and sequences as lists."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, (list, tuple)) else value


def in_a_line(error: BaseException) -> str:
    """The type of an error of foreign code, and the first line of what it says.

    >>> in_a_line(KeyError("x"))
    "KeyError: 'x'"
    """
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]:.160}".rstrip(": .")

"""Names of runs and files: safe, unique and short."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from string import digits

SEED = re.compile(r"seed\d+")
"""What ``codecl sweep`` calls a run, below a directory named by the values it varies."""


def slug(text: str) -> str:
    """``text`` as a file name."""
    return re.sub(r"[^\w.=+-]+", "-", text, flags=re.ASCII).strip("-.") or "run"


def unique(name: str, taken: set[str]) -> str:
    """``name``, with a number if it is ``taken``, also in other letter case: some file systems do not tell a from A."""
    number, free = 1, name
    while free.lower() in taken:
        number += 1
        free = f"{name}-{number}"
    taken.add(free.lower())
    return free


def short_names(paths: Mapping[str, PurePath]) -> dict[str, str]:
    """By name, the path of each run below the directory that all share; in a sweep, with the values it varies."""
    shared = PurePath(os.path.commonpath([path.parent for path in paths.values()]))
    if any(path.parent == shared and SEED.fullmatch(path.name) for path in paths.values()):
        shared = shared.parent
    return {name: readable(path.relative_to(shared)) for name, path in paths.items()}


def readable(path: PurePath) -> str:
    """``path`` as text that can be written in UTF-8."""
    return path.as_posix().encode(errors="replace").decode()


def few(items: Sequence[str]) -> str:
    """At most three of the ``items``."""
    return "; ".join([*items[:3], *["and more"] * (len(items) > 3)])


def braces(names: Sequence[str]) -> str:
    """Several names in short, as a shell takes them: ``runs/gpm-seed{0,1,2}``.

    >>> braces(["runs/gpm-seed0", "runs/gpm-seed1"])
    'runs/gpm-seed{0,1}'
    """
    if len(names) < 2:
        return "".join(names)
    start = _common_start(names).rstrip(digits)
    rest = [name[len(start) :] for name in names]
    end = _common_start([name[::-1] for name in rest])[::-1].lstrip(digits)
    return f"{start}{{{','.join(name.removesuffix(end) for name in rest)}}}{end}"


def _common_start(names: Sequence[str]) -> str:
    return os.path.commonprefix(names)  # noqa: RUF071  letter by letter is what is wanted

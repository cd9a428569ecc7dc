"""One method at several values of its hyperparameters: one at a time over the recipe, or all combinations of them.

A cell is the recipe with a few values changed. It is named by where it departs from the base, so that what several
variations share is run once, and the same values in another sweep find their runs again.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from codecl.errors import UsageError
from codecl.report.table import DEVIATION
from codecl.runs.progress import table
from codecl.runs.recipe import Recipe, parse_change
from codecl.runs.run_many import MEASURES, measured

Tree = dict[str, Any]
Changes = dict[str, Any]
BASE = "base"
TOKEN = r""""(?:\\.|[^"\\])*"|'[^']*'|."""
"""Quoted text, or a character."""
LONGEST = 40
"""Of the characters that a value gives to the name of a directory."""


def parse_variations(texts: Sequence[str]) -> dict[str, list[Any]]:
    """``name=value,value,…`` of every ``--vary``, each value as ``--set`` takes it."""
    variations: dict[str, list[Any]] = {}
    for text in texts:
        name, equals, values = (part.strip() for part in text.partition("="))
        if not equals or not name:
            raise UsageError(f"--vary takes name=value,value,…; got {text!r}.")
        if name in variations:
            raise UsageError(f"--vary {name} is given twice: put all its values into one.")
        pieces = split_values(values)
        if not all(pieces):
            raise UsageError(f"--vary {text} has an empty value.")
        variations[name] = [parse_change(f"{name}={piece}")[1] for piece in pieces]
    if not variations:
        raise UsageError("there is nothing to vary: give --vary name=value,value,… once or more.")
    return variations


def split_values(text: str) -> list[str]:
    """``text`` at its commas, but for those in brackets, braces and quotes."""
    pieces, depth, token = [""], 0, " "
    for token in re.findall(TOKEN, text):
        depth += (token in "[{") - (token in "]}")
        if token == "," and depth == 0:
            pieces.append("")
        else:
            pieces[-1] += token
        if token in "\"'" or depth < 0:
            break
    if depth or token in "\"'":
        raise UsageError(f"{text} has a bracket or a quote without its other half.")
    return [piece.strip() for piece in pieces]


def tables_of(variations: Mapping[str, Sequence[Any]], grid: bool) -> list[list[Changes]]:
    """The rows of every table, as what they change: a table for each hyperparameter, or one of all combinations."""
    if grid:
        return [[dict(zip(variations, values, strict=True)) for values in itertools.product(*variations.values())]]
    return [[{name: value} for value in values] for name, values in variations.items()]


def cell_name(recipe: Recipe, base: Recipe, varied: Sequence[str]) -> str:
    """The directory of a cell: its values where they are not the base's, in names that every file system takes."""
    values, usual = _values(recipe), _values(base)
    return ",".join(f"{name}={_safe(shown(values[name]))}" for name in varied if values[name] != usual[name]) or BASE


def report(rows: Sequence[tuple[str, Changes, Sequence[Tree]]]) -> str:
    """One table: the cell of every row, its values, and the results that it has."""
    values = [[shown(value) for value in changes.values()] for _, changes, _ in rows]
    marks = [" (base)" if cell == BASE else "" for cell, _, _ in rows]
    lines = [
        [first + mark, *others, *measured(results)]
        for (first, *others), mark, (_, _, results) in zip(values, marks, rows, strict=True)
    ]
    deviation = f"\n{DEVIATION}" if any(len(results) > 1 for _, _, results in rows) else ""
    return table([*rows[0][1], *MEASURES], lines) + deviation


def shown(value: Any) -> str:
    """A value as a person types it; 4.0 is 4."""
    plain = _plain(value)
    return plain if isinstance(plain, str) else "none" if plain is None else json.dumps(plain)


def _plain(value: Any) -> Any:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, (list, tuple)) else value


def _safe(text: str) -> str:
    safe = re.sub(r"[^\w.+-]+", "_", text, flags=re.ASCII).strip("_.")
    if safe == text and len(text) <= LONGEST:
        return text
    return f"{safe[:LONGEST]}-{hashlib.sha256(text.encode()).hexdigest()[:6]}"


def _values(recipe: Recipe) -> Tree:
    return {**recipe.training, **recipe.settings, **recipe.data}

"""One method at several values of its hyperparameters: one at a time over the recipe, or all combinations of them.

A cell is the recipe with a few values changed. It is named by where it departs from the base, so that what several
variations share is run once, and the same values in another sweep find their runs again.
"""

from __future__ import annotations

import hashlib
import itertools
import re
from collections.abc import Mapping, Sequence
from typing import Any

from codecl.errors import UsageError
from codecl.runs.recipe import Recipe, flatten, parse_change
from codecl.text import shown

Changes = dict[str, Any]
BASE = "base"
LONGEST = 40
"""The characters of a value in the name of a directory."""


def parse_variations(texts: Sequence[str]) -> dict[str, list[Any]]:
    """``name=value,value,…`` of every ``--vary``: items of a list of TOML, or else each as ``--set`` takes it."""
    variations: dict[str, list[Any]] = {}
    for text in texts:
        name, equals, values = (part.strip() for part in text.partition("="))
        if not equals or not name:
            raise UsageError(f"--vary takes name=value,value,…; got {text!r}.")
        if name in variations:
            raise UsageError(f"--vary {name} is given twice: put all its values into one.")
        _, items = parse_change(f"{name}=[{values}]")
        if not isinstance(items, list):  # there are plain words
            if set(values) & set("[]{}\"'"):
                raise UsageError(f"--vary {text}: give all values as TOML, words and other text in quotes.")
            items = [parse_change(f"{name}={piece}")[1] for piece in values.split(",")]
        if not items or "" in items:
            raise UsageError(f"--vary {text} has an empty value.")
        variations[name] = items
    if not variations:
        raise UsageError("there is nothing to vary: give --vary name=value,value,… once or more.")
    return variations


def variation_tables(variations: Mapping[str, Sequence[Any]], grid: bool) -> list[list[Changes]]:
    """The changes in the rows of every table: a table for each hyperparameter, or one of all combinations."""
    if grid:
        return [[dict(zip(variations, values, strict=True)) for values in itertools.product(*variations.values())]]
    return [[{name: value} for value in values] for name, values in variations.items()]


def cell_name(recipe: Recipe, base: Recipe, varied: Sequence[str]) -> str:
    """The directory of a cell: its values where they are not the base's, in names that every file system takes."""
    values, usual = _values(recipe), _values(base)
    return ",".join(f"{name}={_safe(shown(values[name]))}" for name in varied if values[name] != usual[name]) or BASE


def _safe(text: str) -> str:
    safe = re.sub(r"[^\w.+-]+", "_", text, flags=re.ASCII).strip("_.")
    if safe == text and len(text) <= LONGEST:
        return text
    return f"{safe[:LONGEST]}-{hashlib.sha256(text.encode()).hexdigest()[:6]}"


def _values(recipe: Recipe) -> dict[str, Any]:
    return {**recipe.training, **recipe.settings, **recipe.data, **flatten(vars(recipe))}

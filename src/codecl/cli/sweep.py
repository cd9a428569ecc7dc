"""``codecl sweep``: one method at several values of its hyperparameters."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from codecl.cli.options import add_command, default_out, make_recipe_for, parse_changes
from codecl.cli.run_many import parse_seeds, run_and_show, run_many_options
from codecl.cli.search import search
from codecl.errors import UsageError
from codecl.report.comparison import compare_cells
from codecl.runs.recipe import Recipe
from codecl.runs.records import Result
from codecl.runs.sweep import cell_name, parse_variations, variation_tables


def add(commands: Any) -> None:
    parser = add_command(
        commands, "sweep", sweep, "vary hyperparameters of a method, one at a time or all combinations",
        """
  codecl sweep --vary aperture=1,2,4,8,16 --vary free_dims=0,20,40
  codecl sweep --vary aperture=2,8 --vary overlap=0.2,0.5 --grid --jobs 2 --out runs/g
  codecl sweep --method gpm --vary threshold=0.95,0.97 --set lr=0.05 --seeds 0,1,2
  codecl sweep --search aperture=1..20 --search lr=1e-3..0.2 --trials 40""",
    )  # fmt: skip
    parser.add_argument("--method", default="code-cl", help="a method name, or package.module:Class (default code-cl)")
    parser.add_argument(
        "--vary", action="append", default=[], metavar="NAME=V,V,…", help="a hyperparameter's values; repeatable"
    )
    parser.add_argument("--grid", action="store_true", help="all combinations, not one hyperparameter at a time")
    parser.add_argument(
        "--search", action="append", default=[], metavar="NAME=LOW..HIGH",
        help="search a range by Optuna, on validation data, in place of --vary; repeatable",
    )  # fmt: skip
    parser.add_argument("--trials", type=int, default=20, help="of --search, on all machines together (default 20)")
    parser.add_argument(
        "--out", type=Path, help="directory of the cells, NAME=VALUE/seedN (default runs/BENCHMARK/METHOD-sweep)"
    )
    run_many_options(parser)


def sweep(options: argparse.Namespace) -> int:
    if options.search:
        return search(options)
    variations, seeds = parse_variations(options.vary), parse_seeds(options)
    if {"epochs", "training.epochs"} & variations.keys() and options.epochs is not None:
        raise UsageError("--vary epochs says how many there are: leave out --epochs.")
    base = make_recipe_for(options, {})
    tables: list[dict[str, dict[str, Any]]] = []  # what every cell changes, by its name
    recipes: dict[str, Recipe] = {}
    for changed in variation_tables(variations, options.grid):
        tables.append({})
        for changes in changed:
            recipe = make_recipe_for(options, {}, parse_changes(options) | changes)
            cell = cell_name(recipe, base, list(variations))
            tables[-1].setdefault(cell, changes)
            recipes |= {f"{cell}/seed{seed}": replace(recipe, seed=seed) for seed in seeds}
    out = options.out or default_out(base) / f"{base.method.replace(':', '.')}-sweep"

    def cell_tables(results: Mapping[str, Result]) -> Iterator[str]:
        for rows in tables:
            found = {cell: [results[run] for s in seeds if (run := f"{cell}/seed{s}") in results] for cell in rows}
            yield compare_cells([(cell, changes, found[cell]) for cell, changes in rows.items()])

    cells = {cell: changes for rows in tables for cell, changes in rows.items()}
    return run_and_show(options, recipes, out, cell_tables, {"cells": cells})

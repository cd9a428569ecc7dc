"""``codecl sweep``: one method at several values of its hyperparameters."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any

from codecl.cli.many import exit_code, run_and_show, seeds_of, several_options
from codecl.cli.options import add_command, changes_of, default_out, recipe_of
from codecl.errors import UsageError
from codecl.runs.progress import print_json
from codecl.runs.recipe import Recipe
from codecl.runs.sweep import cell_name, parse_variations, report, tables_of


def add(commands: Any) -> None:
    parser = add_command(
        commands, "sweep", sweep, "vary hyperparameters of a method, one at a time or all combinations",
        """
  codecl sweep --vary aperture=1,2,4,8,16 --vary free_dims=0,20,40
  codecl sweep --vary aperture=2,8 --vary overlap=0.2,0.5 --grid --jobs 2 --out runs/g
  codecl sweep --method gpm --vary threshold=0.95,0.97 --set lr=0.05 --seeds 0,1,2""",
    )  # fmt: skip
    parser.add_argument("--method", default="code-cl", help="a method name, or package.module:Class (default code-cl)")
    parser.add_argument(
        "--vary", action="append", default=[], metavar="NAME=V,V,…", help="a hyperparameter's values; repeatable"
    )
    parser.add_argument("--grid", action="store_true", help="all combinations, not one hyperparameter at a time")
    parser.add_argument(
        "--out", type=Path, help="directory of the cells, NAME=VALUE/seedN (default runs/BENCHMARK/METHOD-sweep)"
    )
    several_options(parser)


def sweep(options: argparse.Namespace) -> int:
    variations, seeds = parse_variations(options.vary), seeds_of(options)
    if "epochs" in variations and (options.quick or options.epochs is not None):
        raise UsageError("--vary epochs says how many there are: leave out --quick and --epochs.")
    base = recipe_of(options, {})
    tables: list[dict[str, dict[str, Any]]] = []  # what every cell changes, by its name
    recipes: dict[str, Recipe] = {}
    for rows in tables_of(variations, options.grid):
        tables.append({})
        for changes in rows:
            recipe = recipe_of(options, {}, changes_of(options) | changes)
            cell = cell_name(recipe, base, list(variations))
            tables[-1].setdefault(cell, changes)
            recipes |= {f"{cell}/seed{seed}": replace(recipe, seed=seed) for seed in seeds}
    out = options.out or default_out(base) / f"{base.method.replace(':', '.')}-sweep"
    results, failures = run_and_show(options, recipes, out)
    if options.json:
        cells = {cell: changes for of_cell in tables for cell, changes in of_cell.items()}
        ended = {"runs": list(results), "results": list(results.values())}
        print_json({"cells": cells, **ended, "failures": [vars(failure) for failure in failures]})
    else:
        for of_cell in tables:
            found = {
                cell: [results[run] for seed in seeds if (run := f"{cell}/seed{seed}") in results] for cell in of_cell
            }
            print(f"\n{report([(cell, changes, found[cell]) for cell, changes in of_cell.items()])}")
        print(f"\nrecipes, logs and results: {out}/{{{','.join(recipes)}}}")
    return exit_code(failures)

"""``codecl compare``: several methods with several seeds, and a table of them."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from codecl.cli.options import add_command, default_out, make_recipe_for, parse_changes
from codecl.cli.run_many import exit_code, parse_seeds, run_and_show, run_many_options
from codecl.errors import UsageError
from codecl.report.comparison import compare_methods
from codecl.runs.plugins import find_method
from codecl.runs.progress import print_json
from codecl.runs.recipe import setting_defaults
from codecl.runs.run_many import run_name


def add(commands: Any) -> None:
    parser = add_command(
        commands, "compare", compare, "run several methods with several seeds, and compare them",
        """
  codecl compare                                    fine-tuning, GPM and CODE-CL on the embedded benchmark
  codecl compare --methods code-cl,finetune --seeds 0,1,2 --jobs 2 --out runs/c
  codecl compare --methods code-cl,mypackage.mymodule:MyMethod""",
    )  # fmt: skip
    parser.add_argument("--methods", default="finetune,gpm,code-cl", help="names with commas (default %(default)s)")
    parser.add_argument(
        "--baseline", default="gpm", help="the method that forward transfer is measured against (default gpm)"
    )
    parser.add_argument("--out", type=Path, help="directory of the run directories (default runs/BENCHMARK)")
    run_many_options(parser)


def compare(options: argparse.Namespace) -> int:
    methods = list(dict.fromkeys(name.strip() for name in options.methods.split(",") if name.strip()))
    if not methods:
        raise UsageError(f"--methods takes names with commas; got {options.methods!r}.")
    every = [
        make_recipe_for(options, {}, changes, method=method, seed=seed)
        for method, changes in changes_by_method(parse_changes(options), methods).items()
        for seed in parse_seeds(options)
    ]
    out = options.out or default_out(every[0])
    recipes = {run_name(recipe): recipe for recipe in every}
    results, failures = run_and_show(options, recipes, out)
    if options.json:
        ended = [result.to_fields() for result in results.values()]
        print_json({"results": ended, "failures": [vars(failure) for failure in failures]})
    else:
        if results:
            print(f"\n{compare_methods(list(results.values()), options.baseline)}")
        print(f"\nrecipes, logs and results: {out}/{{{','.join(recipes)}}}")
    return exit_code(failures)


def changes_by_method(changes: dict[str, Any], methods: Sequence[str]) -> dict[str, dict[str, Any]]:
    """A setting that only some of the methods have goes to these; what none of them has is left for all to refuse."""
    settings = {method: setting_defaults(find_method(method)) for method in methods}
    partial = {name for name in changes if any(name in has for has in settings.values())}
    return {m: {k: v for k, v in changes.items() if k not in partial or k in settings[m]} for m in methods}

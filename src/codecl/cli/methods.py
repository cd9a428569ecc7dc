"""``codecl methods``: the methods, and what the hyperparameters of one mean."""

from __future__ import annotations

import argparse
import inspect
import re
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from codecl.benchmarks.registry import BENCHMARKS
from codecl.cli.options import add_command
from codecl.errors import UsageError
from codecl.methods import METHODS, Method
from codecl.runs.plugins import find_method
from codecl.runs.recipe import PRESETS, make_recipe, setting_defaults
from codecl.text import shown, unknown_name

IN_DOCSTRING = re.compile(r"^ {0,4}(\w+)(?:: | {2,})(\S.*(?:\n {8,}\S.*)*)$", re.MULTILINE)
"""A hyperparameter in the docstring of a method: in a table, or among ``Args``, with the lines that go on."""


def add(commands: Any) -> None:
    parser = add_command(
        commands, "methods", list_methods, "list the methods, or say what the hyperparameters of one mean",
        """
  codecl methods
  codecl methods code-cl                            each hyperparameter: meaning, default, value per benchmark
  codecl methods code-cl --preset official""",
    )  # fmt: skip
    parser.add_argument("names", nargs="*", metavar="METHOD", help="a method name, or package.module:Class")
    parser.add_argument("--preset", default="paper", help="which values per benchmark (default %(default)s)")


def list_methods(options: argparse.Namespace) -> int:
    if options.names:
        print("\n\n".join(describe(name, options.preset) for name in options.names))
        return 0
    for name, method in METHODS.items():
        settings = ", ".join(f"{key}={value}" for key, value in setting_defaults(method).items())
        print(f"{name}\n    {_summary(method)}\n    {settings}")
    return 0


def describe(name: str, preset: str) -> str:
    """A page on a method: of each hyperparameter what it means, its default, and where a recipe has another value."""
    method = find_method(name)
    defaults, meanings = setting_defaults(method), meanings_of(method)
    if preset not in PRESETS:
        raise UsageError(unknown_name("preset", preset, PRESETS))
    recipes: dict[str, Mapping[str, Any]] = {}
    for benchmark in BENCHMARKS:
        with suppress(UsageError):  # it has no such preset
            recipes[benchmark] = make_recipe({"method": name, "benchmark": benchmark, "preset": preset}, {}).settings
    lines = [f"{name}: {_summary(method)}"]
    for setting, default in defaults.items():
        lines += [f"  {setting} = {shown(default)}", f"      {meanings.get(setting, 'not described')}"]
        places: dict[str, list[str]] = {}
        for benchmark, settings in recipes.items():
            if shown(settings[setting]) != shown(default):
                places.setdefault(shown(settings[setting]), []).append(benchmark)
        if places:
            values = [f"{value} on {', '.join(benchmarks)}" for value, benchmarks in places.items()]
            lines.append(f"      {preset}: {'; '.join(values)}")
    return "\n".join(lines)


def meanings_of(method: type[Method]) -> dict[str, str]:
    """What docstrings say of each hyperparameter, those of the class itself before those of its bases."""
    found: dict[str, str] = {}
    for cls in method.__mro__:
        told = inspect.cleandoc(cls.__doc__ or "") if issubclass(cls, Method) else ""  # Python 3.13 has it clean
        for name, text in IN_DOCSTRING.findall(told):
            found.setdefault(name, " ".join(text.split()).replace("``", ""))
    return found


def _summary(method: type[Method]) -> str:
    label = f" ({method.label})" if method.label else ""
    return (method.__doc__ or "").strip().partition("\n")[0] + label

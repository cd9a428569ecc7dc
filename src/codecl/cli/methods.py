"""``codecl methods``: the methods and their hyperparameters."""

from __future__ import annotations

import argparse
from typing import Any

from codecl.cli.options import add_command
from codecl.methods import METHODS
from codecl.runs.recipe import setting_defaults


def add(commands: Any) -> None:
    add_command(commands, "methods", list_methods, "list the methods and their hyperparameters")


def list_methods(_: argparse.Namespace) -> int:
    for name, method in METHODS.items():
        summary = (method.__doc__ or "").strip().splitlines()[0]
        settings = ", ".join(f"{key}={value}" for key, value in setting_defaults(method).items())
        label = f" ({method.label})" if method.label else ""
        print(f"{name}\n    {summary}{label}\n    {settings}")
    return 0

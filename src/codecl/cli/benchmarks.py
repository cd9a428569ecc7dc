"""``codecl benchmarks``: the benchmarks and what may be chosen about their data."""

from __future__ import annotations

import argparse
from typing import Any

from codecl.benchmarks.registry import BENCHMARKS
from codecl.cli.options import add_command


def add(commands: Any) -> None:
    add_command(commands, "benchmarks", list_benchmarks, "list the benchmarks")


def list_benchmarks(_: argparse.Namespace) -> int:
    for name, benchmark in BENCHMARKS.items():
        print(f"{name}\n    {benchmark.summary}, {benchmark.tasks} tasks")
        for switch, choices in benchmark.switches.items():
            print(f"    --set {switch}={'|'.join(choices)}")
    return 0

"""``codecl inspect``: what a run remembers."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from codecl.cli.options import add_command
from codecl.errors import UsageError
from codecl.report.inspection import inspect
from codecl.runs.progress import print_json
from codecl.text import printable


def add(commands: Any) -> None:
    parser = add_command(
        commands, "inspect", inspect_run, "print how far a run came and what it remembers, layer by layer",
        """
  codecl inspect runs/permuted-digits/code-cl-seed0
  codecl inspect runs/a --task 3                    the layers after the third task only
  codecl inspect runs/a --json                      with the spectra""",
    )  # fmt: skip
    parser.add_argument("run", type=Path, metavar="RUN", help="a run directory")
    parser.add_argument("--task", type=int, metavar="N", help="the layers after the N-th task only")
    parser.add_argument("--json", action="store_true", help="everything as a line of JSON")


def inspect_run(options: argparse.Namespace) -> int:
    found = inspect(options.run)
    if options.task is not None and found.joint:
        raise UsageError(f"{options.run} learns its tasks at once: there are no layers after one of them. Omit --task.")
    learned = [task.task + 1 for task in found.tasks]
    if options.task is not None and options.task not in learned:
        so_far = f"the tasks 1 to {learned[-1]}" if learned else "no task yet"
        raise UsageError(f"{options.run} has learned {so_far}; there is no task {options.task} to inspect.")
    if options.json:
        print_json(found.to_fields())
    else:
        print(printable(found.to_text(None if options.task is None else options.task - 1)))
    return 0

"""``codecl memory``: what each projection method stores for one layer."""

from __future__ import annotations

import argparse
from typing import Any

from codecl.cli.options import add_command
from codecl.errors import UsageError
from codecl.report.footprint import FOOTPRINTS, Layer
from codecl.text import size, table

OPTIONS = (
    ("N", "inputs", 1024, "of the layer"),
    ("M", "outputs", 2048, "of the layer"),
    ("T", "tasks", 10, "learned"),
    ("B", "directions", 80, "that each task adds"),
    ("K", "free", 80, "directions that CODE-CL frees, or that a task has of its own"),
)


def add(commands: Any) -> None:
    summary = "print what each projection method stores for one fully connected layer"
    parser = add_command(commands, "memory", list_memory, summary)
    for letter, name, default, what in OPTIONS:
        parser.add_argument(f"--{name}", type=int, default=default, metavar=letter, help=f"{what} (default {default})")


def list_memory(options: argparse.Namespace) -> int:
    """The memory table of the paper for one layer: its orders of growth, our formulas, and their bytes."""
    layer = Layer(*(getattr(options, name) for _, name, _, _ in OPTIONS))
    for name in ("N", "M", "T", "B"):
        if getattr(layer, name) < 1:
            raise UsageError(f"{name} must be 1 or more; got {getattr(layer, name)}.")
    for name in ("B", "K"):
        if not 0 <= getattr(layer, name) <= layer.N:
            raise UsageError(f"{name} counts directions of N = {layer.N} inputs; got {getattr(layer, name)}.")
    rows = [[name, f.paper or "–", f.formula, size(f.bytes(layer))] for name, f in FOOTPRINTS.items()]
    print(f"One layer: N = {layer.N} inputs, M = {layer.M} outputs, T = {layer.T} tasks, B = {layer.B}, K = {layer.K}")
    print(table(["method", "paper", "bytes here", "for this layer"], rows))
    print(f"r = {layer.r} directions in memory, w = {layer.narrow} bytes for a number of the model")
    return 0

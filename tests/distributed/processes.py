"""Two processes that learn together, as torchrun starts them."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

ROOT = Path(__file__).parents[2]
States = list[dict[str, dict[str, Any]]]


def on_two(module: str, cases: Mapping[str, dict[str, Any]], out: Path) -> States:
    """For each of two processes that run ``python -m module``, what it saved of every case."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    variables = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2", "OMP_NUM_THREADS": "1"}
    variables |= {"PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
    command = [sys.executable, "-m", module, json.dumps(list(cases.values())), str(out)]
    workers = [
        subprocess.Popen(command, env=os.environ | variables | {"RANK": rank}, stderr=subprocess.PIPE, text=True)
        for rank in "01"
    ]
    errors = [process.communicate(timeout=300)[1] for process in workers]
    assert [process.returncode for process in workers] == [0, 0], "\n".join(errors)
    return [dict(zip(cases, torch.load(f"{out}.{rank}", weights_only=True), strict=True)) for rank in "01"]


def tensors(tree: Any, place: str = "") -> Iterator[tuple[str, Tensor]]:
    """All tensors in nested containers, with their places."""
    if isinstance(tree, Tensor):
        yield place, tree
    elif isinstance(tree, Mapping):
        for key, value in tree.items():
            yield from tensors(value, f"{place}.{key}")
    elif isinstance(tree, (list, tuple)):
        for i, value in enumerate(tree):
            yield from tensors(value, f"{place}.{i}")

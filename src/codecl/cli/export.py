"""``codecl export``: the trained network of a run as plain files."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from codecl.cli.options import add_command
from codecl.errors import UsageError
from codecl.runs.export import open_run, write_hub_folder, write_network


def add(commands: Any) -> None:
    parser = add_command(
        commands, "export", export, "write the network that a run trained, for use without codecl",
        """
  codecl export runs/a --task 3 --out model.safetensors     its weights for the third task
  codecl export runs/a --task 3 --out model.pt2             the whole program, by torch.export
  codecl export runs/a --task 3 --hub-folder hub            weights, program, recipe and a model card""",
    )  # fmt: skip
    parser.add_argument("run", type=Path, metavar="RUN", help="a run directory")
    parser.add_argument("--task", type=int, metavar="N", help="the task it is for (default the last)")
    parser.add_argument("--out", type=Path, metavar="FILE", help="a file that ends in .safetensors or .pt2")
    parser.add_argument("--hub-folder", type=Path, metavar="DIR", help="a folder to upload to a hub of models")
    parser.add_argument("--trust", action="store_true", help="run the code that the recipe of the run names")


def export(options: argparse.Namespace) -> int:
    if options.out is None and options.hub_folder is None:
        raise UsageError("say where to write: --out FILE or --hub-folder DIR.")
    run = open_run(options.run, options.trust)
    task = len(run.names) if options.task is None else options.task
    if options.out is not None:
        write_network(run, task, options.out)
        print(options.out)
    if options.hub_folder is not None:
        print(f"{options.hub_folder}: {', '.join(write_hub_folder(run, task, options.hub_folder))}")
    return 0

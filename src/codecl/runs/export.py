"""The network that a run trained: loaded with its method, or written as plain files for use without codecl."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

import codecl
from codecl.errors import UsageError, refusing
from codecl.files import write_atomically
from codecl.methods import Method
from codecl.networks.multihead import MultiHead
from codecl.runs.recipe import Recipe
from codecl.runs.records import RECIPE, Result
from codecl.runs.run import make_method
from codecl.runs.rundir import FINAL, RunDirectory
from codecl.runs.typed import Whole, check, keys
from codecl.text import installing, markdown_text
from codecl.training import checkpoint
from codecl.training.stream import Stream, Task, Tensors

FINAL_STATE = keys(model=dict, method=dict, example=Tensor, tasks=list[dict[str, Any]])
OF_TASK = keys(name=str, classes=Whole)
WEIGHTS, PROGRAM, CARD = "model.safetensors", "model.pt2", "README.md"


class Loaded(NamedTuple):
    """A trained network and the method that taught it."""

    model: nn.Module
    method: Method


def load(run: str | os.PathLike[str], trust: bool = False) -> Loaded:
    """The network that a finished run trained, with its method: ready for ``with method.task(t)``. No data are needed.

    Args:
        run: A run directory.
        trust: Whether code that its recipe names (``package.module:Class``) may be imported.

    Returns:
        The model, in evaluation mode on the CPU, and the method; tasks are counted from 0.
    """
    return open_run(Path(run), trust).loaded


@dataclass(frozen=True)
class TrainedRun:
    """A finished run with its network; ``example`` is a batch of one input of zeros, as the network takes them."""

    recipe: Recipe
    result: Result
    loaded: Loaded
    names: list[str]
    example: Tensor

    def network(self, task: int) -> nn.Module:
        """The plain network of a task, counted from 1 as the command counts them."""
        if not 1 <= task <= len(self.names):
            raise UsageError(f"the run learned the tasks 1 to {len(self.names)}; there is no task {task} to export.")
        return self.loaded.method.export(task - 1).eval()


def open_run(path: Path, trust: bool = False) -> TrainedRun:
    directory = RunDirectory(path, trust)
    recipe, result = directory.recipe(), directory.result()
    if result is None:
        raise UsageError(f"{path} has no {FINAL}: the run is not finished. To go on: codecl run --resume {path}")
    if not (path / FINAL).exists():
        raise UsageError(
            f"{path} has its result but no {FINAL}: the trained network is gone. To train it again from the beginning: "
            f"codecl run {path / RECIPE} --out {path} --restart"
        )
    with refusing(f"{path / FINAL} cannot be used: ", RuntimeError, KeyError, TypeError, AttributeError):
        final = checkpoint.load(path / FINAL)
        check("it", final, dict)
        FINAL_STATE("", final)
        for task in final["tasks"]:
            OF_TASK("", task)
        alike = Tensors(torch.cat([final["example"]] * 2), torch.zeros(2, dtype=torch.long))
        stream = Stream(recipe.benchmark, [Task(t["name"], t["classes"], alike, alike, alike) for t in final["tasks"]])
        method = make_method(recipe, stream)
        method.model.load_state_dict(final["model"])
        method.load_state_dict(final["method"])
    return TrainedRun(
        recipe, result, Loaded(method.model.eval(), method), [t["name"] for t in final["tasks"]], final["example"]
    )


def write_network(run: TrainedRun, task: int, out: Path) -> None:
    """Write the network of ``task``: its weights to ``….safetensors``, or the whole program to ``….pt2``."""
    writers: dict[str, Callable[[TrainedRun, int, Path], None]] = {".safetensors": _weights, ".pt2": _program}
    if out.suffix not in writers:
        raise UsageError(f"--out must end in {' or '.join(writers)}; got {out}.")
    if not out.parent.is_dir():
        raise UsageError(f"there is no directory {out.parent} to write {out.name} to.")
    writers[out.suffix](run, task, out)


def write_hub_folder(run: TrainedRun, task: int, folder: Path) -> list[str]:
    """Weights, the program where it can be traced, the recipe and a model card, as a hub of models takes them."""
    if folder.exists() and any(folder.iterdir()):
        raise UsageError(f"{folder} is not empty: choose another --hub-folder.")
    folder.mkdir(parents=True, exist_ok=True)
    write_network(run, task, folder / WEIGHTS)
    with contextlib.suppress(UsageError):
        write_network(run, task, folder / PROGRAM)
    write_atomically(folder / "recipe.toml", run.recipe.to_toml())
    write_atomically(folder / "result.json", run.result.to_json())
    write_atomically(folder / CARD, model_card(run, task, (folder / PROGRAM).exists()))
    return sorted(file.name for file in folder.iterdir())


def _weights(run: TrainedRun, task: int, out: Path) -> None:
    try:
        safetensors = importlib.import_module("safetensors.torch")
    except ImportError:
        advice = f"{installing('export')}. A .pt2 needs none."
        raise UsageError(f"writing .safetensors needs the package safetensors: {advice}") from None
    values = {name: value.detach().clone().contiguous() for name, value in run.network(task).state_dict().items()}
    about = {"format": "pt", "codecl": codecl.__version__, "method": run.recipe.method, "task": str(task)}
    write_atomically(out, safetensors.save(values, about))


def _program(run: TrainedRun, task: int, out: Path) -> None:
    network = run.network(task)
    two = torch.cat([run.example] * 2)  # a batch of one would be taken for the only size there is
    try:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            program = torch.export.export(network, (two,), dynamic_shapes=({0: torch.export.Dim("batch")},))
    except Exception as error:  # whatever the tracer cannot follow
        raise UsageError(
            f"torch.export cannot trace this network ({type(error).__name__}). Write its weights: --out {WEIGHTS}"
        ) from error
    write_atomically(out, lambda file: torch.export.save(program, file))


def model_card(run: TrainedRun, task: int, has_program: bool) -> str:
    """The card of a model in Markdown, with the front matter that hubs read."""
    recipe, result = run.recipe, run.result
    accuracy = result.accuracy[-1][task - 1]
    bwt = "" if result.bwt is None else f" and BWT {result.bwt:.2f} %"
    versions = [markdown_text(str(result.versions.get(name, "?"))) for name in ("codecl", "torch")]
    shape = json.dumps(list(run.example.shape[1:]))
    head = f"  # for a network that is told its head: select({task - 1})" * isinstance(run.loaded.model, MultiHead)
    use = (
        f'network = torch.export.load("{PROGRAM}").module()\ny = network(torch.zeros(8, *{shape}))'
        if has_program
        else f'from safetensors.torch import load_file\n\nweights = load_file("{WEIGHTS}"){head}'
    )
    return f"""---
library_name: codecl
tags: [continual-learning, gradient-projection, {json.dumps(recipe.method)}]
datasets: [{json.dumps(recipe.benchmark)}]
---

# {markdown_text(recipe.benchmark)}, task {task} of {len(run.names)}: {markdown_text(run.names[task - 1])}

The network for one task of a stream that was learned task after task with {markdown_text(result.title)}
(codecl {versions[0]}, torch {versions[1]}, seed {recipe.seed}).

- Test accuracy on this task after all {len(run.names)} tasks: {accuracy:.2f} %.
- Over all tasks: ACC {result.acc:.2f} %{bwt}.
- Inputs have the shape {shape}, prepared as in training. The task must be known when the network is used.

```python
import torch

{use}
```

`recipe.toml` runs it again: `codecl run recipe.toml`.
"""

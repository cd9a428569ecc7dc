"""Methods × seeds, several at a time, each run in a process and a directory of its own.

What is finished stays; the same comparison again goes on where it stopped, and a run that fails does not take the
others with it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from codecl.experiments.progress import duration, size, table
from codecl.experiments.recipe import Recipe
from codecl.experiments.registry import title
from codecl.experiments.run import make_trainer
from codecl.experiments.rundir import RunDirectory
from codecl.experiments.usage import UsageError
from codecl.training import metrics

Tree = dict[str, Any]


@dataclass(frozen=True)
class Failure:
    """A run that ended without a result, and its last words."""

    name: str
    words: str


def run_name(recipe: Recipe) -> str:
    return f"{recipe.method.replace(':', '.')}-seed{recipe.seed}"


def run_all(
    recipes: Sequence[Recipe], out: Path, jobs: int, on_event: Callable[[str, Tree], None], root: Path = Path("data")
) -> tuple[list[Tree], list[Failure]]:
    """Results and failures of all ``recipes``, ``jobs`` at a time."""
    for recipe in recipes:  # what cannot be is refused before anything is written
        RunDirectory(out / run_name(recipe)).check(recipe)
    for recipe in {recipe.method: recipe for recipe in recipes}.values():
        make_trainer(recipe, root)
    for recipe in recipes:
        RunDirectory(out / run_name(recipe)).open_for(recipe)
    children: list[subprocess.Popen[str]] = []
    stopping = threading.Event()

    def one(recipe: Recipe) -> Tree | Failure:
        name = run_name(recipe)
        directory = RunDirectory(out / name)
        try:
            if (result := directory.result()) is not None:
                return result
            if stopping.is_set():
                return Failure(name, "not begun")
            words = _run_child(directory.path, recipe.threads, root, children, lambda event: on_event(name, event))
            result = directory.result()
        except UsageError as error:  # a damaged result
            return Failure(name, str(error))
        return result if result is not None else Failure(name, words)

    with ThreadPoolExecutor(jobs) as pool:
        futures = [pool.submit(one, recipe) for recipe in recipes]
        try:
            ended = [future.result() for future in futures]
        except BaseException:  # Ctrl-C, or nobody reads our output any more
            stopping.set()
            for child in children:
                child.terminate()
            raise
    return [e for e in ended if not isinstance(e, Failure)], [e for e in ended if isinstance(e, Failure)]


def _run_child(
    path: Path, threads: int, root: Path, children: list[subprocess.Popen[str]], on_event: Callable[[Tree], None]
) -> str:
    """Run ``codecl run --resume`` on a directory, passing on its events; the last line it said in error."""
    command = [sys.executable, "-m", "codecl", "run", "--resume", str(path), "--json", "--data-dir", str(root)]
    environment = os.environ | {"OMP_NUM_THREADS": str(threads)}
    errors: list[str] = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment) as child:
        children.append(child)
        assert child.stdout is not None
        assert child.stderr is not None
        reader = threading.Thread(target=errors.extend, args=(child.stderr,), daemon=True)
        reader.start()
        for line in child.stdout:
            try:
                event = json.loads(line)
            except ValueError:
                continue  # something that a method printed
            if isinstance(event, dict) and "event" in event:
                on_event(event)
        child.wait()
        reader.join()
    said = [line.strip() for line in errors if line.strip()]
    return said[-1] if said else f"ended with exit code {child.returncode} and without a word"


def comparison(results: Sequence[Tree], baseline: str = "gpm") -> str:
    """Mean ± std over seeds for each method, in the order the methods were given."""
    by_method: dict[str, list[Tree]] = {}
    for result in results:
        by_method.setdefault(result["method"], []).append(result)
    base = {r["seed"]: r for r in by_method.get(baseline, []) if not metrics.together(r["accuracy"])}
    rows = []
    for method, of in by_method.items():
        comparable = [r for r in of if r["seed"] in base and not metrics.together(r["accuracy"])]
        transfers = [metrics.fwt(r["accuracy"], base[r["seed"]]["accuracy"]) for r in comparable]
        rows.append(
            [
                title(method),
                _spread([r["acc"] for r in of]),
                _spread([r["bwt"] for r in of if r["bwt"] is not None]),
                *([_spread(transfers)] if base else []),
                str(len(of)),
                duration(sum(sum(r["seconds"].values()) for r in of) / len(of)),
                size(round(sum(r["bytes"]["memory"] for r in of) / len(of))),
            ]
        )
    transfer = [f"FWT % over {baseline}"] if base else []
    head = ["method", "ACC %", "BWT %", *transfer, "seeds", "time a run", "memory"]
    return table(head, rows) + "\n± is the standard deviation over seeds (ddof = 1)."


def _spread(values: Sequence[float]) -> str:
    if not values:
        return "–"
    spread = metrics.mean_std(list(values))
    return f"{spread.mean:.2f}" + (f" ± {spread.std:.2f}" if spread.std is not None else "")

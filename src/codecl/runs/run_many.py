"""Several runs at a time, each in a process and a directory of its own, and the table of methods × seeds.

What is finished stays; the same command again goes on where it stopped, and a run that fails does not take the
others with it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from codecl.benchmarks.registry import title
from codecl.errors import UsageError
from codecl.report.table import DEVIATION, Cell, Column
from codecl.runs.progress import duration, size, table
from codecl.runs.recipe import Recipe
from codecl.runs.run import make_trainer
from codecl.runs.rundir import RunDirectory
from codecl.training import metrics

Tree = dict[str, Any]
MEASURES = ("ACC %", "BWT %", "seeds", "time a run", "memory")
NUMBER = Column("")


@dataclass(frozen=True)
class Failure:
    """A run that ended without a result, and its last words."""

    name: str
    words: str


def run_name(recipe: Recipe) -> str:
    return f"{recipe.method.replace(':', '.')}-seed{recipe.seed}"


def run_all(
    recipes: Mapping[str, Recipe],
    out: Path,
    jobs: int,
    on_event: Callable[[str, Tree], None],
    root: Path = Path("data"),
) -> tuple[dict[str, Tree], list[Failure]]:
    """Results and failures of all ``recipes``, ``jobs`` at a time, each in the directory of its name below ``out``."""
    directories = {name: RunDirectory(out / name) for name in recipes}
    for name, recipe in recipes.items():  # what cannot be is refused before anything is written
        directories[name].check(recipe)
    for recipe in {replace(recipe, seed=0).to_toml(): recipe for recipe in recipes.values()}.values():
        make_trainer(recipe, root)
    for name, recipe in recipes.items():
        directories[name].open_for(recipe)
    children: list[subprocess.Popen[str]] = []
    stopping = threading.Event()

    def one(name: str) -> Tree | Failure:
        directory = directories[name]
        try:
            if (result := directory.result()) is not None:
                return result
            if stopping.is_set():
                return Failure(name, "not begun")
            threads = recipes[name].threads
            words = _run_child(directory.path, threads, root, children, stopping, lambda event: on_event(name, event))
            result = directory.result()
        except UsageError as error:  # a damaged result
            return Failure(name, str(error))
        return result if result is not None else Failure(name, words)

    with ThreadPoolExecutor(jobs) as pool:
        futures = {name: pool.submit(one, name) for name in recipes}
        try:
            ended = {name: future.result() for name, future in futures.items()}
        except BaseException:  # Ctrl-C, or nobody reads our output any more
            stopping.set()
            for child in children:
                child.terminate()
            raise
    results = {name: end for name, end in ended.items() if not isinstance(end, Failure)}
    return results, [end for end in ended.values() if isinstance(end, Failure)]


def _run_child(
    path: Path,
    threads: int,
    root: Path,
    children: list[subprocess.Popen[str]],
    stopping: threading.Event,
    on_event: Callable[[Tree], None],
) -> str:
    """Run ``codecl run --resume`` on a directory, passing on its events; the last line it said in error."""
    command = [sys.executable, "-m", "codecl", "run", "--resume", str(path), "--json", "--data-dir", str(root)]
    environment = os.environ | {"OMP_NUM_THREADS": str(threads)}
    errors: list[str] = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment) as child:
        children.append(child)
        if stopping.is_set():  # since we last looked
            child.terminate()
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
        acc, bwt, *rest = measured(of)
        rows.append([title(method), acc, bwt, *([_spread(transfers)] if base else []), *rest])
    acc, bwt, *rest = MEASURES
    transfer = [f"FWT % over {baseline}"] if base else []
    return table(["method", acc, bwt, *transfer, *rest], rows) + f"\n{DEVIATION}"


def measured(of: Sequence[Tree]) -> list[str]:
    """The cells of ``MEASURES`` for runs that differ in the seed alone."""
    if not of:
        return ["–", "–", "0", "–", "–"]
    return [
        _spread([r["acc"] for r in of]),
        _spread([r["bwt"] for r in of if r["bwt"] is not None]),
        str(len(of)),
        duration(sum(sum(r["seconds"].values()) for r in of) / len(of)),
        size(round(sum(r["bytes"]["memory"] for r in of) / len(of))),
    ]


def _spread(values: Sequence[float]) -> str:
    return NUMBER.text(Cell.mean(values))

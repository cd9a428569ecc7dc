"""Several runs at a time, each in a process and a directory of its own.

What is finished stays; the same command again goes on where it stopped, and a run that fails does not take the
others with it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from codecl.errors import UsageError
from codecl.runs.events import Event, make_event
from codecl.runs.recipe import Recipe
from codecl.runs.records import Result
from codecl.runs.run import refuse_impossible
from codecl.runs.rundir import RunDirectory


@dataclass(frozen=True)
class Failure:
    """A run that ended without a result, and why."""

    name: str
    reason: str


def run_name(recipe: Recipe) -> str:
    return f"{recipe.method.replace(':', '.')}-seed{recipe.seed}"


def run_all(
    recipes: Mapping[str, Recipe],
    out: Path,
    jobs: int,
    on_event: Callable[[str, Event], None],
    root: Path = Path("data"),
) -> tuple[dict[str, Result], list[Failure]]:
    """Results and failures of all ``recipes``, ``jobs`` at a time, each in the directory of its name below ``out``.

    What cannot be is refused before anything is written. ``on_event`` is called with the name of a run and an event.
    """
    directories = {name: RunDirectory(out / name) for name in recipes}
    for name, recipe in recipes.items():
        directories[name].ensure_fits(recipe)
    refuse_impossible(recipes.values(), root)
    for name, recipe in recipes.items():
        directories[name].open_for(recipe)
    children = Children(root)

    def one(name: str) -> Result | Failure:
        directory = directories[name]
        try:
            if (result := directory.result()) is not None:
                return result
            if children.stopping.is_set():
                return Failure(name, "not begun")
            reason = children.run(directory.path, recipes[name].threads, lambda event: on_event(name, event))
            result = directory.result()
        except UsageError as error:  # a damaged result
            return Failure(name, str(error))
        return result if result is not None else Failure(name, reason)

    with ThreadPoolExecutor(jobs) as pool:
        futures = {name: pool.submit(one, name) for name in recipes}
        try:
            ended = {name: future.result() for name, future in futures.items()}
        except BaseException:  # Ctrl-C, or nobody reads our output any more
            children.stop()
            raise
    results = {name: end for name, end in ended.items() if isinstance(end, Result)}
    return results, [end for end in ended.values() if isinstance(end, Failure)]


@dataclass
class Children:
    """The processes of the runs."""

    root: Path
    processes: list[subprocess.Popen[str]] = field(default_factory=list)
    stopping: threading.Event = field(default_factory=threading.Event)

    def run(self, path: Path, threads: int, on_event: Callable[[Event], None]) -> str:
        """Run ``codecl run --resume`` on a directory, passing on its events; the last line of its standard error.

        With ``-P`` no module in the current directory takes the place of one of Python's; a user's own method or
        benchmark is found there all the same (``plugins``).
        """
        command = [sys.executable, "-P", "-m", "codecl", "run", "--resume", str(path), "--json"]
        pipe = subprocess.PIPE
        with subprocess.Popen(
            [*command, "--data-dir", str(self.root)], stdout=pipe, stderr=pipe, text=True,
            env=os.environ | {"OMP_NUM_THREADS": str(threads)},
        ) as child:  # fmt: skip
            self.processes.append(child)
            if self.stopping.is_set():  # since we last looked
                child.terminate()
            assert child.stdout is not None
            assert child.stderr is not None
            errors: list[str] = []
            reader = threading.Thread(target=errors.extend, args=(child.stderr,), daemon=True)
            reader.start()
            for line in child.stdout:
                if (event := _event(line)) is not None:
                    on_event(event)
            child.wait()
            reader.join()
        lines = [line.strip() for line in errors if line.strip()]
        return lines[-1] if lines else f"ended with exit code {child.returncode} and without a word"

    def stop(self) -> None:
        self.stopping.set()
        for process in self.processes:
            process.terminate()


def _event(line: str) -> Event | None:
    """The event in a line of a child; None for its result, and for what a method printed."""
    try:
        return make_event(json.loads(line))
    except ValueError:
        return None

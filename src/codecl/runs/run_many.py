"""Several runs at a time, each in a process and a directory of its own.

What is finished stays; the same command again goes on where it stopped, and a run that fails does not take the
others with it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from codecl.errors import UsageError
from codecl.runs.events import Event, make_event
from codecl.runs.recipe import Recipe
from codecl.runs.records import RESULT, Result
from codecl.runs.run import refuse_impossible
from codecl.runs.rundir import RunDirectory

if TYPE_CHECKING:
    from codecl.runs.launch import Launcher


@dataclass(frozen=True)
class Failure:
    """A run that ended without a result, and why."""

    name: str
    reason: str


def run_name(recipe: Recipe) -> str:
    return f"{recipe.method.replace(':', '.')}-seed{recipe.seed}"


def prepare_all(recipes: Mapping[str, Recipe], out: Path, root: Path) -> dict[str, RunDirectory]:
    """The directories of all ``recipes``, by name below ``out``. What cannot be is refused before any is made."""
    directories = {name: RunDirectory(out / name) for name in recipes}
    for name, recipe in recipes.items():
        directories[name].ensure_fits(recipe)
    refuse_impossible(recipes.values(), root)
    for name, recipe in recipes.items():
        directories[name].open_for(recipe)
    return directories


def run_all(
    recipes: Mapping[str, Recipe],
    out: Path,
    jobs: int,
    on_event: Callable[[str, Event], None],
    root: Path = Path("data"),
    launcher: Launcher | None = None,
    within: AbstractContextManager[None] | None = None,
) -> tuple[dict[str, Result], list[Failure]]:
    """Results and failures of all ``recipes``, ``jobs`` at a time, each in the directory of its name below ``out``.

    What cannot be is refused before anything is written. ``on_event`` is called with the name of a run and an event.
    Runs are carried out by ``launcher``, by default in processes of this machine, and started ``within`` a context.
    """
    directories = prepare_all(recipes, out, root)
    children: Launcher = launcher or Children(root)

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

    missing = {directories[name].path: recipe.threads for name, recipe in recipes.items()}
    missing = {path: threads for path, threads in missing.items() if not (path / RESULT).exists()}
    with within or nullcontext(), ThreadPoolExecutor(jobs) as pool:
        try:
            children.begin(out, missing, jobs)
            futures = {name: pool.submit(one, name) for name in recipes}
            ended = {name: future.result() for name, future in futures.items()}
        except BaseException:  # Ctrl-C, or nobody reads our output any more
            children.stop()
            raise
    results = {name: end for name, end in ended.items() if isinstance(end, Result)}
    return results, [end for end in ended.values() if isinstance(end, Failure)]


def pass_on(accept: Sequence[str], track: Sequence[str]) -> list[str]:
    """The words of a command for what is no part of a recipe."""
    given = {"--accept": accept, "--track": track}
    return [word for option, names in given.items() for name in names for word in (option, name)]


@dataclass
class Children:
    """The processes of the runs."""

    root: Path
    accept: Sequence[str] = ()
    """What may differ from what checkpoints were made with."""
    track: Sequence[str] = ()
    processes: list[subprocess.Popen[str]] = field(default_factory=list)
    stopping: threading.Event = field(default_factory=threading.Event)

    def begin(self, out: Path, runs: Mapping[Path, int], jobs: int) -> None:
        """Each is started by itself."""

    def run(self, path: Path, threads: int, on_event: Callable[[Event], None]) -> str:
        """Run ``codecl run --resume`` on a directory, passing on its events; the last line of its standard error.

        With ``-P`` no module in the current directory takes the place of one of Python's; a user's own method or
        benchmark is found there all the same (``plugins``).
        """
        command = [sys.executable, "-P", "-m", "codecl", "run", "--resume", str(path), "--json", "--trust"]
        command += pass_on(self.accept, self.track)
        with (
            tempfile.TemporaryFile("w+") as errors,
            subprocess.Popen(
                [*command, "--data-dir", str(self.root)], stdout=subprocess.PIPE, stderr=errors, text=True,
                env=os.environ | {"OMP_NUM_THREADS": str(threads)},
            ) as child,
        ):  # fmt: skip
            self.processes.append(child)
            if self.stopping.is_set():  # since we last looked
                child.terminate()
            for line in child.stdout or ():
                with suppress(ValueError):  # its result, or what a method printed
                    on_event(make_event(json.loads(line)))
            child.wait()
            errors.seek(0)
            lines = [line.strip() for line in errors if line.strip()]
        return lines[-1] if lines else f"ended with exit code {child.returncode} and without a word"

    def stop(self) -> None:
        self.stopping.set()
        for process in self.processes:
            process.terminate()

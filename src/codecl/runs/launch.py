"""Where many runs are carried out: processes of this machine, or another place by name (``--on``)."""

from __future__ import annotations

import shlex
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from codecl.errors import UsageError
from codecl.runs.events import Event
from codecl.runs.plugins import is_plugin
from codecl.runs.recipe import read_recipe
from codecl.runs.run_many import Children, pass_on
from codecl.runs.rundir import RunDirectory

LOCAL, RAY = "local", "ray"


class Launcher(Protocol):
    """Carries out runs that are described by their directories, several at a time."""

    stopping: threading.Event
    """Set once the user wants no more of it."""

    def run(self, path: Path, threads: int, on_event: Callable[[Event], None]) -> str:
        """Go on with the run in ``path`` until it ends, passing on its events; why it ended, if it has no result."""
        ...

    def stop(self) -> None:
        """End what is running. What was computed is kept."""
        ...


def find_launcher(place: str, root: Path, accept: Sequence[str] = (), track: Sequence[str] = ()) -> Launcher:
    """The launcher that ``--on`` names; ``root`` is the directory of the data sets, the others are those of a run."""
    if place == LOCAL:
        return Children(root, accept, track)
    if place == RAY or place.startswith(f"{RAY}://"):
        from codecl.runs.launch_ray import RayTasks

        return RayTasks(root, None if place == RAY else place, accept, track)
    raise UsageError(f"--on takes {LOCAL}, {RAY}, or {RAY}://HOST:PORT; got {place!r}.")


def commands(
    directories: Mapping[str, RunDirectory], root: Path, accept: Sequence[str] = (), track: Sequence[str] = ()
) -> list[str]:
    """The command that carries out each run, wherever and whenever it is given; the same again goes on."""
    passed_on = pass_on(accept, track)
    lines = []
    for directory in directories.values():
        stated = read_recipe(directory.recipe_file)
        trust = ["--trust"] * any(is_plugin(str(stated.get(name, ""))) for name in ("method", "benchmark"))
        words = ["codecl", "run", "--resume", str(directory.path), "--data-dir", str(root), "--quiet"]
        lines.append(shlex.join([*words, *trust, *passed_on]))
    return lines

"""Where many runs are carried out: processes of this machine, or another place by name (``--on``)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from codecl.errors import UsageError
from codecl.runs.events import Event
from codecl.runs.plugins import is_plugin
from codecl.runs.recipe import read_recipe
from codecl.runs.records import RECIPE
from codecl.runs.run_many import Children, pass_on

LOCAL, RAY, SLURM = "local", "ray", "slurm"


class Launcher(Protocol):
    """Carries out runs that are described by their directories, several at a time."""

    stopping: threading.Event
    """Set once the user wants no more of it."""

    def begin(self, out: Path, runs: Mapping[Path, int], jobs: int) -> None:
        """Hear of all ``runs`` below ``out`` at once, with their threads; ``jobs`` at a time are to be carried out."""
        ...

    def run(self, path: Path, threads: int, on_event: Callable[[Event], None]) -> str:
        """Go on with the run in ``path`` until it ends, passing on its events; why it ended, if it has no result."""
        ...

    def stop(self) -> None:
        """End what is running. What was computed is kept."""
        ...


def find_launcher(
    place: str,
    root: Path,
    accept: Sequence[str] = (),
    track: Sequence[str] = (),
    tell: Callable[[str], None] = lambda text: None,
) -> Launcher:
    """The launcher that ``--on`` names.

    Args:
        place: What ``--on`` was given.
        root: The directory of the data sets.
        accept: As a run takes it.
        track: As a run takes it.
        tell: Called with a sentence for the user.
    """
    if place == LOCAL:
        return Children(root, accept, track)
    if place == RAY or place.startswith(f"{RAY}://"):
        from codecl.runs.launch_ray import RayTasks

        return RayTasks(root, None if place == RAY else place, accept, track)
    if place == SLURM:
        from codecl.runs.launch_slurm import SlurmArray

        return SlurmArray(root, accept, track, tell)
    raise UsageError(f"--on takes {LOCAL}, {SLURM}, {RAY}, or {RAY}://HOST:PORT; got {place!r}.")


def command(path: Path, root: Path, accept: Sequence[str] = (), track: Sequence[str] = ()) -> list[str]:
    """The arguments of ``codecl`` that carry out the run in ``path``, wherever and whenever; the same again go on."""
    stated = read_recipe(path / RECIPE)
    trust = ["--trust"] * any(is_plugin(str(stated.get(name, ""))) for name in ("method", "benchmark"))
    return ["run", "--resume", str(path), "--data-dir", str(root), "--quiet", *trust, *pass_on(accept, track)]

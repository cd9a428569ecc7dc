"""Runs as tasks of Ray, on this machine or on a cluster.

A task gets as many CPUs as its recipe has threads. Nothing but the path of the run directory travels: all machines see
it on a file system that they share, and its log tells how far it is. A worker that dies is replaced, and the run goes
on from its last epoch, to the same numbers.
"""

from __future__ import annotations

import importlib.util
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import chdir
from pathlib import Path
from typing import Any

from codecl.errors import UsageError
from codecl.runs.events import Event
from codecl.runs.records import LOG
from codecl.runs.run import run
from codecl.runs.rundir import RunDirectory
from codecl.runs.tail import LOOK, Tail
from codecl.runs.trackers import PARENT, belonging_to
from codecl.text import installing

RETRIES = 3
"""How often a run is begun again elsewhere after its worker has died."""


class RayTasks:
    """The runs under way on a cluster: that of ``address``, of ``$RAY_ADDRESS``, or one that is started here."""

    def __init__(self, root: Path, address: str | None, accept: Sequence[str] = (), track: Sequence[str] = ()) -> None:
        if importlib.util.find_spec("ray") is None:
            raise UsageError(f"--on ray needs the package ray: {installing('ray')}.")
        import ray

        self.ray, self.root, self.accept, self.track = ray, root.resolve(), list(accept), list(track)
        self.stopping = threading.Event()
        self._tasks: list[Any] = []
        if not ray.is_initialized():
            try:
                ray.init(address, include_dashboard=None if address else False, log_to_driver=False)
            except (ConnectionError, ValueError) as error:
                raise UsageError(f"there is no Ray cluster at {address or 'the address given'}: {error}") from None
        self._go_on = ray.remote(go_on)

    def begin(self, out: Path, runs: Mapping[Path, int], jobs: int) -> None:
        """Each is handed over by itself."""

    def run(self, path: Path, threads: int, on_event: Callable[[Event], None]) -> str:
        task = self._go_on.options(num_cpus=threads, max_retries=RETRIES, name=f"codecl {path.name}").remote(
            str(path.resolve()), str(self.root), os.getcwd(), self.accept, self.track, os.environ.get(PARENT, "{}")
        )
        self._tasks.append(task)
        log = Tail(path / LOG)
        ready: list[Any] = []
        while not ready:
            ready, _ = self.ray.wait([task], timeout=LOOK)
            for event in log.new():
                on_event(event)
        try:
            return str(self.ray.get(task))
        except self.ray.exceptions.RayError as error:
            return f"Ray: {str(error).strip().splitlines()[-1]}"

    def stop(self) -> None:
        self.stopping.set()
        for task in self._tasks:
            self.ray.cancel(task, force=True)


def go_on(path: str, root: str, folder: str, accept: Sequence[str], track: Sequence[str], parent: str) -> str:
    """Go on with the run in ``path``, in this process: it dies with the worker, and its lock with it.

    The process is left as it was: Ray gives it other runs afterwards.
    """
    here = folder if os.path.isdir(folder) else "."  # where a user's own method may be
    with chdir(here), belonging_to(parent):
        directory = RunDirectory(Path(path), trust=True, accept=accept)
        try:
            run(directory.recipe(), directory, (), Path(root), track)
        except Exception as error:  # what a method raised is said, not retried
            return f"{type(error).__name__}: {error}"
    return ""

"""The state of a method in a file beside the checkpoint of a trainer."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch

from codecl.files import open_regular, write_atomically
from codecl.method import Method
from codecl.method.method import Task

FILE = "codecl.pt"


def save(method: Method, folder: str | os.PathLike[str]) -> None:
    """Write the state into ``folder``: all of it, and what the best epoch of a task restores."""
    state = {"method": method.state_dict(), "best": method.state_dict(within_task=True, replay=False)}
    write_atomically(Path(folder) / FILE, lambda file: torch.save(state, file))


def find(folder: str | os.PathLike[str]) -> Path:
    """The file in ``folder``."""
    path = Path(folder) / FILE
    if not path.is_file():
        raise FileNotFoundError(
            f"{folder} holds no {FILE}, the state of the method: it was saved without the integration of codecl, or "
            "saving it was interrupted. Resume from another checkpoint."
        )
    return path


def load(method: Method, folder: str | os.PathLike[str], part: str = "method") -> None:
    """Load what ``save`` wrote: ``"method"``, all of it, or ``"best"``, what changes while a task is learned."""
    with open_regular(find(folder)) as file:
        state: dict[str, Any] = torch.load(file, map_location="cpu", weights_only=True)
    method.load_state_dict(state[part])


def begin_or_go_on(method: Method, task: Task, loader: Any, resumed: bool) -> None:
    """Begin ``task``, unless a checkpoint that was taken while it was learned has been loaded."""
    if method.is_learning and method.tasks[-1] == task:
        return
    if resumed:
        last = f"of task {method.tasks[-1]!r}" if method.tasks else "from before the first task"
        raise ValueError(f"the checkpoint is {last}, and the trainer goes on with task {task!r}. Resume from another.")
    method.begin_task(task, loader)

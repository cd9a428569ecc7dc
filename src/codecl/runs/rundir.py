"""The run directory: ``recipe.toml`` first, ``log.jsonl`` and checkpoints on the way, ``result.json`` at the end.

It belongs to one recipe for good. The same recipe goes on where it stopped; another is refused with what differs. What
counts is what a recipe says: comments and the order of its lines do not matter.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from codecl.errors import UsageError
from codecl.files import TEMPORARY, AlreadyLocked, locked, sync_directory, write_atomically
from codecl.runs.events import Event, parse_log
from codecl.runs.fields import check_amounts, check_whole
from codecl.runs.recipe import Recipe, make_recipe, read_recipe
from codecl.runs.records import LOG, LOG_LIMIT, RECIPE, RESULT, SECONDS, Result, read_result
from codecl.runs.toml import from_toml
from codecl.runs.untrusted import read_bytes
from codecl.training import checkpoint

TASKS_KEPT = 2
FINAL = "final.ckpt"
EPOCHS = ("epoch.ckpt", "epoch-before.ckpt")
REFUSED = ".refused"
"""What is added to the name of a checkpoint that is no good."""
FIRST = {"lock", RECIPE + TEMPORARY}
"""What a run that was killed in its first moments may leave behind."""


class RunDirectory:
    """One run on disk. Implements the store of the engine.

    >>> RunDirectory(Path("nowhere")).result() is None
    True
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.on_notice: Callable[[str], None] = lambda text: None
        self._opened_for: Recipe | None = None
        self._events = 0

    @property
    def recipe_file(self) -> Path:
        return self.path / RECIPE

    def open_for(self, recipe: Recipe) -> None:
        """Make the directory for ``recipe``, or see that it is its own."""
        self.ensure_fits(recipe)
        self._make()
        if not self.recipe_file.exists():
            write_atomically(self.recipe_file, recipe.to_toml())
        self._opened_for = recipe

    def ensure_fits(self, recipe: Recipe) -> None:
        """Refuse what belongs to another recipe, or to no run at all; nothing is touched."""
        if self.recipe_file.exists():
            if differences := recipe.differences(self.recipe()):
                raise UsageError(
                    f"{self.path} holds another run: {_listed(differences)}. "
                    "Choose another --out, or give the same recipe to go on."
                )
        elif self.path.is_dir() and any(item.name not in FIRST for item in self.path.iterdir()):
            raise UsageError(f"{self.path} is not empty and not a run directory: choose another --out.")

    def recipe(self) -> Recipe:
        if not self.recipe_file.exists():
            raise UsageError(f"{self.path} is not a run directory: it has no {RECIPE}.")
        return make_recipe(read_recipe(self.recipe_file), {})

    def result(self) -> Result | None:
        """The result of a finished run."""
        try:
            return read_result(self.path, read_recipe(self.recipe_file) if self.recipe_file.exists() else {})
        except UsageError:
            raise
        except ValueError as error:
            raise UsageError(f"{self.path / RESULT} is damaged: {error} Remove it and run again.") from None

    def finish(self, result: Result, final: Mapping[str, Any]) -> None:
        """Keep the result and the final state; the checkpoints have served."""
        checkpoint.save(self.path / FINAL, final)
        write_atomically(self.path / RESULT, result.to_json())
        self._remove("*.ckpt", f"*.ckpt{TEMPORARY}", but=FINAL)

    def restart(self) -> None:
        """Forget how far the run came. Its recipe stays."""
        with self.locked():
            self._remove(RESULT, LOG, "*.ckpt*")

    @contextmanager
    def locked(self) -> Iterator[None]:
        """At most one process works in the directory."""
        self._make()
        try:
            with locked(self.path / "lock"):
                yield
        except AlreadyLocked:
            raise UsageError(f"another process is working in {self.path}.") from None

    # The store of the engine.

    def save_task(self, task: int, tree: dict[str, Any]) -> None:
        checkpoint.save(self.path / f"task-{task:03d}.ckpt", self._stamped(tree))
        for old in self._task_files()[TASKS_KEPT:]:
            old.unlink()

    def save_epoch(self, task: int, epoch: int, tree: dict[str, Any]) -> None:
        newest, previous = (self.path / name for name in EPOCHS)
        if newest.exists():
            os.replace(newest, previous)
        checkpoint.save(newest, self._stamped(tree | {"task": task}))

    def latest(self) -> tuple[dict[str, Any], dict[str, Any] | None] | None:
        """The newest beginning of a task that can be read, with its newest epoch; None if nothing was saved yet."""
        for file in self._task_files():
            if (task := self._read(file, _check_task)) is None:
                continue
            epochs = [self._read(self.path / name, _check_epoch) for name in EPOCHS]
            fitting = [epoch for epoch in epochs if epoch is not None and epoch["task"] == task["task"]]
            newest = max(fitting, key=lambda epoch: int(epoch["epoch"]), default=None)
            self._cut_log((newest or task)["events"])
            return task, newest
        if any(self.path.glob(f"task-*.ckpt{REFUSED}")):
            raise UsageError(
                f"no checkpoint in {self.path} can be read, so the run cannot go on. "
                f"To begin it again: codecl run --resume {self.path} --restart"
            )
        self._cut_log(0)
        return None

    def log(self, event: Event) -> None:
        with open(self.path / LOG, "a", encoding="utf-8", opener=_without_links) as log:
            log.write(event.to_line())
        self._events += 1

    def _cut_log(self, events: int) -> None:
        """Forget what was logged after the checkpoint: it will happen again. A damaged line ends the log, too."""
        try:
            data = read_bytes(self.path / LOG, LOG_LIMIT)
        except FileNotFoundError:
            data = b""
        except ValueError as error:
            raise UsageError(f"{self.path / LOG} is damaged: {error} Remove it to go on.") from None
        lines = [line + b"\n" for line in data.split(b"\n")[:-1]][:events]
        good, fault = parse_log(b"".join(lines))
        if fault:
            self.on_notice(f"{self.path / LOG} is damaged: {fault} It is cut there.")
        write_atomically(self.path / LOG, b"".join(lines[: len(good)]))
        self._events = len(good)

    def _task_files(self) -> list[Path]:
        """The beginnings of tasks, the latest first."""
        numbers = {file: re.fullmatch(r"task-(\d+)\.ckpt", file.name) for file in self.path.glob("task-*.ckpt")}
        numbered = [(int(match[1]), file) for file, match in numbers.items() if match]
        return [file for _, file in sorted(numbered, reverse=True)]

    def _read(self, file: Path, check: Callable[[Any], None]) -> dict[str, Any] | None:
        """The checkpoint in ``file``; one that is no good is set aside, lest it take the place of one that is."""
        if not file.exists():
            return None
        try:
            tree: dict[str, Any] = checkpoint.load(file)
            check(tree)
            recipe = make_recipe(from_toml(tree["recipe"]), {})
        except ValueError as error:
            broken = str(error) if isinstance(error, checkpoint.BrokenCheckpoint) else f"{file} is damaged: {error}"
            os.replace(file, file.with_name(file.name + REFUSED))
            self.on_notice(f"{broken} It is set aside as {file.name}{REFUSED}; going on from the one before it.")
            return None
        if differences := self._recipe().differences(recipe):
            raise UsageError(
                f"{self.recipe_file} is not the recipe that {file.name} was made with: {_listed(differences)}. "
                f"Restore it to go on; to begin again: codecl run --resume {self.path} --restart"
            )
        return tree

    def _stamped(self, tree: dict[str, Any]) -> dict[str, Any]:
        return tree | {"events": self._events, "recipe": self._recipe().to_toml()}

    def _recipe(self) -> Recipe:
        return self._opened_for or self.recipe()

    def _remove(self, *patterns: str, but: str = "") -> None:
        for file in {file for pattern in patterns for file in self.path.glob(pattern)}:
            if file.name != but:
                file.unlink()
        sync_directory(self.path)

    def _make(self) -> None:
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            if error.errno == errno.ENOSPC:
                raise
            raise UsageError(f"{self.path} cannot be a run directory: {error.strerror}.") from None


def _listed(differences: list[str]) -> str:
    return f"{'; '.join(differences[:4])}{' and more' if len(differences) > 4 else ''}"


def _without_links(path: str, flags: int) -> int:
    return os.open(path, flags | getattr(os, "O_NOFOLLOW", 0), 0o666)


def _check_task(tree: Any) -> None:
    """``ValueError`` if this is not the state at the beginning of a task."""
    if not isinstance(tree, dict):
        raise ValueError(f"it must be a table; got {type(tree).__name__}.")
    for name, kind in {"recipe": str, "model": dict, "accuracy": list, "epochs": list, "seconds": dict}.items():
        if not isinstance(tree.get(name), kind):
            raise ValueError(f"{name} must be {kind.__name__}; got {type(tree.get(name)).__name__}.")
    for name in ("task", "events"):
        check_whole(name, tree.get(name))
    check_amounts("seconds", tree["seconds"], SECONDS)


def _check_epoch(tree: Any) -> None:
    _check_task(tree)
    check_whole("epoch", tree.get("epoch"))

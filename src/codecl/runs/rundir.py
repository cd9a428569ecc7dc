"""The run directory: ``recipe.toml`` first, ``log.jsonl`` and checkpoints on the way, ``result.json`` at the end.

It belongs to one recipe for good. The same recipe goes on where it stopped; another is refused with what differs.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from codecl.errors import UsageError
from codecl.files import write_atomically
from codecl.runs.recipe import Recipe, make_recipe, read_recipe
from codecl.training import checkpoint

Tree = dict[str, Any]
TASKS_KEPT = 2
FIRST = {"lock", "recipe.toml.new"}
"""What a run that was killed in its first moments may leave behind."""


class RunDirectory:
    """One run on disk. Implements the store of the engine."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.on_notice: Callable[[str], None] | None = None

    @property
    def recipe_file(self) -> Path:
        return self.path / "recipe.toml"

    def open_for(self, recipe: Recipe) -> None:
        """Make the directory for ``recipe``, or see that it is its own."""
        self.check(recipe)
        self._make()
        if not self.recipe_file.exists():
            write_atomically(self.recipe_file, recipe.to_toml())

    def check(self, recipe: Recipe) -> None:
        """Refuse what belongs to another recipe, or to no run at all; nothing is touched."""
        if self.recipe_file.exists():
            there = self.recipe()
            if differences := recipe.differences(there):
                raise UsageError(
                    f"{self.path} holds another run: {'; '.join(differences[:4])}"
                    f"{' and more' if len(differences) > 4 else ''}. "
                    "Choose another --out, or give the same recipe to go on."
                )
        elif self.path.is_dir() and any(item.name not in FIRST for item in self.path.iterdir()):
            raise UsageError(f"{self.path} is not empty and not a run directory: choose another --out.")

    def recipe(self) -> Recipe:
        if not self.recipe_file.exists():
            raise UsageError(f"{self.path} is not a run directory: it has no recipe.toml.")
        return make_recipe(read_recipe(self.recipe_file), {})

    def result(self) -> Tree | None:
        """The result of a finished run."""
        try:
            result: Tree = json.loads((self.path / "result.json").read_text(encoding="utf-8"))
            if not isinstance(result, dict) or "accuracy" not in result:
                raise ValueError("it has no accuracy matrix")
            return result
        except (FileNotFoundError, NotADirectoryError):
            return None
        except ValueError as error:
            raise UsageError(f"{self.path / 'result.json'} is damaged: {error}. Remove it and run again.") from None

    def finish(self, result: Tree, final: Tree) -> None:
        """Keep the result and the final state; the checkpoints have served."""
        checkpoint.save(self.path / "final.ckpt", final)
        write_atomically(self.path / "result.json", json.dumps(result, indent=1) + "\n")
        for file in self.path.glob("*.ckpt"):
            if file.name != "final.ckpt":
                file.unlink()

    @contextmanager
    def locked(self) -> Iterator[None]:
        """At most one process works in the directory."""
        self._make()
        with open(self.path / "lock", "a") as lock:
            try:
                import fcntl

                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except ImportError:  # not on Windows
                pass
            except BlockingIOError:
                raise UsageError(f"another process is working in {self.path}.") from None
            yield

    # The store of the engine.

    def save_task(self, task: int, tree: Tree) -> None:
        checkpoint.save(self._task_file(task), self._stamped(tree))
        for old in sorted(self.path.glob("task-*.ckpt"))[:-TASKS_KEPT]:
            old.unlink()

    def save_epoch(self, task: int, epoch: int, tree: Tree) -> None:
        newest, previous = self.path / "epoch.ckpt", self.path / "epoch-before.ckpt"
        if newest.exists():
            os.replace(newest, previous)
        checkpoint.save(newest, self._stamped(tree | {"task": task}))

    def latest(self) -> tuple[Tree, Tree | None] | None:
        """The newest beginning of a task that can be read, with its newest epoch; None if the run is to start anew."""
        files = sorted(self.path.glob("task-*.ckpt"), reverse=True)
        for file in files:
            if (task := self._read(file)) is None:
                continue
            epochs = [self._read(self.path / name) for name in ("epoch.ckpt", "epoch-before.ckpt")]
            fitting = [epoch for epoch in epochs if epoch is not None and epoch["task"] == task["task"]]
            newest = max(fitting, key=lambda epoch: int(epoch["epoch"]), default=None)
            self._cut_log((newest or task)["events"])
            return task, newest
        if files:
            self._notice("No beginning of a task can be read: the run starts anew.")
        self._cut_log(0)
        return None

    def log(self, event: Tree) -> None:
        with open(self.path / "log.jsonl", "a", encoding="utf-8") as log:
            log.write(json.dumps(event) + "\n")

    def events(self) -> list[Tree]:
        """What was logged, whole lines only."""
        try:
            lines = (self.path / "log.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
        except FileNotFoundError:
            return []
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def _events(self) -> int:
        try:
            return (self.path / "log.jsonl").read_bytes().count(b"\n")
        except FileNotFoundError:
            return 0

    def _cut_log(self, events: int) -> None:
        """Forget what was logged after the checkpoint: it will happen again."""
        log = self.path / "log.jsonl"
        if log.exists():
            lines = log.read_bytes().splitlines(keepends=True)
            write_atomically(log, b"".join(lines[:events]).decode())

    def _task_file(self, task: int) -> Path:
        return self.path / f"task-{task:03d}.ckpt"

    def _read(self, file: Path) -> Tree | None:
        """The checkpoint in ``file``; one that is no good is set aside, lest it take the place of one that is."""
        if not file.exists():
            return None
        try:
            tree: Tree = checkpoint.load(file)
            if not isinstance(tree, dict) or tree.get("recipe") != self._digest():
                raise checkpoint.BrokenCheckpoint(f"{file} is not of this recipe.")
            return tree
        except checkpoint.BrokenCheckpoint as error:
            os.replace(file, file.with_name(file.name + ".refused"))
            self._notice(f"{error} It is set aside as {file.name}.refused; going on from the one before it.")
            return None

    def _stamped(self, tree: Tree) -> Tree:
        return tree | {"events": self._events(), "recipe": self._digest()}

    def _digest(self) -> str:
        return hashlib.sha256(self.recipe_file.read_bytes()).hexdigest()

    def _notice(self, text: str) -> None:
        if self.on_notice is not None:
            self.on_notice(text)

    def _make(self) -> None:
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            if error.errno == errno.ENOSPC:
                raise
            raise UsageError(f"{self.path} cannot be a run directory: {error.strerror}.") from None

"""The run directory: ``recipe.toml`` first, ``log.jsonl`` and checkpoints on the way, ``result.json`` at the end.

It belongs to one recipe for good. The same recipe goes on where it stopped; another is refused with what differs. What
counts is what a recipe says: comments and the order of its lines do not matter.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated, Any

from codecl.errors import UsageError, refusing
from codecl.files import FULL, TEMPORARY, AlreadyLocked, locked, open_descriptor, sync_directory, write_atomically
from codecl.runs.events import Event, NoticeEvent, parse_log
from codecl.runs.recipe import Recipe, make_recipe, read_recipe, refuse_foreign, stated_recipe
from codecl.runs.records import LOG, LOG_LIMIT, RECIPE, RESULT, AnotherRun, Result, Seconds, read_result
from codecl.runs.typed import Amount, Percent, Whole, check, keys
from codecl.runs.untrusted import parse_toml, read_bytes
from codecl.training import checkpoint

TASKS_KEPT = 2
FINAL = "final.ckpt"
EPOCHS = ("epoch.ckpt", "epoch-before.ckpt")
REFUSED = ".refused"
"""What is added to the name of a checkpoint that is no good."""
TASK_STATE = Annotated[
    dict[str, Any],
    keys(recipe=str, made_with=dict, model=dict, method=dict, seconds=Seconds, task=Whole, events=Whole),
    keys(accuracy=list[list[Percent | None]], epochs=list[Whole], measures=dict[str, list[list[float | None]]]),
    keys(moved=list[list[Amount | None]] | None),
]
EPOCH_STATE = Annotated[TASK_STATE, keys(epoch=Whole)]
FIRST = {"lock", RECIPE + TEMPORARY}
"""What a run that was killed in its first moments may leave behind."""


class RunDirectory:
    """One run on disk. Implements the store of the engine.

    Args:
        path: The directory.
        trust: Whether code that the recipe in it names may be imported.
        accept: What may differ from what its checkpoints were ``made_with``: data, torch, codecl.

    >>> RunDirectory(Path("nowhere")).result() is None
    True
    """

    def __init__(self, path: Path, trust: bool = False, accept: Sequence[str] = ()) -> None:
        self.path, self.trust, self.accept = path, trust, accept
        self.made_with: dict[str, str] = {}
        self.on_notice: Callable[[str], None] = lambda text: None
        self._opened_for: Recipe | None = None
        self._events = 0
        self._given: list[Path] = []

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
            if differences := recipe.differences(_as_stated(read_recipe(self.recipe_file), recipe)):
                raise UsageError(
                    f"{self.path} holds another run: {_listed(differences)}. "
                    "Choose another --out, or give the same recipe to go on."
                )
        elif self.path.is_dir() and any(item.name not in FIRST for item in self.path.iterdir()):
            raise UsageError(f"{self.path} is not empty and not a run directory: choose another --out.")

    def recipe(self, imports: bool = True) -> Recipe:
        """The recipe in the directory; without ``imports``, one that names foreign code only as far as it is stated."""
        if not self.recipe_file.exists():
            raise UsageError(f"{self.path} is not a run directory: it has no {RECIPE}.")
        stated = read_recipe(self.recipe_file)
        if not self.trust:
            try:
                refuse_foreign(stated, self.recipe_file)
            except UsageError:
                if imports:
                    raise
                return stated_recipe(stated)
        return make_recipe(stated, {})

    def result(self) -> Result | None:
        """The result of a finished run."""
        advice = f" Remove it to go on, or begin again: {self._restarting()}"
        with refusing(f"{self.path / RESULT} is damaged: ", advice=advice):
            try:
                return read_result(self.path, read_recipe(self.recipe_file) if self.recipe_file.exists() else {})
            except AnotherRun as error:
                advice = "Move it to where it belongs and run again."
                raise UsageError(f"{self.path / RESULT} is of another run: {error} {advice}") from None

    def finish(self, result: Result, final: Mapping[str, Any]) -> None:
        """Keep the result and the final state; the checkpoints have served."""
        checkpoint.save(self.path / FINAL, final)
        write_atomically(self.path / RESULT, result.to_json())
        self._remove("*.ckpt", f"*.ckpt{TEMPORARY}", but=FINAL)

    def tidy(self) -> None:
        """Remove the checkpoints of a finished run that was killed before it came to that."""
        if any(file.name != FINAL for file in self.path.glob("*.ckpt")):
            with suppress(UsageError, OSError), self.locked():
                self._remove("*.ckpt", f"*.ckpt{TEMPORARY}", but=FINAL)

    def restart(self) -> None:
        """Forget how far the run came. Its recipe stays."""
        with self.locked():  # the log last: as long as it is there, what is left is not taken for a new run
            self._remove(RESULT, "task-*.ckpt*", "*.ckpt*", "trackers.json", "tensorboard/events.out.*", LOG)

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
            if (task := self._read(file, TASK_STATE)) is None:
                continue
            epochs = [self._read(self.path / name, EPOCH_STATE) for name in EPOCHS]
            fitting = [epoch for epoch in epochs if epoch is not None and epoch["task"] == task["task"]]
            newest = max(fitting, key=lambda epoch: int(epoch["epoch"]), default=None)
            self._cut_log((newest or task)["events"])
            self._given = [file, *([self.path / EPOCHS[epochs.index(newest)]] if newest is not None else [])]
            return task, newest
        if any(self.path.glob(f"task-*.ckpt{REFUSED}")):
            raise UsageError(
                f"no checkpoint in {self.path} can be read, so the run cannot go on. "
                f"To begin it again: {self._restarting()}"
            )
        events, fault = parse_log(self._logged())
        if fault or not all(isinstance(event, NoticeEvent) for event in events):  # a notice may precede the first task
            raise UsageError(
                f"{self.path / LOG} tells of a run, but there is no checkpoint to go on from. "
                f"Put the checkpoints back, or begin it again: {self._restarting()}"
            )
        self._cut_log(0)
        return None

    def log(self, event: Event) -> None:
        with open(self.path / LOG, "a", encoding="utf-8", opener=open_descriptor) as log:
            log.write(event.to_line())
        self._events += 1

    def _cut_log(self, events: int) -> None:
        """Forget what was logged after the checkpoint: it will happen again. A damaged line ends the log, too."""
        lines = [line + b"\n" for line in self._logged().split(b"\n")[:-1]][:events]
        good, fault = parse_log(b"".join(lines))
        if fault:
            self.on_notice(f"{self.path / LOG} is damaged: {fault} It is cut there.")
        elif len(lines) < events:
            self.on_notice(f"{self.path / LOG} has {len(lines)} lines of the {events} before the checkpoint.")
        write_atomically(self.path / LOG, b"".join(lines[: len(good)]))
        self._events = len(good)

    def _logged(self) -> bytes:
        with refusing(f"{self.path / LOG} is damaged: ", OSError, advice=" Remove it to go on."):
            return read_bytes(self.path / LOG, LOG_LIMIT) if (self.path / LOG).exists() else b""

    def _task_files(self) -> list[Path]:
        """The beginnings of tasks, the latest first."""
        numbers = {file: re.fullmatch(r"task-(\d+)\.ckpt", file.name) for file in self.path.glob("task-*.ckpt")}
        numbered = [(int(match[1]), file) for file, match in numbers.items() if match]
        return [file for _, file in sorted(numbered, reverse=True)]

    def _read(self, file: Path, state: Any) -> dict[str, Any] | None:
        """The checkpoint in ``file``; one that is no good is set aside, lest it take the place of one that is."""
        if not file.exists():
            return None
        try:
            tree: dict[str, Any] = checkpoint.load(file)
            check("checkpoint", tree, state)
            recipe = _as_stated(parse_toml(tree["recipe"]), self._recipe())
        except ValueError as error:
            self._set_aside(
                file, str(error) if isinstance(error, checkpoint.BrokenCheckpoint) else f"{file} is damaged: {error}"
            )
            return None
        for name, here in self.made_with.items():
            if (there := tree["made_with"].get(name)) != here and name not in self.accept:
                what = "other data" if name == "data" else f"{name} {there}, and this is {here}"
                raise UsageError(f"{file} was made with {what}. To go on all the same: --accept {name}")
        if differences := self._recipe().differences(recipe):
            raise UsageError(
                f"{self.recipe_file} is not the recipe that {file.name} was made with: {_listed(differences)}. "
                f"Restore it to go on; to begin again: {self._restarting()}"
            )
        return tree

    def refuse_given(self, reason: str, epoch: bool) -> None:
        """Set aside the checkpoint that ``latest`` gave, of a task or of an epoch: it is whole, but not of this run."""
        file = self._given[-1 if epoch else 0]
        self._set_aside(file, f"{file} is not a state of this run ({reason}).")

    def _set_aside(self, file: Path, reason: str) -> None:
        os.replace(file, file.with_name(file.name + REFUSED))
        self.on_notice(f"{reason} It is set aside as {file.name}{REFUSED}; going on from the one before it.")

    def _stamped(self, tree: dict[str, Any]) -> dict[str, Any]:
        stamp = {"events": self._events, "recipe": self._recipe().to_toml(), "made_with": self.made_with}
        return tree | stamp

    def _restarting(self) -> str:
        return f"codecl run --resume {self.path} --restart"

    def _recipe(self) -> Recipe:
        return self._opened_for or self.recipe()

    def _remove(self, *patterns: str, but: str = "") -> None:
        for file in dict.fromkeys(file for pattern in patterns for file in sorted(self.path.glob(pattern))):
            if file.name != but:
                file.unlink()
        sync_directory(self.path)

    def _make(self) -> None:
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            if error.errno in FULL:
                raise
            raise UsageError(f"{self.path} cannot be a run directory: {error.strerror}.") from None


def _as_stated(stated: dict[str, Any], mine: Recipe) -> Recipe:
    """The recipe in a file, complete only where that imports nothing but what ``mine`` names already."""
    recipe = stated_recipe(stated)
    known = (recipe.method, recipe.benchmark) == (mine.method, mine.benchmark)
    return make_recipe(stated, {}) if known else recipe


def _listed(differences: list[str]) -> str:
    return f"{'; '.join(differences[:4])}{' and more' if len(differences) > 4 else ''}"

"""A search for hyperparameters by Optuna: trials that are runs, and a journal that several machines can share.

The value of a trial is the mean validation accuracy over all tasks, each as it is known after the last one; what is
known after every task decides whether the trial goes on. Test data have no part in it.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from codecl.errors import UsageError
from codecl.files import AlreadyLocked, locked
from codecl.randomness import derive
from codecl.runs.events import Event, TaskEvent
from codecl.runs.recipe import Recipe
from codecl.runs.run import Observer, refuse_impossible, run, validate
from codecl.runs.rundir import RunDirectory
from codecl.text import installing
from codecl.training.engine import Trainer
from codecl.training.schedule import Diverged

JOURNAL = "journal.log"
STUDY = "codecl"
LOGARITHMIC = 10
"""A range whose end is so many times its beginning is searched on a logarithmic scale."""
UNPRUNED = 5
"""Trials that go on to their end before others are measured by them."""


@dataclass(frozen=True)
class Range:
    """The values of one hyperparameter, ``low`` to ``high``; whole numbers if it is one in the recipe."""

    name: str
    low: float
    high: float
    whole: bool

    @property
    def log(self) -> bool:
        return self.low > 0 and self.high / self.low >= LOGARITHMIC

    def suggest(self, trial: Any) -> float:
        if self.whole:
            return int(trial.suggest_int(self.name, int(self.low), int(self.high), log=self.log))
        return float(trial.suggest_float(self.name, self.low, self.high, log=self.log))


def parse_ranges(texts: Sequence[str], base: Recipe) -> list[Range]:
    """``name=low..high`` of every ``--search``.

    >>> [found] = parse_ranges(["lr=1e-3..0.2"], Recipe(training={"lr": 0.1}))
    >>> found.low, found.high, found.whole, found.log
    (0.001, 0.2, False, True)
    """
    known = {**base.training, **base.settings}
    found: dict[str, Range] = {}
    for text in texts:
        name, _, bounds = (part.strip() for part in text.partition("="))
        low, dots, high = bounds.partition("..")
        try:
            ends = float(low), float(high)
        except ValueError:
            ends = 0.0, 0.0
        if not name or not dots or not ends[0] < ends[1]:
            raise UsageError(f"--search takes name=low..high, two numbers in order; got {text!r}.")
        if name in found:
            raise UsageError(f"--search {name} is given twice.")
        whole = isinstance(known.get(name), int) and not isinstance(known.get(name), bool)
        if whole and not all(end.is_integer() for end in ends):
            raise UsageError(f"--search {text}: {name} is a whole number, and so are the ends of its range.")
        found[name] = Range(name, *ends, whole)
    return list(found.values())


@dataclass(frozen=True)
class Trial:
    """A trial that has ended: its values, what they were worth, and how it ended."""

    number: int
    values: dict[str, float]
    accuracy: float | None
    """The mean validation accuracy in %, after the last task that was learned."""
    state: str


class Search:
    """A study in the directory ``out``, which other processes may work on at the same time.

    Args:
        out: the directory of the journal and of the trials.
        ranges: what is searched.
        make: the recipe for values by name.
        seeds: every trial is run with each; pruning looks at the first.
        root: the directory of the data sets.
        tell: called with a line about every trial that ends.
        track: the names of the trackers that watch every run.
        accept: what may differ from what checkpoints were made with.
    """

    def __init__(
        self,
        out: Path,
        ranges: Sequence[Range],
        make: Callable[[Mapping[str, float]], Recipe],
        seeds: Sequence[int],
        root: Path,
        tell: Callable[[str], None],
        track: Sequence[str] = (),
        accept: Sequence[str] = (),
    ) -> None:
        if importlib.util.find_spec("optuna") is None:
            raise UsageError(f"--search needs the package optuna: {installing('optuna')}.")
        optuna: Any = importlib.import_module("optuna")
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self.optuna, self.out, self.ranges, self.make = optuna, out, ranges, make
        self.seeds, self.root, self.tell = seeds, root, tell
        self.track, self.accept = track, accept
        corners = ([r.low for r in ranges], [r.high for r in ranges])
        ends = [
            make({r.name: int(end) if r.whole else end for r, end in zip(ranges, at, strict=True)}) for at in corners
        ]
        refuse_impossible(ends, root)
        asked = {"recipe": ends[0].to_toml(), "ranges": [vars(r) for r in ranges], "seeds": list(seeds)}
        out.mkdir(parents=True, exist_ok=True)
        storage = optuna.storages.JournalStorage(optuna.storages.journal.JournalFileBackend(str(out / JOURNAL)))
        self.study = optuna.create_study(
            storage=storage, study_name=STUDY, direction="maximize", load_if_exists=True,
            pruner=optuna.pruners.MedianPruner(n_startup_trials=UNPRUNED),
        )  # fmt: skip
        if self.study.user_attrs.get("asked", asked) != asked:
            raise UsageError(f"{out} holds another search: choose another --out, or give the same options to go on.")
        self.study.set_user_attr("asked", asked)

    def run(self, trials: int) -> None:
        """Go on until the study has ``trials`` trials, those of other processes included."""
        for frozen in self._trials("RUNNING"):  # of a process that was stopped, unless it still holds the lock
            self._carry_out(self.optuna.Trial(self.study, frozen._trial_id))
        while len(self._trials()) < trials:
            trial = self.study.ask()
            seed = derive(self.seeds[0], "search", trial.number) % 2**32
            self.study.sampler = self.optuna.samplers.TPESampler(seed=seed)
            self._carry_out(trial)

    def ended(self) -> list[Trial]:
        """All trials that have ended, the best first."""
        found = [
            Trial(t.number, dict(t.params), t.value if t.value is not None else self._last(t), t.state.name.lower())
            for t in self._trials("COMPLETE", "PRUNED", "FAIL")
        ]
        complete = [t for t in found if t.state == "complete"]
        return sorted(complete, key=lambda t: -(t.accuracy or 0)) + [t for t in found if t.state != "complete"]

    def directory(self, number: int) -> Path:
        return self.out / f"trial-{number:03d}"

    # Private.

    def _trials(self, *states: str) -> list[Any]:
        kinds = [getattr(self.optuna.trial.TrialState, state) for state in states] or None
        return list(self.study.get_trials(deepcopy=False, states=kinds))

    def _carry_out(self, trial: Any) -> None:
        folder = self.directory(trial.number)
        folder.mkdir(exist_ok=True)
        try:
            with locked(folder / "lock"):
                if not self.study.trials[trial.number].state.is_finished():
                    self._learn(trial, {r.name: r.suggest(trial) for r in self.ranges})
        except AlreadyLocked:
            return

    def _learn(self, trial: Any, values: Mapping[str, float]) -> None:
        said = f"trial {trial.number}: " + ", ".join(f"{name} {value:.4g}" for name, value in values.items())
        try:
            worth = [self._run(trial, replace(self.make(values), seed=seed)) for seed in self.seeds]
        except self.optuna.TrialPruned:
            self.study.tell(trial, state=self.optuna.trial.TrialState.PRUNED)
            steps = len(self.study.trials[trial.number].intermediate_values)
            self.tell(f"{said}: pruned after task {steps}")
        except (Diverged, UsageError) as error:
            self.study.tell(trial, state=self.optuna.trial.TrialState.FAIL)
            self.tell(f"{said}: failed, {error}")
            if isinstance(error, UsageError):
                raise
        else:
            self.study.tell(trial, fmean(worth))
            self.tell(f"{said}: validation {fmean(worth):.2f} %")

    def _run(self, trial: Any, recipe: Recipe) -> float:
        """The mean validation accuracy of one run; it stands in the journal before the run ends."""
        name = f"seed{recipe.seed}"
        prunes = recipe.seed == self.seeds[0]

        def watching(trainer: Trainer) -> Observer:
            def see(event: Event) -> None:
                if isinstance(event, TaskEvent):
                    trial.set_user_attr(name, accuracy := fmean(validate(trainer, event.task + 1)))
                    if prunes:
                        if event.task not in self.study.trials[trial.number].intermediate_values:
                            trial.report(accuracy, event.task)  # a task that is run again was reported before
                        if event.task + 1 < len(trainer.stream) and trial.should_prune():
                            raise self.optuna.TrialPruned

            return see

        directory = RunDirectory(self.directory(trial.number) / name, accept=self.accept)
        directory.on_notice = self.tell
        run(recipe, directory, (), self.root, self.track, watching=watching)
        return float(self.study.trials[trial.number].user_attrs[name])

    def _last(self, trial: Any) -> float | None:
        return trial.intermediate_values[max(trial.intermediate_values)] if trial.intermediate_values else None

"""Forward transfer: which experiment is the baseline under a condition, and which share seeds with it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from codecl.errors import UsageError
from codecl.report.experiments import Condition, Experiment, by_condition
from codecl.report.interval import mean_interval
from codecl.report.names import few
from codecl.report.table import Cell
from codecl.runs.records import Result
from codecl.text import unknown_name
from codecl.training import metrics


@dataclass(frozen=True)
class Transfer:
    """The experiments of one condition beside the ``baseline`` method.

    ``base`` is the baseline's experiment as its recipe file has it, or the only one; None where that is not clear.
    ``paired`` are the experiments, the base among them, that share a seed with it; ``unpaired`` the others.
    """

    baseline: str
    condition: Condition
    base: Experiment | None
    paired: Sequence[Experiment]
    unpaired: Sequence[Experiment]

    @property
    def is_measured(self) -> bool:
        """Whether there is something beside the base itself."""
        return len(self.paired) > 1

    @property
    def without_seed(self) -> str:
        """What cannot be measured, because the base has none of its seeds; empty if everything can."""
        if self.base is None or not self.unpaired:
            return ""
        listed = ", ".join(f"{e.label()} ({e.seeds()})" for e in self.unpaired)
        return f"{listed} over {self.baseline} ({self.base.seeds()}), {self.condition.title()}"


def paired(e: Experiment, base: Experiment | None, compare: Callable[[Result, Result], float]) -> list[float]:
    """What ``compare`` gives for the results of ``e`` and of the base, for every seed that both have."""
    theirs = {run.seed: run.result for run in base.runs} if base is not None else {}
    return [compare(run.result, theirs[run.seed]) for run in e.runs if run.seed in theirs]


def fwt(e: Experiment, base: Experiment | None) -> Cell:
    """How much better ``e`` learned each task than the base."""
    if e.joint:
        return Cell()
    transferred = paired(e, base, lambda ours, theirs: metrics.fwt(ours.accuracy, theirs.accuracy))
    return replace(Cell.mean(transferred), unranked=base is not None and e.method == base.method)


def difference(e: Experiment, base: Experiment | None) -> Cell:
    """How far the ACC of ``e`` is above that of the base, seed by seed, with the interval of the mean."""
    if e is base:
        return Cell("baseline")
    differences = paired(e, base, lambda ours, theirs: ours.acc - theirs.acc)
    return replace(Cell.mean(differences), spread=None, interval=mean_interval(differences))


def find_transfers(experiments: Sequence[Experiment], baseline: str) -> list[Transfer]:
    """One for each condition."""
    transfers = []
    for group in by_condition(experiments):
        others = [e for e in group if not e.joint]  # where all tasks are learned at once, nothing is transferred
        candidates = [e for e in others if e.method == baseline]
        usual = [e for e in candidates if not e.departures]
        as_printed = [e for e in usual if e.title == e.first.title]
        base = next((some[0] for some in (as_printed, usual, candidates) if len(some) == 1), None)
        seeds = {run.seed for run in base.runs} if base is not None else set()
        alike = [e for e in others if any(run.seed in seeds for run in e.runs)]
        unpaired = [e for e in others if e not in alike]
        transfers.append(Transfer(baseline, group[0].condition, base, alike, unpaired))
    return transfers


def check_baseline(baseline: str, experiments: Sequence[Experiment], transfers: Sequence[Transfer]) -> None:
    """Refuse a ``baseline`` that was asked for and gives nothing."""
    candidates = [e for e in experiments if e.method == baseline]
    if not candidates:
        raise UsageError(unknown_name("run of the baseline", baseline, dict.fromkeys(e.method for e in experiments)))
    if any(transfer.is_measured for transfer in transfers):
        return
    reasons = [f"no seed in common: {t.without_seed}" for t in transfers if t.without_seed]
    if all(e.joint for e in candidates):
        reasons = ["it learns all tasks at once"]
    elif all(transfer.base is None for transfer in transfers):
        reasons = [f"which experiment of {baseline} is meant is not clear, for none is as its recipe file has it"]
    raise UsageError(
        f"--baseline {baseline} gives no forward transfer: {few(reasons or ['there is nothing to compare it with'])}. "
        "Give runs of other methods with its seeds, or another --baseline."
    )


def transfer_notes(transfers: Sequence[Transfer]) -> Iterator[str]:
    """What forward transfer could not be measured, and why."""
    without = [transfer for transfer in transfers if transfer.base is None]
    if without:
        where = "; ".join(transfer.condition.title() for transfer in without)
        yield f"No forward transfer without one run of {without[0].baseline} to measure it against: {where}."
    for transfer in transfers:
        if transfer.without_seed:
            yield f"No forward transfer without a seed in common: {transfer.without_seed}."

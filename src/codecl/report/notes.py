"""What there is to say about a report beside its numbers: what they rest on, and what is not there and why."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from codecl.errors import UsageError
from codecl.report import run_figures
from codecl.report.experiments import Experiment
from codecl.report.records import Run
from codecl.report.tables import baseline_of, with_seeds_of
from codecl.text import unknown_name


@dataclass(frozen=True)
class Transfer:
    """Which experiments of a condition have a seed in common with their baseline, and which do not."""

    condition: str
    base: Experiment | None
    paired: tuple[Experiment, ...]
    alone: tuple[Experiment, ...]

    @classmethod
    def of(cls, experiments: Sequence[Experiment], baseline: str) -> Transfer:
        base = baseline_of(experiments, baseline)
        others = [e for e in experiments if e is not base and not e.first.joint]
        paired = [e for e in others if with_seeds_of(base, [e])]
        alone = [e for e in others if e not in paired]
        return cls(experiments[0].condition.title(), base, tuple(paired), tuple(alone))

    def without_seed(self, baseline: str) -> str:
        """What cannot be measured, because the baseline has none of its seeds; empty if everything can."""
        if self.base is None or not self.alone:
            return ""
        several = ", ".join(f"{e.label()} ({_seeds(e)})" for e in self.alone)
        return f"{several} over {baseline} ({_seeds(self.base)}), {self.condition}"


def _seeds(e: Experiment) -> str:
    return f"seed{'s' * (len(e.runs) > 1)} {', '.join(str(run.seed) for run in e.runs)}"


def check_baseline(baseline: str, experiments: Sequence[Experiment], transfers: Sequence[Transfer]) -> None:
    """A baseline that was asked for must be of use."""
    of = [e for e in experiments if e.method == baseline]
    if not of:
        raise UsageError(unknown_name("run of the baseline", baseline, dict.fromkeys(e.method for e in experiments)))
    if any(transfer.paired for transfer in transfers):
        return
    if all(e.first.joint for e in of):
        why = ["it learns all tasks at once"]
    elif all(transfer.base is None for transfer in transfers):
        why = [f"which experiment of {baseline} is meant is not clear, for none is as its recipe file has it"]
    else:
        why = [f"no seed in common: {words}" for t in transfers if (words := t.without_seed(baseline))]
    begin = f"--baseline {baseline} gives no forward transfer"
    said = sentence(begin, why or ["there is nothing to compare it with"], ": ")
    raise UsageError(f"{said} Give runs of other methods with its seeds, or another --baseline.")


def origin(runs: Sequence[Run]) -> str:
    versions = sorted({f"codecl {run.result['versions'].get('codecl', '?')}" for run in runs})
    seeds = sorted({run.seed for run in runs})
    return f"Recorded by {', '.join(versions)}; seeds {', '.join(map(str, seeds))}."


def about_transfer(transfers: Sequence[Transfer], baseline: str) -> Iterable[str]:
    without = [transfer.condition for transfer in transfers if transfer.base is None]
    if without:
        yield f"No forward transfer without one run of {baseline} to measure it against: {'; '.join(without)}."
    for transfer in transfers:
        if words := transfer.without_seed(baseline):
            yield f"No forward transfer without a seed in common: {words}."


def about_logs(runs: Sequence[Run], short: Mapping[str, str]) -> Iterable[str]:
    """Which figures are not there because of a log."""
    missing = [short[run.name] for run in runs if run.log_fault == "missing"]
    damaged = [
        f"{short[run.name]} ({run.log_fault.rstrip('.')})" for run in runs if run.log_fault not in ("", "missing")
    ]
    silent = sum(not run.log_fault and not run_figures.layers_of(run) for run in runs)
    if missing:
        yield sentence("No training curves, spectra and capacities of runs without log.jsonl", missing, ": ")
    if damaged:
        begin = "Training curves, spectra and capacities are missing or incomplete where log.jsonl is damaged"
        yield sentence(begin, damaged, ": ")
    if silent:
        whose = "No log says" if silent == len(runs) else f"{silent} of {len(runs)} logs do not say"
        yield f"{whose} what the layers remember; older ones cannot. These runs have no spectra and capacities."


def repeats_of(
    experiments: Sequence[Experiment], name: Callable[[Run], str]
) -> tuple[list[tuple[str, str]], list[str]]:
    """The runs that are not counted, because another of the same recipe and seed is; and where the two differ."""
    pairs, differing = [], []
    for e in experiments:
        for run in e.repeats:
            counted = next(other for other in e.runs if other.seed == run.seed)
            same = run.accuracy == counted.accuracy
            but = "" if same else f", though its numbers differ: ACC {run.acc:.2f}, not {counted.acc:.2f}"
            pairs.append((name(run), f"repeats seed {run.seed} of {name(counted)}; not counted{but}"))
            if not same:
                differing.append(
                    f"{name(run)} and {name(counted)} have the same recipe and seed, but other accuracies: "
                    f"ACC {run.acc:.2f} and {counted.acc:.2f}. Only {name(counted)} is counted, as the first by name; "
                    "leave one of them out."
                )
    return pairs, differing


def sentence(begin: str, others: Sequence[str], between: str = "; ") -> str:
    return f"{begin}{between * bool(others)}{'; '.join(others[:3])}{'; and more' * (len(others) > 3)}."

"""What there is to say about a report beside its numbers: what they rest on, and what is missing and why."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from codecl.report.experiments import Experiment
from codecl.report.records import Run
from codecl.report.transfer import few


def origin_note(runs: Sequence[Run]) -> str:
    versions = sorted({f"codecl {run.result.versions.get('codecl', '?')}" for run in runs})
    seeds = sorted({run.seed for run in runs})
    return f"Recorded by {', '.join(versions)}; seeds {', '.join(map(str, seeds))}."


def log_notes(runs: Sequence[Run], short: Mapping[str, str]) -> Iterator[str]:
    """Which figures are missing because of a log."""
    faults = {short[run.name]: run.record.log_fault.removeprefix("is damaged: ").rstrip(".") for run in runs}
    missing = [name for name, fault in faults.items() if fault == "missing"]
    damaged = [f"{name} ({fault})" for name, fault in faults.items() if fault not in ("", "missing")]
    if missing:
        yield f"No training curves, spectra and capacities of runs without log.jsonl: {few(missing)}."
    if damaged:
        begin = "Training curves, spectra and capacities are missing or incomplete where log.jsonl is damaged"
        yield f"{begin}: {few(damaged)}."


def repeat_notes(
    experiments: Sequence[Experiment], name: Callable[[Run], str]
) -> tuple[list[tuple[str, str]], list[str]]:
    """The runs that are not counted, because another of the same recipe and seed is; and warnings where they differ."""
    repeats, warnings = [], []
    for e in experiments:
        for run in e.repeats:
            counted = next(other for other in e.runs if other.seed == run.seed)
            this, that = name(run), name(counted)
            acc, counted_acc = f"{run.result.acc:.2f}", f"{counted.result.acc:.2f}"
            reason = f"repeats seed {run.seed} of {that}; not counted"
            if run.result.accuracy != counted.result.accuracy:
                reason += f", though its numbers differ: ACC {acc}, not {counted_acc}"
                warnings.append(
                    f"{this} and {that} have the same recipe and seed, but other accuracies: ACC {acc} and "
                    f"{counted_acc}. Only {that} is counted, as the first by name; leave one of them out."
                )
            repeats.append((this, reason))
    return repeats, warnings

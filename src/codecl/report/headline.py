"""The first thing a report says: who is ahead, by how much, and whether that is more than noise."""

from __future__ import annotations

from collections.abc import Sequence

from codecl.report.experiments import Experiment, by_condition
from codecl.report.tables import ACC, acc_of
from codecl.report.transfer import Transfer, difference


def headlines(experiments: Sequence[Experiment], transfers: Sequence[Transfer]) -> dict[str, str]:
    """A sentence for each condition, by its title. The best experiment of a condition comes first."""
    base = {transfer.condition: transfer.base for transfer in transfers}
    groups = by_condition(experiments)
    return {group[0].condition.title(): headline(group, base.get(group[0].condition)) for group in groups}


def headline(group: Sequence[Experiment], base: Experiment | None) -> str:
    """Who of a condition is ahead of the next and of the baseline. What learns all tasks at once does not compete."""
    competing = [e for e in group if not e.joint] or list(group)
    best, *others = competing
    if not others:
        return f"{best.label()} alone: ACC {ACC.text(best)} % ({_seeds(len(best.runs))})."
    rivals = {others[0]: "the next"}
    if base is not None and base is not best:
        rivals[base] = "the next and the baseline" if base is others[0] else "the baseline"
    apart = [f"{_difference(best, rival)} over {rival.label()}, {role}" for rival, role in rivals.items()]
    said = [f"{words} ({_verdict(best, rival)})" for words, rival in zip(apart, rivals, strict=True)]
    return f"{best.label()} is ahead with ACC {ACC.text(best)} %: {'; '.join(said)}."


def _difference(best: Experiment, rival: Experiment) -> str:
    found = difference(best, rival).number
    return f"{acc_of(best) - acc_of(rival) if found is None else found:+z.2f}"


def _verdict(best: Experiment, rival: Experiment) -> str:
    """Whether the difference is more than noise, from the seeds that both have."""
    cell = difference(best, rival)
    if not cell.runs:
        return "no seed in common, may be noise"
    if cell.interval is None:
        return "one seed, may be noise"
    low, high = cell.interval
    sure = "more than noise" if low > 0 else "may be noise"
    return f"{_seeds(cell.runs)}, 95 % interval {low:z.2f} to {high:z.2f}, {sure}"


def _seeds(count: int) -> str:
    return f"{count} seed{'s' * (count != 1)}"

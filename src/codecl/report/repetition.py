"""What a record says beside what came of running its recipe again."""

from __future__ import annotations

from collections.abc import Mapping

from codecl.runs.records import Result
from codecl.text import table


def compare_repetitions(recorded: Mapping[str, Result], again: Mapping[str, Result]) -> str:
    """A row for every run that was repeated, and how many came out the same to the last digit."""
    apart = {name: largest_difference(recorded[name], result) for name, result in again.items()}
    rows = [
        [
            name,
            f"{recorded[name].acc:.2f}",
            f"{again[name].acc:.2f}",
            ("the same" if not by else f"{by:.2f}") + _other_data(recorded[name], again[name]),
        ]
        for name, by in apart.items()
    ]
    same = sum(not by for by in apart.values())
    head = ["run", "ACC % recorded", "ACC % again", "an accuracy differs by up to"]
    return f"{table(head, rows)}\n{same} of {len(rows)} the same in every accuracy, to the last digit"


def _other_data(recorded: Result, again: Result) -> str:
    return "" if recorded.data == again.data else f" (data: {recorded.data}, and {again.data} again)"


def largest_difference(recorded: Result, again: Result) -> float:
    """Between the accuracies of all tasks after all tasks, in points; what only one of the two has counts in full."""
    pairs = [
        (before or 0.0, after or 0.0)
        for before_row, after_row in zip(recorded.accuracy, again.accuracy, strict=True)
        for before, after in zip(before_row, after_row, strict=True)
    ]
    return max(abs(before - after) for before, after in pairs)

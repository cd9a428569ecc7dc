"""The measures of a run, from its accuracy matrix.

``A[i][j]`` is the accuracy on task ``j`` after learning task ``i``, in percent, None where it was not measured. With
``T`` tasks, numbered from 0, a finished run has ``T`` rows; a run that learned all tasks at once has one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

Matrix = Sequence[Sequence[float | None]]


def acc(A: Matrix) -> float:
    """ACC, the mean accuracy over all tasks in the end: ``1/T Σⱼ A[T−1][j]``.

    >>> acc([[80.0, None], [70.0, 90.0]])
    80.0
    """
    return _mean(final(A))


def bwt(A: Matrix) -> float | None:
    """BWT, what later tasks did to earlier ones: ``1/(T−1) Σ_{j<T−1} (A[T−1][j] − A[j][j])``.

    None where no task came later: with one task, or with all learned at once.

    >>> bwt([[80.0, None], [70.0, 90.0]])
    -10.0
    """
    last = final(A)
    if len(A) == 1:
        return None
    return _mean([end - begin for end, begin in zip(last[:-1], learned(A)[:-1], strict=True)])


def fwt(A: Matrix, baseline: Matrix) -> float:
    """FWT relative to another method's run ``B``, on each task as it was learned: ``1/T Σᵢ (A[i][i] − B[i][i])``.

    >>> fwt([[80.0, None], [70.0, 90.0]], baseline=[[78.0, None], [60.0, 86.0]])
    3.0
    """
    for name, matrix in {"A": A, "the baseline": baseline}.items():
        if together(matrix):
            raise ValueError(f"{name} has one row: its tasks were learned at once, so nothing was transferred forward.")
    ours, theirs = learned(A), learned(baseline)
    if len(ours) != len(theirs) or len(A[0]) != len(baseline[0]):
        raise ValueError(
            f"the run has {len(ours)} of {len(A[0])} tasks and the baseline {len(theirs)} of {len(baseline[0])}. "
            "Compare finished runs of the same benchmark, cut to the same number of tasks."
        )
    return _mean([a - b for a, b in zip(ours, theirs, strict=True)])


def forgetting(A: Matrix) -> float | None:
    """How far tasks fell from their best: ``1/(T−1) Σ_{j<T−1} (max_{j≤i<T−1} A[i][j] − A[T−1][j])``.

    The maximum is over what was measured. None where no task came later.

    >>> forgetting([[80.0, None, None], [85.0, 60.0, None], [70.0, 66.0, 90.0]])
    4.5
    """
    last, first = final(A), learned(A)
    if len(A) == 1:
        return None
    best = [max([first[j], *(row[j] or 0.0 for row in A[j:-1])]) for j in range(len(A) - 1)]
    return _mean([peak - end for peak, end in zip(best, last[:-1], strict=True)])


def learning_accuracy(A: Matrix) -> float:
    """The mean accuracy on each task when it had just been learned: ``1/T Σⱼ A[j][j]``.

    >>> learning_accuracy([[80.0, None], [70.0, 90.0]])
    85.0
    """
    final(A)
    return _mean(learned(A))


def average_over_seen(A: Matrix) -> list[float | None]:
    """After each task the mean accuracy over the tasks seen: ``aᵢ = 1/(i+1) Σ_{j≤i} A[i][j]``.

    It goes as far as the run has come. None where one of them was not measured. For tasks learned at once there is one
    value, over all of them.

    >>> average_over_seen([[80.0, None], [70.0, 90.0]])
    [80.0, 80.0]
    """
    rows = [final(A)] if together(A) else [row[: i + 1] for i, row in enumerate(_checked(A))]
    whole = [[value for value in row if value is not None] for row in rows]
    return [_mean(found) if len(found) == len(row) else None for found, row in zip(whole, rows, strict=True)]


def area_over_seen(A: Matrix) -> float | None:
    """The area under ``average_over_seen``, as a share of its width: ``1/T Σᵢ aᵢ``.

    None where an ``aᵢ`` was not measured, and for several tasks learned at once, which have no curve.

    >>> area_over_seen([[80.0, None], [60.0, 90.0]])
    77.5
    """
    final(A)
    curve = [value for value in average_over_seen(A) if value is not None]
    return None if together(A) or len(curve) < len(A) else _mean(curve)


def learned(A: Matrix) -> list[float]:
    """The accuracy on each task when it had just been learned: the diagonal, as far as the run has come.

    For tasks learned at once that is the one row.
    """
    rows = _checked(A)
    return final(A) if together(A) else [_measured(rows, i, i) for i in range(len(rows))]


def final(A: Matrix) -> list[float]:
    """The accuracy on each task in the end: the last row of a finished run."""
    rows = _checked(A)
    tasks = len(rows[0])
    if len(rows) != tasks and not together(A):
        raise ValueError(f"the run is not finished: {len(rows)} of {tasks} tasks are learned. Resume it first.")
    return [_measured(rows, len(rows) - 1, j) for j in range(tasks)]


def together(A: Matrix) -> bool:
    """Whether all of several tasks were learned at once: one row without gaps."""
    return len(_checked(A)) == 1 and len(A[0]) > 1 and None not in A[0]


@dataclass(frozen=True)
class Spread:
    """Mean and standard deviation over ``n`` runs; ``std`` divides by ``n − 1`` and is None for one run."""

    mean: float
    std: float | None
    n: int

    def __str__(self) -> str:
        spread = "" if self.std is None else f" ± {self.std:.2f}"
        return f"{self.mean:z.2f}{spread} (n={self.n})"


def mean_std(values: Sequence[float]) -> Spread:
    """Mean and standard deviation of a sample.

    >>> print(mean_std([64.0, 66.0, 68.0]))
    66.00 ± 2.00 (n=3)
    """
    if not values:
        raise ValueError("there is no mean of no values. Give the result of at least one run.")
    for i, value in enumerate(values):
        if not _is_number(value) or not math.isfinite(value):
            raise ValueError(f"value {i} is {value!r}, expected a finite number. Leave runs without a result out.")
    mean, n = _mean(values), len(values)
    std = None if n == 1 else math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (n - 1))
    return Spread(mean, std, n)


def _checked(A: Matrix) -> Matrix:
    """``A``, if it is the accuracy matrix of a run, finished or not."""
    if not A or not A[0]:
        raise ValueError(f"the accuracy matrix is empty: {A!r}. Learn at least one task.")
    lengths = [len(row) for row in A]
    if len(set(lengths)) > 1:
        raise ValueError(f"the rows of the accuracy matrix have lengths {lengths}; None is for what was not measured.")
    if len(A) > len(A[0]):
        raise ValueError(f"the accuracy matrix has {len(A)} rows for {len(A[0])} tasks: one after each task, or one.")
    for i, row in enumerate(A):
        for j, value in enumerate(row):
            if value is not None and not (_is_number(value) and 0 <= value <= 100):
                raise ValueError(f"accuracy[{i}][{j}] is {value!r}, expected percent from 0 to 100, or None.")
    return A


def _measured(A: Matrix, i: int, j: int) -> float:
    value = A[i][j]
    if value is None:
        raise ValueError(f"accuracy[{i}][{j}] was not measured (None): evaluate task {j} after task {i}.")
    return value


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)

"""Metrics against examples worked out by hand."""

import doctest
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from codecl.training import metrics
from codecl.training.metrics import (
    acc,
    area_over_seen,
    average_over_seen,
    bwt,
    final,
    forgetting,
    fwt,
    learned,
    learning_accuracy,
    mean_std,
)

# Task 0 falls 80 → 85 → 70, task 1 rises 60 → 66, task 2 is learned to 90.
THREE = [[80.0, None, None], [85.0, 60.0, None], [70.0, 66.0, 90.0]]
ONE = [[75.0]]
JOINT = [[81.0, 72.0, 93.0]]  # all at once
UNFINISHED = THREE[:2]
ALL = [acc, bwt, learned, final, forgetting, learning_accuracy, average_over_seen, area_over_seen]


def test_the_examples_in_the_docstrings():
    failed, tried = doctest.testmod(metrics)
    assert (failed, tried) == (0, 8)


def test_by_hand():
    assert acc(THREE) == pytest.approx((70 + 66 + 90) / 3)
    assert bwt(THREE) == pytest.approx(((70 - 80) + (66 - 60)) / 2) == -2
    assert learned(THREE) == [80, 60, 90]
    assert final(THREE) == [70, 66, 90]
    assert forgetting(THREE) == pytest.approx(((85 - 70) + (60 - 66)) / 2) == 4.5
    assert learning_accuracy(THREE) == pytest.approx((80 + 60 + 90) / 3)
    assert average_over_seen(THREE) == pytest.approx([80, (85 + 60) / 2, (70 + 66 + 90) / 3])
    assert area_over_seen(THREE) == pytest.approx((80 + (85 + 60) / 2 + (70 + 66 + 90) / 3) / 3)


def test_what_was_not_measured_between_has_no_average_and_is_no_peak():
    sparse = [[80.0, None, None], [None, 60.0, None], [70.0, 66.0, 90.0]]
    assert average_over_seen(sparse) == [80, None, pytest.approx((70 + 66 + 90) / 3)]
    assert area_over_seen(sparse) is None
    assert forgetting(sparse) == pytest.approx(((80 - 70) + (60 - 66)) / 2)


def test_the_published_matrix_of_dfgp():
    """methods.md 7.1: diagonal and last row in the log, ACC 74.51 and BWT −1.46 from unrounded accuracies."""
    diagonal = [77.2, 70.1, 75.8, 74.0, 76.6, 74.4, 78.3, 74.9, 76.2, 80.7]
    last = [75.0, 67.6, 74.2, 72.6, 75.3, 73.9, 76.3, 73.1, 76.4, 80.7]
    A = [[diagonal[i] if i == j else None for j in range(10)] for i in range(9)] + [last]
    assert acc(A) == pytest.approx(74.51, abs=0.005)
    assert bwt(A) == pytest.approx(-1.46, abs=0.02)


def test_accuracies_on_tasks_to_come_do_not_count():
    early = [[80.0, 75.0, 99.0], [85.0, 60.0, 99.0], [70.0, 66.0, 90.0]]
    for metric in ALL:
        assert metric(early) == metric(THREE)


def test_one_task():
    assert acc(ONE) == 75
    assert bwt(ONE) is None
    assert learned(ONE) == final(ONE) == average_over_seen(ONE) == [75]
    assert forgetting(ONE) is None
    assert learning_accuracy(ONE) == area_over_seen(ONE) == 75


def test_all_at_once():
    assert acc(JOINT) == 82
    assert bwt(JOINT) is None
    assert learned(JOINT) == final(JOINT) == [81, 72, 93]
    assert forgetting(JOINT) is None
    assert area_over_seen(JOINT) is None
    assert learning_accuracy(JOINT) == 82
    assert average_over_seen(JOINT) == [82]


@pytest.mark.parametrize("A", [UNFINISHED, THREE[:1]])
def test_of_an_unfinished_run_there_is_what_was_measured(A):
    assert learned(A) == [80, 60][: len(A)]
    assert average_over_seen(A) == [80, 72.5][: len(A)]
    for metric in (acc, bwt, final, forgetting, learning_accuracy, area_over_seen):
        with pytest.raises(ValueError, match=f"not finished: {len(A)} of 3 tasks"):
            metric(A)


def test_fwt_by_hand():
    gpm = [[78.0, None, None], [0.0, 61.0, None], [0.0, 0.0, 84.0]]
    assert fwt(THREE, gpm) == pytest.approx(((80 - 78) + (60 - 61) + (90 - 84)) / 3)
    assert fwt(gpm, THREE) == -fwt(THREE, gpm)
    assert fwt(THREE, THREE) == 0
    assert fwt(UNFINISHED, gpm[:2]) == 0.5


@pytest.mark.parametrize(
    ("A", "baseline", "message"),
    [
        (THREE, [[50.0, None], [50.0, 50.0]], "3 of 3 tasks and the baseline 2 of 2"),
        (THREE, UNFINISHED, "3 of 3 tasks and the baseline 2 of 3"),
        (THREE[:2], [[50.0, None], [50.0, 50.0]], "2 of 3 tasks and the baseline 2 of 2"),
        (JOINT, THREE, "A has one row"),
        (THREE, JOINT, "the baseline has one row"),
        (THREE, [], "empty"),
    ],
)
def test_fwt_needs_two_runs_of_the_same_tasks(A, baseline, message):
    with pytest.raises(ValueError, match=message):
        fwt(A, baseline)


@pytest.mark.parametrize("metric", ALL)
@pytest.mark.parametrize(
    ("A", "message"),
    [
        ([], "empty"),
        ([[]], "empty"),
        ([[80.0], [70.0, 60.0]], r"lengths \[1, 2\]"),
        ([[80.0], [70.0]], "2 rows for 1 tasks"),
        ([[80.0, None], [-1.0, 60.0]], r"accuracy\[1\]\[0\] is -1.0, expected percent"),
        ([[80.0, None], [70.0, math.nan]], r"accuracy\[1\]\[1\] is nan"),
        ([[80.0, 100.5], [70.0, 60.0]], r"accuracy\[0\]\[1\] is 100.5"),
        ([[True, None], [70.0, 60.0]], r"accuracy\[0\]\[0\] is True"),
        ([["80", None], [70.0, 60.0]], r"accuracy\[0\]\[0\] is '80'"),
    ],
)
def test_what_is_no_accuracy_matrix_is_refused(metric, A, message):
    with pytest.raises(ValueError, match=message):
        metric(A)


@pytest.mark.parametrize(
    ("metric", "A", "place"),
    [
        (acc, [[80.0, None], [None, 60.0]], r"\[1\]\[0\]"),
        (bwt, [[None, None], [70.0, 60.0]], r"\[0\]\[0\]"),
        (learned, [[None, None], [70.0, 60.0]], r"\[0\]\[0\]"),
    ],
)
def test_a_needed_accuracy_that_was_not_measured_is_named(metric, A, place):
    with pytest.raises(ValueError, match=rf"accuracy{place} was not measured"):
        metric(A)


@st.composite
def complete(draw):
    """A matrix with every task measured every time."""
    tasks = draw(st.integers(2, 6))
    return [[draw(st.floats(0, 100)) for _ in range(tasks)] for _ in range(tasks)]


@given(complete())
def test_laws(A):
    T = len(A)
    earlier = sum(learned(A)[:-1])
    assert T * acc(A) == pytest.approx(earlier + (T - 1) * bwt(A) + A[-1][-1], abs=1e-9)
    assert acc(A) == pytest.approx(average_over_seen(A)[-1])
    assert T * area_over_seen(A) == pytest.approx(sum(average_over_seen(A)))
    assert forgetting(A) >= -bwt(A) - 1e-9  # the best is no less than the first


@given(complete())
def test_forgetting_is_the_loop_of_its_formula(A):
    T, total = len(A), 0.0
    for j in range(T - 1):
        best = -1.0
        for i in range(j, T - 1):
            best = max(best, A[i][j])
        total += best - A[T - 1][j]
    assert forgetting(A) == pytest.approx(total / (T - 1), abs=1e-9)


def test_spread_by_hand():
    """77, 78, 76: mean 77, squared deviations 0, 1, 1."""
    sample = mean_std([77.0, 78.0, 76.0])
    assert (sample.mean, sample.std, sample.n) == (77, 1, 3)
    assert str(sample) == "77.00 ± 1.00 (n=3)"
    assert str(mean_std([-0.001, -0.002])) == "0.00 ± 0.00 (n=2)"
    with pytest.raises(AttributeError):
        sample.mean = 0


def test_one_value_has_no_spread():
    alone = mean_std([77.214])
    assert (alone.mean, alone.std, alone.n) == (77.214, None, 1)
    assert str(alone) == "77.21 (n=1)"


def test_spread_does_not_cancel():
    """Far from zero the textbook formula ``E[x²] − E[x]²`` loses everything."""
    assert mean_std([1e9 + 1, 1e9 + 2, 1e9 + 3]).std == 1


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([], "no mean of no values"),
        ([1.0, None], "value 1 is None"),
        ([math.nan], "value 0 is nan"),
        ([1.0, math.inf], "value 1 is inf"),
    ],
)
def test_spread_of_nonsense(values, message):
    with pytest.raises(ValueError, match=message):
        metrics.mean_std(values)

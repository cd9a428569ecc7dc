"""Who is ahead, and whether that is more than noise: intervals against scipy's, sentences against sums by hand."""

import pytest

from codecl.report.headline import headlines
from codecl.report.interval import mean_interval, t_quantile
from codecl.report.records import find_runs
from codecl.report.tables import analyse
from tests.report.cases import FIRST, SECOND, write_run


@pytest.mark.parametrize("freedom", [1, 2, 3, 4, 7, 10, 29, 30, 101])
def test_quantiles_are_those_of_scipy(freedom):
    stats = pytest.importorskip("scipy.stats")
    assert t_quantile(freedom) == pytest.approx(stats.t.ppf(0.975, freedom), rel=1e-9)


def test_intervals_are_those_of_scipy():
    stats = pytest.importorskip("scipy.stats")
    values = [1.5, -0.25, 3.0, 2.75]
    expected = stats.t.interval(0.95, 3, loc=1.75, scale=stats.sem(values))
    assert mean_interval(values) == pytest.approx(expected, rel=1e-9)
    assert mean_interval([2.0, 2.0]) == (2.0, 2.0)
    assert mean_interval([2.0]) is None


def said(folder):
    made = analyse(find_runs([folder], folder).runs, "gpm")
    return list(headlines(made.main, made.transfers).values())


def write_seeds(folder, method, accs):
    for seed, acc in enumerate(accs):
        write_run(folder / f"{method}-{seed}", method, [[acc, None], [acc, acc]], seed=seed)


def test_a_difference_that_is_more_than_noise_and_one_that_may_be(tmp_path):
    write_seeds(tmp_path, "gpm", [60.0, 62.0, 64.0])
    write_seeds(tmp_path, "code-cl", [70.0, 72.0, 75.0])  # 10, 10 and 11 above gpm
    write_seeds(tmp_path, "sgp", [69.0, 74.0, 73.0])  # 1 below, 2 above, 2 below code-cl
    assert said(tmp_path) == [
        "code-cl is ahead with ACC 72.33 ± 2.52 %: +0.33 over sgp, the next (3 seeds, 95 % interval -4.84 to 5.50, "
        "may be noise); +10.33 over gpm, the baseline (3 seeds, 95 % interval 8.90 to 11.77, more than noise)."
    ]


def test_one_seed_is_no_proof(tmp_path):
    write_run(tmp_path / "a", "gpm", FIRST)
    assert said(tmp_path) == ["gpm alone: ACC 80.00 % (1 seed)."]
    write_run(tmp_path / "b", "sgp", SECOND)
    write_run(tmp_path / "m", "multitask", [[99.0, 99.0]])  # an upper bound is not ahead
    assert said(tmp_path) == [
        "sgp is ahead with ACC 88.00 %: +8.00 over gpm, the next and the baseline (one seed, may be noise)."
    ]


def test_a_baseline_that_is_ahead_is_compared_with_the_next(tmp_path):
    write_seeds(tmp_path, "gpm", [70.0, 71.0])
    write_run(tmp_path / "a", "sgp", [[60.0, None], [60.0, 60.0]], seed=7)
    assert said(tmp_path) == [
        "gpm is ahead with ACC 70.50 ± 0.71 %: +10.50 over sgp, the next (no seed in common, may be noise)."
    ]

"""What the paper prints stands beside what came of its protocol and of the fast one, and of nothing else."""

from pathlib import Path

from codecl.report.beside_paper import beside_paper
from codecl.report.experiments import find_experiments
from codecl.report.records import find_runs
from tests.report.cases import record


def rows(folder: Path, benchmark: str = "split-cifar100") -> dict[str, list[str]]:
    """The cells of the table by the name of their row, the head under ``method``."""
    text = beside_paper(benchmark, find_experiments(find_runs([folder], folder).runs))
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if "---" not in line]
    return {row[0]: row[1:] for row in cells if len(row) > 1}


def test_protocol_and_fast_schedule_stand_in_one_row_with_their_own_baselines(tmp_path):
    record(tmp_path, 0, 76.0, -1.0)
    record(tmp_path, 1, 78.0, -2.0)
    record(tmp_path, 0, 70.0, 0.0, preset="fast")
    record(tmp_path, 0, 71.0, 0.0, method="gpm")
    record(tmp_path, 0, 69.5, 0.0, method="gpm", preset="fast")
    found = rows(tmp_path)
    assert found["method"] == [
        f"{name}: {n}" for name in ("the paper", "protocol", "fast") for n in ("ACC", "BWT", "FWT")
    ]
    assert found["code-cl"] == [
        *("77.21 ± 0.32", "-1.1 ± 0.28", "5.92 ± 0.34"),
        *("77.00 ± 1.41 (2 seeds)", "-1.50 ± 0.71", "5.90"),  # nine tasks were learned to 77, one to 76
        *("70.00 (1 seed)", "0.00", "0.50"),
    ]
    assert found["gpm"] == [
        *("72.06 ± 0.29", "-0.2 ± 0.19", "–"),
        *("71.00 (1 seed)", "0.00", "–"),
        *("69.50 (1 seed)", "0.00", "–"),
    ]
    assert found["multitask"] == ["79.58 ± 0.54", *["–"] * 8]


def test_rows_are_in_the_order_of_the_paper_and_readings_side_by_side(tmp_path):
    for preset in ("fast-own", "fast", "fast-official"):
        record(tmp_path, 0, 70.0, 0.0, preset=preset)
    record(tmp_path, 0, 60.0, 0.0, method="finetune", preset="fast")
    names = list(rows(tmp_path))
    assert names[:3] == ["method", "finetune", "multitask"]
    assert names[-4:] == ["gpm", "code-cl", "code-cl (official)", "code-cl (own)"]
    assert rows(tmp_path)["code-cl (own)"][:3] == ["–"] * 3  # the paper does not have this reading


def test_what_was_cut_short_or_varied_stands_elsewhere(tmp_path):
    record(tmp_path, 0, 60.0, 0.0, tasks=5)
    record(tmp_path, 0, 60.0, 0.0, epochs=6)
    record(tmp_path, 0, 60.0, 0.0, changes={"aperture": 2.0})
    assert rows(tmp_path) == {}


def test_how_a_run_was_computed_is_named_and_gives_way_to_the_usual(tmp_path):
    record(tmp_path, 0, 75.0, -1.0, changes={"precision": "bf16"})
    assert rows(tmp_path)["code-cl"][3] == "75.00 (1 seed, bf16)"
    record(tmp_path, 0, 76.0, -1.0)
    assert rows(tmp_path)["code-cl"][3] == "76.00 (1 seed)"


def test_seeds_that_were_computed_otherwise_fill_up_a_row(tmp_path):
    record(tmp_path, 0, 76.0, -1.0)
    record(tmp_path, 0, 70.0, -1.0, changes={"precision": "bf16"})
    record(tmp_path, 1, 78.0, -2.0, changes={"precision": "bf16"})
    record(tmp_path, 1, 71.0, 0.0, method="gpm", changes={"precision": "bf16"})
    record(tmp_path, 2, 73.0, 0.0, method="gpm", changes={"precision": "bf16"})
    found = rows(tmp_path)
    # Seed 0 counts as usual. Over GPM it is seed 1: nine tasks were learned to 80, and one to 78.
    assert found["code-cl"][3:] == ["77.00 ± 1.41 (2 seeds, 1 in bf16)", "-1.50 ± 0.71", "8.80"]
    assert found["gpm"][3] == "72.00 ± 1.41 (2 seeds, bf16)"


def test_a_benchmark_that_the_paper_lacks_has_no_columns_of_it(tmp_path):
    record(tmp_path, 0, 95.0, 0.0, benchmark="permuted-mnist", preset="fast")
    found = rows(tmp_path, "permuted-mnist")
    assert found == {"method": ["fast: ACC", "fast: BWT", "fast: FWT"], "code-cl": ["95.00 (1 seed)", "0.00", "–"]}

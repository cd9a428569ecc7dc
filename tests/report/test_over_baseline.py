"""What tables say of a method over another one: forward transfer and the difference in ACC, paired by seed."""

import csv
import io

import pytest

from codecl.report.render import csv_text
from codecl.report.table import Cell
from tests.report.cases import FIRST, SECOND, cell, lines, tables, write_run, write_two_seeds


def test_forward_transfer_is_paired_by_seed(tmp_path):
    write_run(tmp_path / "gpm", "gpm", FIRST)
    write_run(tmp_path / "a", "code-cl", SECOND)
    write_run(tmp_path / "b", "code-cl", FIRST, seed=1)  # gpm has no such run
    table = tables(tmp_path)["results"]
    assert [(line["method"], line["FWT % over gpm"], line["seeds"], line["runs"]) for line in lines(table)] == [
        ("code-cl", "4.00", "2", ("a", "b")),  # ((84 − 80) + (94 − 90)) / 2, of seed 0 alone
        ("gpm", "0.00", "1", ("gpm",)),
    ]
    assert cell(table, "FWT % over gpm").runs == cell(table, "ACC over gpm").runs == 1


def test_forward_transfer_over_another_method(tmp_path):
    write_run(tmp_path / "gpm", "gpm", FIRST)
    write_run(tmp_path / "a", "code-cl", SECOND)
    found = {line["method"]: line["FWT % over code-cl"] for line in lines(tables(tmp_path, "code-cl")["results"])}
    assert found == {"gpm": "-4.00", "code-cl": "0.00"}


def test_without_the_baseline_there_is_no_forward_transfer(tmp_path):
    write_run(tmp_path / "a", "code-cl")
    write_run(tmp_path / "b", "gpm", tasks=2, epochs=7)  # of another budget
    rows = lines(tables(tmp_path)["results"])
    found = {line["method"]: (line["FWT % over gpm"], line["ACC over gpm"]) for line in rows}
    assert found == {"code-cl": ("–", "–"), "gpm": ("0.00", "baseline")}


def test_of_several_baselines_the_one_of_the_recipe_file_counts(tmp_path):
    write_run(tmp_path / "a", "gpm", SECOND, changes={"threshold": 0.9})
    write_run(tmp_path / "b", "gpm", FIRST)
    write_run(tmp_path / "c", "sgp", FIRST)
    found = {line["method"]: line["FWT % over gpm"] for line in lines(tables(tmp_path)["results"])}
    assert found == {"sgp": "0.00", "gpm": "0.00"}


def flat(acc):
    """An accuracy matrix of two tasks with this ACC and no forgetting."""
    return [[acc, None], [acc, acc]]


def test_the_baseline_does_not_compete_with_itself(tmp_path):
    write_two_seeds(tmp_path, "gpm", SECOND, SECOND)
    write_two_seeds(tmp_path, "code-cl", FIRST, FIRST)
    write_two_seeds(tmp_path, "sgp", [[82.0, None], [70.0, 90.0]], [[82.0, None], [70.0, 90.0]])
    table = tables(tmp_path)["results"]
    ranks = {line["method"]: cell(table, "FWT % over gpm", i).rank for i, line in enumerate(lines(table))}
    assert ranks == {"gpm": 0, "code-cl": 2, "sgp": 1}


def test_the_difference_is_paired_by_seed_and_has_its_interval(tmp_path):
    write_two_seeds(tmp_path, "gpm", flat(60.0), flat(70.0))
    write_two_seeds(tmp_path, "code-cl", flat(64.0), flat(75.0))  # 4 and 5 above
    write_two_seeds(tmp_path, "sgp", flat(65.0), flat(68.0))  # 5 above and 2 below
    table = tables(tmp_path)["results"]
    assert [line["method"] for line in lines(table)] == ["code-cl", "sgp", "gpm"]  # the best comes first
    half = 12.7062 * 0.5**0.5 / 2**0.5  # t of one degree of freedom, s = √½, n = 2
    assert cell(table, "ACC over gpm") == Cell(4.5, None, 2, interval=pytest.approx((4.5 - half, 4.5 + half), abs=1e-3))
    assert [line["ACC over gpm"] for line in lines(table)] == [
        "+4.50 [-1.85, +10.85]",
        "+1.50 [-42.97, +45.97]",
        "baseline",
    ]
    row = next(csv.DictReader(io.StringIO(csv_text(table))))
    assert [float(row[f"ACC over gpm{end}"]) for end in (" low", "", " high")] == pytest.approx(
        [-1.853, 4.5, 10.853], abs=1e-3
    )


def test_where_it_is_not_clear_which_baseline_is_meant_there_is_none(tmp_path):
    write_run(tmp_path / "a", "gpm", changes={"threshold": 0.9})
    write_run(tmp_path / "b", "gpm", changes={"threshold": 0.8, "increment": 0.1})  # no ablation: two values differ
    write_run(tmp_path / "c", "sgp")
    assert "FWT % over gpm" not in {column.name for column in tables(tmp_path)["results"].columns}

"""The numbers of a report: found, grouped, averaged and ranked; checked against sums done by hand."""

import csv
import io
import json
from pathlib import Path

import pytest

from codecl.errors import UsageError
from codecl.report.experiments import find_experiments
from codecl.report.records import find_runs
from codecl.report.render import csv_text
from codecl.report.table import Cell, Column, Row, Section, make_table
from codecl.report.tables import analyse
from tests.report.cases import FIRST, SECOND, cell, lines, skipped, tables, task, write_run

ROOT = Path(__file__).parents[2]


def test_mean_and_deviation_over_seeds(tmp_path):
    write_run(tmp_path / "a", "code-cl", FIRST, seed=0)
    write_run(tmp_path / "b", "code-cl", SECOND, seed=1)
    table = tables(tmp_path)["accuracy"]
    assert cell(table, "ACC %") == Cell(84.0, pytest.approx(32**0.5), 2)  # (4² + 4²) / (2 − 1)
    assert cell(table, "BWT %") == Cell(-6.0, pytest.approx(32**0.5), 2)
    (line,) = lines(table)
    assert line == {
        "section": "split-cifar100, preset paper, 2/10 tasks, whole schedule",
        "runs": ("a", "b"),
        "method": "code-cl",
        "seeds": "2",
        "ACC %": "84.00 ± 5.66",
        "BWT %": "-6.00 ± 5.66",
        "paper ACC": "77.21 ± 0.32",
        "paper BWT": "-1.1 ± 0.28",
    }


def test_one_seed_has_no_deviation_and_one_task_no_backward_transfer(tmp_path):
    write_run(tmp_path / "a", "code-cl", [[75.0]])
    (line,) = lines(tables(tmp_path)["accuracy"])
    assert (line["ACC %"], line["seeds"]) == ("75.00", "1")
    assert "BWT %" not in line  # nobody has one


def test_forward_transfer_is_paired_by_seed(tmp_path):
    write_run(tmp_path / "gpm", "gpm", FIRST)
    write_run(tmp_path / "a", "code-cl", SECOND)
    write_run(tmp_path / "b", "code-cl", FIRST, seed=1)  # gpm has no such run
    table = tables(tmp_path)["transfer"]
    assert [(line["method"], line["FWT % over gpm"], line["seeds"], line["runs"]) for line in lines(table)] == [
        ("gpm", "0.00", "1", ("gpm",)),
        ("code-cl", "4.00", "1", ("a",)),  # ((84 − 80) + (94 − 90)) / 2
    ]


def test_forward_transfer_over_another_method(tmp_path):
    write_run(tmp_path / "gpm", "gpm", FIRST)
    write_run(tmp_path / "a", "code-cl", SECOND)
    found = {line["method"]: line["FWT % over code-cl"] for line in lines(tables(tmp_path, "code-cl")["transfer"])}
    assert found == {"gpm": "-4.00", "code-cl": "0.00"}


def test_without_the_baseline_there_is_no_forward_transfer(tmp_path):
    write_run(tmp_path / "a", "code-cl")
    write_run(tmp_path / "b", "gpm", tasks=2, epochs=7)  # of another budget
    assert set(tables(tmp_path)) == {"accuracy", "memory"}


def test_of_several_baselines_the_one_of_the_recipe_file_counts(tmp_path):
    write_run(tmp_path / "a", "gpm", SECOND, changes={"threshold": 0.9})
    write_run(tmp_path / "b", "gpm", FIRST)
    write_run(tmp_path / "c", "sgp", FIRST)
    found = {line["method"]: line["FWT % over gpm"] for line in lines(tables(tmp_path)["transfer"])}
    assert found == {"sgp": "0.00", "gpm": "0.00"}


def test_the_baseline_does_not_compete_with_itself(tmp_path):
    write_run(tmp_path / "gpm", "gpm", SECOND)
    write_run(tmp_path / "a", "code-cl", FIRST)
    write_run(tmp_path / "b", "sgp", [[82.0, None], [70.0, 90.0]])
    table = tables(tmp_path)["transfer"]
    ranks = {line["method"]: cell(table, "FWT % over gpm", i).rank for i, line in enumerate(lines(table))}
    assert ranks == {"gpm": 0, "code-cl": 2, "sgp": 1}


def test_where_it_is_not_clear_which_baseline_is_meant_there_is_none(tmp_path):
    write_run(tmp_path / "a", "gpm", changes={"threshold": 0.9})
    write_run(tmp_path / "b", "gpm", changes={"threshold": 0.8, "increment": 0.1})  # no ablation: two values differ
    write_run(tmp_path / "c", "sgp")
    assert set(tables(tmp_path)) == {"accuracy", "memory"}


def test_multitask_has_no_transfer_and_takes_no_rank(tmp_path):
    write_run(tmp_path / "m", "multitask", [[99.0, 99.0]])
    write_run(tmp_path / "a", "gpm", FIRST)
    write_run(tmp_path / "b", "code-cl", SECOND)
    made = tables(tmp_path)
    assert [(line["method"], line["ACC %"], line["BWT %"]) for line in lines(made["accuracy"])] == [
        ("multitask", "99.00", "–"),
        ("gpm", "80.00", "-10.00"),
        ("code-cl", "88.00", "-2.00"),
    ]
    assert [cell(made["accuracy"], "ACC %", row).rank for row in range(3)] == [0, 2, 1]
    assert [line["method"] for line in lines(made["transfer"])] == ["gpm", "code-cl"]


@pytest.mark.parametrize(
    "other",
    [
        {"epochs": 6},
        {"preset": "official"},
        {"quick": True},
        {"kind": "subset"},
        {"changes": {"split_seed": "run"}},
        {"accuracy": [[80.0, None, None], [70.0, 90.0, None], [70.0, 90.0, 50.0]]},
    ],
)
def test_runs_of_another_budget_or_reading_share_neither_row_nor_rank(tmp_path, other):
    write_run(tmp_path / "a", "code-cl", seed=0)
    write_run(tmp_path / "b", "code-cl", seed=1, **other)
    table = tables(tmp_path)["accuracy"]
    assert [line["runs"] for line in lines(table)] in ([("a",), ("b",)], [("b",), ("a",)])
    assert len({line["section"] for line in lines(table)}) == len(table.sections) == 2
    assert not any(cell(table, "ACC %", section=s).rank for s in (0, 1))


def test_the_preset_counts_even_where_it_changes_nothing(tmp_path):
    for preset in ("paper", "official"):
        write_run(tmp_path / preset, "finetune", benchmark="permuted-digits", preset=preset)
    one, other = find_experiments(find_runs([tmp_path], tmp_path).runs)
    assert one.values == other.values


def test_a_number_is_the_same_however_it_is_written(tmp_path):
    write_run(tmp_path / "a", "code-cl", seed=0, changes={"aperture": 4})
    write_run(tmp_path / "b", "code-cl", seed=1, changes={"aperture": 4.0})
    assert [len(e.runs) for e in find_experiments(find_runs([tmp_path], tmp_path).runs)] == [2]


def test_what_a_run_departs_in_is_named(tmp_path):
    write_run(tmp_path / "a", "code-cl", changes={"aperture": 2, "lr": 0.5})
    assert [line["method"] for line in lines(tables(tmp_path)["accuracy"])] == ["code-cl, aperture = 2, lr = 0.5"]


def test_sd_style_results_say_so(tmp_path):
    write_run(tmp_path / "a", "trgp-sd")
    assert [line["method"] for line in lines(tables(tmp_path)["accuracy"])] == ["trgp-sd (SD-style)"]


def test_the_same_seed_again_is_not_counted(tmp_path):
    write_run(tmp_path / "a", "code-cl", FIRST)
    write_run(tmp_path / "copy", "code-cl", FIRST)
    write_run(tmp_path / "z", "code-cl", SECOND, seed=1)
    (experiment,) = find_experiments(find_runs([tmp_path, tmp_path / "a"], tmp_path).runs)
    assert [run.name for run in experiment.runs] == ["a", "z"]
    assert [run.name for run in experiment.repeats] == ["copy"]


def test_overlapping_classes_have_a_table_with_all_three(tmp_path):
    write_run(tmp_path / "a", "gpm", FIRST, benchmark="ol-cifar100")
    write_run(tmp_path / "b", "code-cl", SECOND, benchmark="ol-cifar100")
    made = tables(tmp_path)
    assert set(made) == {"overlapping", "memory"}
    last = lines(made["overlapping"])[1]
    ours = {name: last[name] for name in ("method", "ACC %", "BWT %", "FWT % over gpm", "paper ACC")}
    assert ours == {
        "method": "code-cl", "ACC %": "88.00", "BWT %": "-2.00", "FWT % over gpm": "4.00", "paper ACC": "76.89 ± 0.42",
    }  # fmt: skip


def test_memory_has_the_formula_and_what_was_measured(tmp_path):
    write_run(tmp_path / "a", "gpm", seed=0)
    write_run(tmp_path / "b", "gpm", seed=1, result={"bytes": {"memory": 14_000, "per_task": 500}})
    (line,) = lines(tables(tmp_path)["memory"])
    assert line["order in the paper"] == "O(N²)"
    assert line["bytes of a layer"] == "8Nr"
    assert line["memory"] == "13 kB ± 1.41 kB"
    assert (line["of it per task"], line["time a run"], line["training epoch"]) == ("500 B", "1m15s", "10.00 s")


def ranks(*values, best="highest", unranked=()):
    rows = [Row((Cell(value, unranked=i in unranked),)) for i, value in enumerate(values)]
    table = make_table("t", "t", [Column("x", best=best)], [Section("s", tuple(rows))])
    return [row.cells[0].rank for row in table.sections[0].rows]


def test_ranks():
    assert ranks(1.0, 3.0, 2.0) == [0, 1, 2]
    assert ranks(1.0, 3.0, 2.0, best="lowest") == [1, 0, 2]
    assert ranks(3.0, 1.0, 3.0, 2.0) == [1, 0, 1, 2]
    assert ranks(3.0, 2.0, 2.0, 1.0) == [1, 2, 2, 0]
    assert ranks(3.001, 3.004, 2.0) == [1, 1, 2]  # they print the same
    assert ranks(5.0) == [0]
    assert ranks(5.0, None) == [0, 0]
    assert ranks(5.0, 5.0) == [0, 0]
    assert ranks(9.0, 5.0, 4.0, unranked=[0]) == [0, 1, 2]


def test_only_whole_records_count(tmp_path):
    write_run(tmp_path / "good", "gpm")
    write_run(tmp_path / "going", "gpm", recipe_only=True, log=[task(0, 0.5)])
    write_run(tmp_path / "new", "gpm", recipe_only=True)
    broken = {
        "acc": {"acc": 99.0},
        "bwt": {"bwt": None},
        "bytes": {"bytes": {}},
        "clock": {"seconds": {"train": 1.0, "between_tasks": 1.0, "evaluate": 1.0, "other": "much"}},
        "field": {"seconds": None},
        "matrix": {"accuracy": [[80.0, None], [70.0]]},
        "percent": {"accuracy": [[800.0, None], [70.0, 90.0]]},
        "recipe": {"settings": {"threshold": 0.5}},
        "seed": {"seed": 7},
        "tasks": {"tasks": 3},
    }
    for name, result in broken.items():
        write_run(tmp_path / "bad" / name, "gpm", result=result)
    write_run(tmp_path / "bad" / "cut", "gpm")
    text = (tmp_path / "bad/cut/result.json").read_text()
    (tmp_path / "bad/cut/result.json").write_text(text[: len(text) // 2])
    write_run(tmp_path / "bad" / "toml", "gpm")
    (tmp_path / "bad/toml/recipe.toml").write_text("method = ")
    found = find_runs([tmp_path], tmp_path)
    assert [run.name for run in found.runs] == ["good"]
    assert skipped(found, "unfinished") == {
        "going": "not finished: 1 task learned",
        "new": "not finished: no task learned yet",
    }
    damaged = skipped(found, "damaged")
    assert list(damaged) == sorted(f"bad/{name}" for name in [*broken, "cut", "toml"])
    for name, words in damaged.items():
        assert name in words
        assert "\n" not in words
    assert "acc is 99.0, but the accuracy matrix gives 80.0" in damaged["bad/acc"]
    assert "threshold is 0.97; here 0.5" in damaged["bad/recipe"]


def test_a_directory_that_is_not_there_is_named(tmp_path):
    with pytest.raises(UsageError, match=r"there is no directory .*nowhere"):
        find_runs([tmp_path / "nowhere"], tmp_path)


def test_the_records_of_the_project_give_their_own_numbers():
    found = find_runs([ROOT / "results"], ROOT)
    assert not found.skipped
    assert len(found.runs) == len(list((ROOT / "results").rglob("result.json")))
    seen = set()
    for table in analyse(found.runs, "gpm").tables:
        for row in csv.DictReader(io.StringIO(csv_text(table))):
            records = [json.loads((ROOT / name / "result.json").read_text()) for name in row["runs"].split()]
            seen |= set(row["runs"].split())
            assert {record["tasks"] for record in records} == {int(row["tasks"])}
            if "ACC %" in row:
                assert float(row["ACC %"]) == pytest.approx(sum(r["acc"] for r in records) / len(records))
    assert seen == {run.name for run in found.runs}

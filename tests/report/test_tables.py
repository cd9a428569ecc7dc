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
from tests.report.cases import FIRST, SECOND, cell, lines, skipped, tables, task, write_run, write_two_seeds

ROOT = Path(__file__).parents[2]


def test_mean_and_deviation_over_seeds(tmp_path):
    write_run(tmp_path / "a", "code-cl", FIRST, seed=0)
    write_run(tmp_path / "b", "code-cl", SECOND, seed=1)
    table = tables(tmp_path)["results"]
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
        "paper FWT": "5.92 ± 0.34",
    }


def test_one_seed_has_no_deviation_and_one_task_no_backward_transfer(tmp_path):
    write_run(tmp_path / "a", "code-cl", [[75.0]])
    (line,) = lines(tables(tmp_path)["results"])
    assert (line["ACC %"], line["seeds"]) == ("75.00", "1")
    assert "BWT %" not in line  # nobody has one


def test_a_single_seed_is_never_marked_as_best(tmp_path):
    write_two_seeds(tmp_path, "gpm", FIRST, FIRST)
    write_two_seeds(tmp_path, "sgp", SECOND, SECOND)
    assert [cell(tables(tmp_path)["results"], "ACC %", row).rank for row in range(2)] == [1, 2]
    write_run(tmp_path / "one", "code-cl", [[81.0, None], [71.0, 91.0]])
    table = tables(tmp_path)["results"]
    assert [cell(table, "ACC %", row).rank for row in range(3)] == [0, 0, 0]
    assert any("single seed" in note for note in table.notes)


def test_further_measures(tmp_path):
    write_run(tmp_path / "a", "gpm", [[80.0, None, None], [90.0, 60.0, None], [70.0, 50.0, 40.0]])
    (line,) = lines(tables(tmp_path)["measures"])
    assert line["learned %"] == "60.00"  # (80 + 60 + 40) / 3
    assert line["forgotten %"] == "15.00"  # from 90 to 70 and from 60 to 50
    assert "moved" not in line
    assert line["over seen %"] == "69.44"  # (80 + 75 + 160/3) / 3


def test_how_far_old_outputs_moved_is_in_the_table_where_it_was_recorded(tmp_path):
    moved = [[None, None], [0.0125, None]]
    for seed, factor in enumerate((1, 3)):
        rows = [[value and factor * value for value in row] for row in moved]
        write_run(tmp_path / f"{seed}", "gpm", FIRST, seed=seed, result={"moved": rows})
    (line,) = lines(tables(tmp_path)["measures"])
    assert line["moved"] == "0.025 ± 0.018"  # the mean of 0.0125 and 0.0375


def test_a_sweep_is_chosen_by_validation_and_not_by_test(tmp_path):
    for aperture, accuracy, validation in ((2, SECOND, [60.0, 64.0]), (4, FIRST, [70.0, 72.0])):  # test ACC 88 and 80
        for seed in (0, 1):
            write_run(
                tmp_path / f"{aperture}-{seed}", "code-cl", accuracy, seed=seed, changes={"aperture": aperture},
                result={"validation": validation},
            )  # fmt: skip
    table = tables(tmp_path)["ablation-aperture"]
    assert [(line["aperture"], line["validation %"], line["ACC %"]) for line in lines(table)] == [
        ("2", "62.00 ± 0.00", "88.00 ± 0.00"),
        ("4", "71.00 ± 0.00", "80.00 ± 0.00"),
    ]
    assert [cell(table, "validation %", row).rank for row in range(2)] == [2, 1]
    assert [cell(table, "ACC %", row).rank for row in range(2)] == [0, 0]
    assert "best by validation: aperture = 4 (validation 71.00 ± 0.00 %, test ACC 80.00 ± 0.00 %)." in table.notes[-2]
    write_run(tmp_path / "old", "code-cl", FIRST, changes={"aperture": 8})  # a record without it
    table = tables(tmp_path)["ablation-aperture"]
    assert not any("best by" in note for note in table.notes)
    assert any("test data are not to choose by" in note for note in table.notes)


def test_multitask_has_no_transfer_and_takes_no_rank(tmp_path):
    write_two_seeds(tmp_path, "multitask", [[99.0, 99.0]], [[99.0, 99.0]])
    write_two_seeds(tmp_path, "gpm", FIRST, FIRST)
    write_two_seeds(tmp_path, "code-cl", SECOND, SECOND)
    table = tables(tmp_path)["results"]
    names = ("method", "ACC %", "BWT %", "FWT % over gpm")
    assert [tuple(line[name].split(" ±")[0] for name in names) for line in lines(table)] == [
        ("multitask", "99.00", "–", "–"),
        ("code-cl", "88.00", "-2.00", "4.00"),
        ("gpm", "80.00", "-10.00", "0.00"),
    ]
    assert [cell(table, "ACC %", row).rank for row in range(3)] == [0, 1, 2]


@pytest.mark.parametrize(
    "other",
    [
        {"epochs": 6},
        {"preset": "official"},
        {"kind": "subset"},
        {"changes": {"split_seed": "run"}},
        {"accuracy": [[80.0, None, None], [70.0, 90.0, None], [70.0, 90.0, 50.0]]},
    ],
)
def test_runs_of_another_budget_or_reading_share_neither_row_nor_rank(tmp_path, other):
    write_run(tmp_path / "a", "code-cl", seed=0)
    write_run(tmp_path / "b", "code-cl", seed=1, **other)
    table = tables(tmp_path)["results"]
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


def test_how_a_run_was_computed_is_named_and_leaves_the_papers_numbers_beside_it(tmp_path):
    write_run(tmp_path / "a", "gpm", changes={"precision": "bf16"})
    write_run(tmp_path / "b", "trgp", changes={"precision": "bf16", "trust": 0.1})
    shown = {line["method"]: line.get("paper ACC") for line in lines(tables(tmp_path)["results"])}
    assert shown == {"gpm, precision = bf16": "72.06 ± 0.29", "trgp, trust = 0.1, precision = bf16": "–"}


def test_what_a_run_departs_in_is_named(tmp_path):
    write_run(tmp_path / "a", "code-cl", changes={"aperture": 2, "lr": 0.5})
    assert [line["method"] for line in lines(tables(tmp_path)["results"])] == ["code-cl, aperture = 2, lr = 0.5"]


def test_sd_style_results_say_so(tmp_path):
    write_run(tmp_path / "a", "trgp-sd")
    assert [line["method"] for line in lines(tables(tmp_path)["results"])] == ["trgp-sd (SD-style)"]


def test_the_same_seed_again_is_not_counted(tmp_path):
    write_run(tmp_path / "a", "code-cl", FIRST)
    write_run(tmp_path / "copy", "code-cl", FIRST)
    write_run(tmp_path / "z", "code-cl", SECOND, seed=1)
    (experiment,) = find_experiments(find_runs([tmp_path, tmp_path / "a"], tmp_path).runs)
    assert [run.name for run in experiment.runs] == ["a", "z"]
    assert [run.name for run in experiment.repeats] == ["copy"]


def test_memory_has_the_formula_and_what_was_measured(tmp_path):
    write_run(tmp_path / "a", "gpm", seed=0)
    write_run(tmp_path / "b", "gpm", seed=1, result={"bytes": {"memory": 14_000, "per_task": 500}})
    (line,) = lines(tables(tmp_path)["memory"])
    assert line["order in the paper"] == "O(N²)"
    assert line["bytes of a layer"] == "8Nr"
    assert line["memory"] == "13 kB ± 1.41 kB"
    assert line["of it per task"] == "500 B"
    (line,) = lines(tables(tmp_path)["time"])
    assert (line["time a run"], line["training epoch"], line["between tasks"]) == ("1m15s", "10.00 s", "5s")
    assert "make bench" in tables(tmp_path)["time"].notes[-1]


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
    assert "settings.threshold is 0.5 in it and 0.97 in recipe.toml" in damaged["bad/recipe"]


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


def test_what_was_measured_without_telling_the_task_has_a_table(tmp_path):
    shares = {"tasks_right": 90.0, "tasks_right_together": 99.0, "inferred": 70.0, "inferred_together": 79.0}
    found = shares | {"evidence": "conceptors", "together": 16, "confusion": [[95.0, 5.0], [15.0, 85.0]]}
    found["tasks_right_by_heads"] = 40.0
    for seed, right in ((0, 90.0), (1, 92.0)):
        changes = {"evidence": ["*"], "infer_tasks": True}
        result = {"inference": found | {"tasks_right": right}}
        write_run(tmp_path / f"a{seed}", "code-cl", SECOND, seed=seed, changes=changes, result=result)
    write_run(
        tmp_path / "b",
        "finetune",
        FIRST,
        changes={"infer_tasks": True},
        result={"inference": found | {"evidence": "heads"}},
    )
    write_run(tmp_path / "c", "gpm", FIRST)
    rows = lines(tables(tmp_path)["inference"])
    assert [row["runs"] for row in rows] == [("b",), ("a0", "a1")]
    columns = ("told %", "inferred %", "tasks right %", "together %", "by heads %", "by", "memory")
    assert [[row[column] for column in columns] for row in rows] == [
        ["80.00", "70.00", "90.00", "99.00", "40.00", "heads", "12 kB"],
        ["88.00 ± 0.00", "70.00 ± 0.00", "91.00 ± 1.41", "99.00 ± 0.00", "40.00 ± 0.00", "conceptors", "12 kB"],
    ]
    assert "inference" not in tables(tmp_path / "c")
    write_run(tmp_path / "plain", "finetune", SECOND)
    made = tables(tmp_path)
    assert {row["runs"] for row in lines(made["results"])} == {("plain",), ("c",), ("a0", "a1")}  # b is no other method
    assert not any(name.startswith("ablation") for name in made)

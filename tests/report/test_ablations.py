"""What was varied between runs is found and named, and the paper's numbers stand beside their own settings alone."""

import json
from pathlib import Path

import pytest

from codecl.report.published import read_published
from tests.report.cases import FIRST, SECOND, lines, tables, write_run


def test_what_was_varied_is_found_in_the_recipes(tmp_path):
    for name, value in {"x": 16, "y": 2, "w": 6.0}.items():
        for seed in (0, 1):
            write_run(
                tmp_path / name / f"{seed}", "code-cl", (FIRST, SECOND)[seed], seed=seed, changes={"aperture": value}
            )
    write_run(tmp_path / "k", "code-cl", SECOND, changes={"free_dims": 20})
    write_run(tmp_path / "both", "code-cl", SECOND, changes={"free_dims": 20, "aperture": 3})
    made = tables(tmp_path)
    aperture = made["ablation-aperture"]
    assert [section.title.split(", split")[0] for section in aperture.sections] == [
        "code-cl, free_dims = 80",
        "code-cl, free_dims = 20",
    ]
    assert [(line["aperture"], line["ACC %"], line["runs"]) for line in lines(aperture)] == [
        ("2", "84.00 ± 5.66", ("y/0", "y/1")),
        ("6", "84.00 ± 5.66", ("w/0", "w/1")),
        ("16", "84.00 ± 5.66", ("x/0", "x/1")),
        ("3", "88.00", ("both",)),
        ("6", "88.00", ("k",)),
    ]
    assert [(line["free_dims"], line["seeds"]) for line in lines(made["ablation-free_dims"])] == [
        ("20", "1"),
        ("80", "2"),
    ]
    assert [line["method"] for line in lines(made["results"])] == ["code-cl"]  # the others are its variations


def test_what_all_runs_depart_in_is_no_variation(tmp_path):
    """A comparison and a sweep with the same change to both: the base of the sweep stays among the methods."""
    shared = {"batch_size": 32}
    write_run(tmp_path / "gpm", "gpm", FIRST, changes=shared)
    write_run(tmp_path / "base", "code-cl", SECOND, changes=shared)
    write_run(tmp_path / "wide", "code-cl", FIRST, changes=shared | {"aperture": 9})
    made = tables(tmp_path)
    for name in ("results", "memory"):
        assert [line["method"] for line in lines(made[name])] == ["code-cl, batch_size = 32", "gpm, batch_size = 32"]
    assert [line["aperture"] for line in lines(made["ablation-aperture"])] == ["6", "9"]


def test_a_sweep_without_its_base_stays_among_the_methods(tmp_path):
    for value in (2, 9):
        write_run(tmp_path / f"{value}", "code-cl", changes={"aperture": value})
    labels = [line["method"] for line in lines(tables(tmp_path)["results"])]
    assert labels == ["code-cl, aperture = 2", "code-cl, aperture = 9"]


def test_runs_without_a_seed_in_common_are_no_ablation(tmp_path):
    """They differ in the seed as well; the row beside them may be one of the method's further seeds."""
    write_run(tmp_path / "a", "er", seed=0)
    write_run(tmp_path / "b", "er", seed=1, changes={"precision": "bf16"})
    made = tables(tmp_path)
    assert "ablation-precision" not in made
    assert [line["method"] for line in lines(made["results"])] == ["er", "er, precision = bf16"]
    write_run(tmp_path / "c", "er", seed=1)
    write_run(tmp_path / "d", "er", seed=2, changes={"precision": "fp16"})
    assert [line["precision"] for line in lines(tables(tmp_path)["ablation-precision"])] == ["bf16", "float32"]


def test_two_budgets_are_no_reason_to_leave_a_method_out(tmp_path):
    for epochs in (6, 12):
        write_run(tmp_path / f"{epochs}", "code-cl", changes={"lr": 0.02}, epochs=epochs)
    made = tables(tmp_path)
    assert [line["runs"] for line in lines(made["results"])] == [("12",), ("6",)]
    assert [line["epochs"] for line in lines(made["ablation-epochs"])] == ["6", "12"]


def test_the_lines_of_a_grid_name_all_in_which_they_differ(tmp_path):
    for aperture in (6, 9):
        for free_dims in (0, 80):
            changes = {"aperture": aperture, "free_dims": free_dims}
            write_run(tmp_path / f"{aperture},{free_dims}", "code-cl", changes=changes)
    made = tables(tmp_path)
    for over, labels in {
        "aperture": ["code-cl, free_dims = 80", "code-cl, free_dims = 0"],
        "free_dims": ["code-cl, aperture = 6", "code-cl, aperture = 9"],
    }.items():
        assert [s.title.split(", split")[0] for s in made[f"ablation-{over}"].sections] == labels


def test_methods_with_longer_schedules_stand_with_the_others(tmp_path):
    """On Split miniImageNet the published code gives TRGP 200 epochs and the others 100."""
    asked = {"benchmark": "split-miniimagenet", "preset": "official"}
    write_run(tmp_path / "a", "gpm", FIRST, **asked)
    write_run(tmp_path / "b", "trgp", SECOND, **asked)
    write_run(tmp_path / "c", "trgp", FIRST, epochs=100, **asked)  # which is less than its own
    made = tables(tmp_path)
    whole, cut = made["results"].sections
    assert [row.runs for row in whole.rows] == [("b",), ("a",)]
    assert [row.runs for row in cut.rows] == [("c",)]
    assert whole.title.endswith("2/20 tasks, whole schedule")
    assert cut.title.endswith("at most 100 epochs each")
    assert [(line["method"], line["FWT % over gpm"]) for line in lines(made["results"])] == [
        ("trgp", "4.00"),
        ("gpm", "0.00"),
        ("trgp", "–"),
    ]


def test_the_readings_of_the_fast_preset_stand_side_by_side(tmp_path):
    """They have one schedule; a reading other than the paper's is named, and the paper's is the baseline."""
    asked = {"benchmark": "permuted-digits"}
    for method, preset in (("code-cl", "fast"), ("code-cl", "fast-own"), ("gpm", "fast"), ("gpm", "fast-official")):
        accuracy = SECOND if preset == "fast-own" else FIRST
        write_run(tmp_path / f"{method}-{preset}", method, accuracy, preset=preset, **asked)
    write_run(tmp_path / "wide", "code-cl", FIRST, preset="fast-own", changes={"norm": "freeze"}, **asked)
    made = tables(tmp_path)
    (section,) = made["results"].sections
    assert section.title == "permuted-digits, preset fast, 2/5 tasks, whole schedule"
    assert {line["method"]: (line["ACC %"], line["FWT % over gpm"]) for line in lines(made["results"])} == {
        "code-cl (own)": ("88.00", "4.00"),
        "code-cl": ("80.00", "0.00"),
        "gpm (official)": ("80.00", "0.00"),
        "gpm": ("80.00", "0.00"),
    }
    assert [section.title.split(", permuted")[0] for section in made["ablation-norm"].sections] == ["code-cl (own)"]


@pytest.mark.parametrize(
    ("benchmark", "preset", "changes", "expected"),
    [
        ("split-cifar100", "paper", {}, "77.21 ± 0.32"),
        ("split-cifar100", "official", {}, "77.21 ± 0.32"),
        ("split-cifar100", "paper", {"overlap": 0.8}, "75.71 ± 0.40"),
        ("split-cifar100", "paper", {"aperture": 2}, "–"),
        ("split-cifar100", "paper", {"lr": 0.5}, "–"),
        ("split-miniimagenet", "paper", {}, "71.16 ± 0.32"),
        ("split-miniimagenet", "official", {}, "68.83 ± 0.41"),
        ("5-datasets", "paper", {}, "93.51 ± 0.13"),
        ("5-datasets", "official", {}, "93.32 ± 0.13"),
        ("5-datasets", "official", {"free_dims": 20}, "92.70 ± 0.07"),
        ("5-datasets", "paper", {"free_dims": 20}, "–"),
    ],
)
def test_a_number_of_the_paper_stands_beside_its_own_settings_alone(tmp_path, benchmark, preset, changes, expected):
    write_run(tmp_path / "a", "code-cl", benchmark=benchmark, preset=preset, changes=changes)
    write_run(tmp_path / "b", "ewc", benchmark=benchmark, preset=preset)  # the column is there
    assert lines(tables(tmp_path)["results"])[1]["paper ACC"] == expected


def test_no_number_of_the_paper_stands_beside_a_reading_of_ours(tmp_path):
    for preset in ("fast", "fast-own"):
        write_run(tmp_path / preset, "code-cl", preset=preset)
    found = {line["method"]: line["paper ACC"] for line in lines(tables(tmp_path)["results"])}
    assert found == {"code-cl": "77.21 ± 0.32", "code-cl (own)": "–"}


def test_ablations_have_the_numbers_of_the_papers_beside_them(tmp_path):
    for free_dims in (0, 10, 80):
        write_run(tmp_path / f"{free_dims}", "code-cl", benchmark="5-datasets", preset="official",
                  changes={"free_dims": free_dims})  # fmt: skip
    found = lines(tables(tmp_path)["ablation-free_dims"])
    assert [(line["free_dims"], line["paper ACC"], line["paper BWT"]) for line in found] == [
        ("0", "91.67 ± 0.31", "-1.36 ± 0.07"),
        ("10", "–", "–"),
        ("80", "93.32 ± 0.13", "-0.25 ± 0.02"),  # which the table over α has too, with another spread
    ]


def test_words_can_be_varied_and_epochs_and_what_the_data_are(tmp_path):
    for i, changes in enumerate([{}, {"after": "effective"}, {"split_seed": "run"}, {"epochs": 9}]):
        write_run(tmp_path / f"{i}", "code-cl", changes=changes)
    made = tables(tmp_path)
    assert {name for name in made if name.startswith("ablation")} == {
        "ablation-after",
        "ablation-split_seed",
        "ablation-epochs",
    }
    assert [line["after"] for line in lines(made["ablation-after"])] == ["effective", "shared"]
    assert [line["epochs"] for line in lines(made["ablation-epochs"])] == ["9", "200"]
    assert "epochs" not in lines(made["ablation-epochs"])[0]["section"]


def test_other_methods_are_no_ablation(tmp_path):
    write_run(tmp_path / "a", "code-cl")
    write_run(tmp_path / "b", "gpm")
    assert not any(name.startswith("ablation") for name in tables(tmp_path))


def test_the_page_on_choosing_has_the_numbers_of_the_paper():
    """Its tables are typed; here they meet the file that reports take the paper's numbers from."""
    page = (Path(__file__).parents[2] / "docs/howto/choose.md").read_text().replace("−", "-")
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in page.splitlines() if line[:1] == "|"]

    def text(number, spread):
        return f"{number} ± {spread}"

    for ablation in read_published()["ablations"]:
        for point in ablation["points"]:
            acc = text(*point["acc"])
            if ablation["over"] == "overlap":  # one table for three benchmarks, ACC alone
                column = ["split-cifar100", "split-miniimagenet", "5-datasets"].index(ablation["benchmark"])
                assert any(row[0] == f"{point['at']:g}" and row[1 + column] == acc for row in rows if len(row) == 4)
            else:
                assert [f"{point['at']:g}", acc, text(*point["bwt"])] in rows


def test_a_setting_that_is_newer_than_a_record_makes_no_other_experiment_of_it(tmp_path):
    """What has come since then has a default that changes nothing."""
    for seed in (0, 1):
        write_run(tmp_path / f"{seed}", "code-cl", seed=seed)
    old = tmp_path / "0" / "result.json"
    record = json.loads(old.read_text())
    assert record["settings"].pop("own_share") is None
    old.write_text(json.dumps(record))
    (line,) = lines(tables(tmp_path)["results"])
    assert line["seeds"] == "2"

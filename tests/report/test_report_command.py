"""What ``codecl report`` says, refuses and leaves alone."""

import os
from functools import partial

import pytest

from codecl.report.names import short_names
from codecl.report.records import find_runs
from codecl.report.write import write_report
from tests.report import cases as report_cases
from tests.report.cases import FIRST, SECOND, epoch, task
from tests.runs.running import codecl, contents

CONDITION = "split-cifar100, preset paper, 2/10 tasks, at most 6 epochs each"
ENDINGS = ("txt", "md", "tex", "csv")
write_run = partial(report_cases.write_run, epochs=6)


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def report(capsys, *arguments):
    return codecl(capsys, "report", *arguments, "--no-figures")


def refused(capsys, *arguments):
    """The one line with which it ends."""
    code, out, err = report(capsys, *arguments)
    assert (code, out, err.count("\n")) == (2, "", 1)
    return err


# The same recipe and seed again.


def test_a_repeat_with_other_numbers_is_told_loudly(here, capsys):
    write_run(here / "runs/a", "gpm", FIRST)
    write_run(here / "runs/b", "gpm", SECOND)
    code, out, err = report(capsys, "runs")
    assert code == 0
    assert err == (
        "codecl: runs/b and runs/a have the same recipe and seed, but other accuracies: ACC 88.00 and 80.00. "
        "Only runs/a is counted, as the first by name; leave one of them out.\n"
    )
    words = "repeats seed 0 of {}; not counted, though its numbers differ: ACC 88.00, not 80.00"
    assert f"runs/b: {words.format('runs/a')}\n" in out
    page = (here / "report/report.html").read_text()
    assert '<p role="alert"><strong>../runs/b and ../runs/a have the same recipe and seed, but' in page
    assert words.format("../runs/a") in page


def test_a_repeat_with_the_same_numbers_is_no_warning(here, capsys):
    for name in ("a", "b"):
        write_run(here / "runs" / name, "gpm", FIRST)
    _, out, err = report(capsys, "runs")
    assert err == ""
    assert "runs/b: repeats seed 0 of runs/a; not counted\n" in out
    assert 'role="alert"' not in (here / "report/report.html").read_text()


# Forward transfer.


def write_seeds(here):
    for seed in (0, 1):
        write_run(here / f"runs/gpm-{seed}", "gpm", FIRST, seed=seed)
    write_run(here / "runs/sgp", "sgp", SECOND, seed=7)


def test_without_a_seed_in_common_the_seeds_are_named(here, capsys):
    write_seeds(here)
    _, out, _ = report(capsys, "runs")
    words = f"No forward transfer without a seed in common: sgp (seed 7) over gpm (seeds 0, 1), {CONDITION}."
    assert out.splitlines().count(words) == 1
    assert words in (here / "report/report.html").read_text()
    assert "sgp is ahead with ACC 88.00 %: +8.00 over gpm, the next and the baseline (no seed in common" in out
    write_run(here / "runs/code-cl", "code-cl", SECOND, seed=1)  # this one can be measured
    _, out, _ = report(capsys, "runs")
    assert words in out
    assert "  +8.00  " in out


def test_what_only_stands_in_an_ablation_is_not_missed_in_the_table_of_transfer(here, capsys):
    write_run(here / "runs/a", "gpm")
    write_run(here / "runs/b", "code-cl", SECOND)
    write_run(here / "runs/b7", "code-cl", SECOND, seed=7)
    write_run(here / "runs/c", "code-cl", SECOND, seed=7, changes={"aperture": 2})
    _, out, _ = report(capsys, "runs")
    assert "+8.00" in out
    assert "No forward transfer" not in out


def test_of_several_baselines_none_is_chosen(here, capsys):
    write_run(here / "runs/a", "gpm", changes={"threshold": 0.9})
    write_run(here / "runs/b", "gpm", changes={"threshold": 0.8})
    write_run(here / "runs/c", "sgp")
    _, out, _ = report(capsys, "runs")
    assert f"No forward transfer without one run of gpm to measure it against: {CONDITION}.\n" in out
    err = refused(capsys, "runs", "--out", "other", "--baseline", "gpm")
    assert "--baseline gpm gives no forward transfer: which experiment of gpm is meant is not clear" in err


@pytest.mark.parametrize(
    ("baseline", "why"),
    [
        ("sgp", f"no seed in common: gpm (seeds 0, 1) over sgp (seed 7), {CONDITION}."),
        ("gpm", f"no seed in common: sgp (seed 7) over gpm (seeds 0, 1), {CONDITION}."),
        ("multitask", "it learns all tasks at once."),
    ],
)
def test_a_baseline_that_was_asked_for_must_be_of_use(here, capsys, baseline, why):
    write_seeds(here)
    write_run(here / "runs/all", "multitask", [[95.0, 97.0]])
    err = refused(capsys, "runs", "--baseline", baseline)
    assert f"codecl: --baseline {baseline} gives no forward transfer: {why}" in err
    assert not (here / "report").exists()
    assert report(capsys, "runs")[0] == 0  # nobody asked for one


def test_a_baseline_alone_measures_nothing(here, capsys):
    write_run(here / "runs", "gpm")
    assert "gives no forward transfer: there is nothing to compare it with." in refused(
        capsys, "runs", "--baseline", "gpm"
    )


# What is there already.


@pytest.mark.parametrize("name", ["report.html", "tables/results.csv", "tables/memory.md"])
def test_a_file_that_no_report_has_written_is_not_overwritten(here, capsys, name):
    write_run(here / "runs", "gpm")
    mine = here / "report" / name
    mine.parent.mkdir(parents=True)
    mine.write_text("<html>mine</html>")
    before = contents(here / "report")
    err = refused(capsys, "runs")
    assert f"report/{name} would be overwritten, and no earlier report has written it" in err
    assert contents(here / "report") == before
    mine.unlink()
    assert report(capsys, "runs")[0] == 0
    assert report(capsys, "runs")[0] == 0  # its own files it may replace


def test_a_table_of_the_users_beside_an_earlier_report_is_kept(here, capsys):
    write_run(here / "runs/a", "gpm")
    assert report(capsys, "runs")[0] == 0
    (here / "report/tables/ablation-threshold.csv").write_text("mine")
    write_run(here / "runs/b", "gpm", changes={"threshold": 0.5})  # now there is something to say about it
    before = contents(here / "report")
    assert "report/tables/ablation-threshold.csv would be overwritten" in refused(capsys, "runs")
    assert contents(here / "report") == before


def test_a_report_that_was_interrupted_is_known_as_its_own(here, capsys, monkeypatch):
    write_run(here / "runs", "gpm")
    real, left = os.replace, [3]

    def replace(source, target):
        left[0] -= 1
        if left[0] < 0:
            raise PermissionError(13, "Permission denied")
        real(source, target)

    monkeypatch.setattr(os, "replace", replace)
    err = refused(capsys, "runs")
    assert err.endswith(" cannot be written: Permission denied. Choose another --out.\n")
    assert len(contents(here / "report")) == 3  # and nothing half
    assert "report.html" in contents(here / "report")
    monkeypatch.undo()
    monkeypatch.chdir(here)
    assert report(capsys, "runs")[0] == 0
    tables = {f"tables/{name}.{end}" for name in ("results", "measures", "memory", "time") for end in ENDINGS}
    assert set(contents(here / "report")) == tables | {"report.html"}


@pytest.mark.parametrize(
    ("out", "wrong"), [("file", "file"), ("file/below", "file"), ("folder", "folder/tables"), ("gone", "gone")]
)
def test_a_file_where_a_directory_is_needed_is_named(here, capsys, out, wrong):
    write_run(here / "runs", "gpm")
    (here / "folder").mkdir()
    for name in ("file", "folder/tables"):
        (here / name).write_text("mine")
    (here / "gone").symlink_to("nowhere")
    err = refused(capsys, "runs", "--out", out)
    assert err == f"codecl: {wrong} is no directory, so there can be no report in {out}: choose another --out.\n"


# Where runs are, and what they are called.


def test_what_is_printed_is_as_given_and_what_is_written_as_seen_from_the_report(here, capsys):
    write_run(here / "runs/a", "gpm")
    write_run(here / "runs/b", "gpm", seed=1, recipe_only=True)
    write_run(here / "runs/c", "gpm", seed=2)
    (here / "runs/c/recipe.toml").write_text("method = ")
    (here / "nothing").mkdir()
    code, out, err = report(capsys, "runs", "nothing", "--out", "deep/out")
    assert code == 2
    assert err.startswith("codecl: left out as damaged: runs/c/recipe.toml is not a recipe: ")
    assert "  runs/a\n" in out
    assert "runs/b: not finished: no task learned yet\nnothing: no run in it or below it\n" in out
    assert "../" not in out + err
    assert str(here) not in out + err
    page = (here / "deep/out/report.html").read_text()
    for words in ("../../runs/c/recipe.toml is not a recipe", "<code>../../nothing</code>: no run in it"):
        assert words in page
    assert "../../runs/a" in (here / "deep/out/tables/results.csv").read_text()
    assert str(here) not in page
    err = refused(capsys, "runs/c", "--out", "other")
    assert err.startswith("codecl: no finished run in runs/c; runs/c/recipe.toml is not a recipe: ")
    assert "../" not in err


def test_a_cell_of_a_sweep_is_called_by_what_it_varies(here):
    def short(folders):
        return set(short_names({run.name: run.record.path for run in find_runs(folders, here).runs}).values())

    def names(*which):
        return short([here / "sweep" / path for path in which])

    for cell, seed in (("aperture=2", 0), ("aperture=2", 1), ("aperture=16", 0)):
        changes = {"aperture": int(cell.partition("=")[2])}
        write_run(here / f"sweep/{cell}/seed{seed}", "code-cl", seed=seed, changes=changes)
    alone = {"aperture=2/seed0"}
    assert names("aperture=2/seed0") == alone
    assert names("aperture=2") == alone | {"aperture=2/seed1"}
    assert names("aperture=2", "aperture=16") == alone | {"aperture=2/seed1", "aperture=16/seed0"}
    made = write_report([here / "sweep/aperture=2/seed0"], here / "sweep/aperture=2/report")
    assert "figures/matrix-aperture=2-seed0.svg" in made.files
    write_run(here / "plain/gpm-seed0", "gpm")
    assert short([here / "plain"]) == {"gpm-seed0"}


# What else is said.


@pytest.mark.slow
def test_logs_that_are_missing_and_damaged_are_told_apart(here):
    whole = [epoch(0, 1), task(0, 0.25), epoch(1, 1), task(1, 0.75)]
    broken = task(1, 0.75) | {"layers": {"net.a.weight": 3}}
    nothing = task(0, 0.25) | {"layers": {}}  # of a method that remembers nothing of layers
    for seed, log in enumerate([whole, whole, whole, [epoch(0, 1), broken], [epoch(0, 1), nothing]]):
        write_run(here / f"runs/{'abcde'[seed]}", "gpm", seed=seed, log=log)
    (here / "runs/b/log.jsonl").unlink()
    with open(here / "runs/c/log.jsonl", "a") as log:
        log.write("{\n")
    made = write_report([here / "runs"], here / "out")
    missing, damaged = made.notes[1:]
    assert missing == "No training curves, spectra and capacities of runs without log.jsonl: b."
    assert damaged.startswith(
        "Training curves, spectra and capacities are missing or incomplete where log.jsonl is damaged: c (line 5: "
    )
    assert damaged.endswith("; d (line 2: layers.net.a.weight must be a table; got 3).")
    kinds = {
        kind: {name[len(f"figures/{kind}-")] for name in made.files if kind in name} for kind in ("curves", "spectra")
    }
    assert kinds == {"curves": {"a", "c", "d", "e"}, "spectra": {"a", "c"}}  # what stands before the damage counts


def test_control_characters_reach_no_terminal(here, capsys):
    write_run(here / "runs/a\x1b[31m", "gpm")
    write_run(here / "runs/b\x1b[31m", "gpm", recipe_only=True)
    (here / "runs/c\x9b").mkdir()
    (here / "runs/c\x9b/recipe.toml").write_text("method = ")
    _, out, err = report(capsys, "runs")
    assert "runs/a?[31m" in out
    assert not set("\x1b\x07\x9b") & set(out + err)


@pytest.mark.slow
def test_compare_writes_a_report_and_says_what_was_seen(here, capsys):
    tiny = ("--tasks", "2", "--epochs", "1", "--set", "batch_size=400", "--quiet")
    code, out, err = codecl(capsys, "compare", "--methods", "finetune", *tiny, "--out", "runs", "--report")
    assert (code, err) == (0, "")
    sentence, page = out.splitlines()[-2:]
    assert sentence.startswith("finetune, batch_size = 400 alone: ACC ")
    assert page == "report: runs/report/report.html"
    assert sentence in (here / "runs/report/report.html").read_text()

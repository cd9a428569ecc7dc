"""Code that a recipe of someone else's names is run only if the user says so."""

import json
import os

import pytest

from tests.runs.running import SMALL, codecl, contents, result_of

MODULE = """
from pathlib import Path
Path(__file__).with_name("ran").touch()
from codecl import Method
from codecl.benchmarks.registry import BENCHMARKS
BENCHMARK = BENCHMARKS["permuted-digits"]


class Mine(Method):
    name = "my method"
"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    (tmp_path / "foreigncode.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    import sys

    sys.modules.pop("foreigncode", None)


@pytest.fixture
def run(here, capsys):
    """A run directory from elsewhere: finished, by a method and on a benchmark that would have to be imported."""
    assert codecl(capsys, "run", "--method", "finetune", *SMALL, "--out", "run", "--quiet")[0] == 0
    for name in ("recipe.toml", "result.json"):
        text = (here / "run" / name).read_text()
        text = text.replace('"finetune"', '"foreigncode:Mine"').replace('"permuted-digits"', '"foreigncode:BENCHMARK"')
        (here / "run" / name).write_text(text)
    return here / "run"


@pytest.mark.parametrize(
    "command",
    [
        ["inspect", "run"],
        ["inspect", "run", "--json"],
        ["report", "run", "--no-figures"],
        ["report", "run", "--summary"],
    ],
    ids=" ".join,
)
def test_looking_at_a_run_imports_nothing_that_it_names(command, run, here, capsys):
    code, out, err = codecl(capsys, *command)
    assert (code, err) == (0, "")
    assert "foreigncode:Mine" in out
    assert not (here / "ran").exists()


@pytest.mark.parametrize(
    "command",
    [
        "run --resume run",
        "run --resume run --restart",
        "run --resume run --dry-run",
        "run run/recipe.toml",
        "run run/recipe.toml --dry-run",
        "run run/recipe.toml --method finetune",
        "run run/recipe.toml --benchmark permuted-digits",
    ],
)
def test_running_a_recipe_that_names_foreign_code_wants_trust(command, run, here, capsys):
    before = contents(run)
    code, out, err = codecl(capsys, *command.split())
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "'foreigncode:" in err
    assert err.endswith("If you trust it, add --trust.\n")
    assert not (here / "ran").exists()
    assert contents(run) == before


def test_another_run_in_the_directory_is_told_without_importing_what_it_names(run, here, capsys):
    code, _, err = codecl(capsys, "run", "--method", "finetune", *SMALL, "--out", "run")
    assert code == 2
    assert "method: 'finetune' here, 'foreigncode:Mine' there" in err
    assert not (here / "ran").exists()


def test_trusted_code_is_run_and_what_the_user_names_is_trusted(run, here, capsys):
    assert codecl(capsys, "run", "--resume", "run", "--restart", "--trust", "--quiet")[0] == 0
    assert (here / "ran").exists()
    assert result_of("run")["method"] == "foreigncode:Mine"
    (here / "ran").unlink()
    mine = ["--method", "foreigncode:Mine", "--benchmark", "foreigncode:BENCHMARK", *SMALL, "--quiet"]
    assert codecl(capsys, "run", *mine, "--out", "other")[0] == 0
    assert codecl(capsys, "run", *mine, "--out", "other")[0] == 0  # finished
    assert codecl(capsys, "run", "run/recipe.toml", *mine, "--out", "third")[0] == 0
    assert result_of("other")["method"] == "foreigncode:Mine"
    assert result_of("third")["accuracy"] == result_of("run")["accuracy"]


@pytest.mark.parametrize("command", ["run --out {}", "run --resume {}", "inspect {}", "run {}/a.toml", "report {}"])
@pytest.mark.parametrize("place", ["loop", "a" * 300], ids=["loop", "long"])
def test_a_path_that_leads_nowhere_is_said_in_words(command, place, here, capsys):
    os.symlink("loop", "loop")
    code, _, err = codecl(capsys, *command.format(place).split())
    assert (code, err.count("\n")) == (2, 1)
    assert "Errno" not in err
    assert place in err


def test_a_working_directory_that_was_removed_is_said_in_words(here, capsys, monkeypatch):
    (here / "gone").mkdir()
    monkeypatch.chdir(here / "gone")
    (here / "gone").rmdir()
    code, _, err = codecl(capsys, "run", *SMALL, "--quiet")
    assert (code, err.count("\n")) == (2, 1)
    assert "Errno" not in err
    monkeypatch.chdir(here)


def test_inspect_counts_the_tasks_of_a_foreign_benchmark(run, capsys):
    found = json.loads(codecl(capsys, "inspect", "run", "--json")[1])
    assert (found["of_tasks"], found["joint"], found["changed"], found["epochs"]) == (2, False, [], 2)

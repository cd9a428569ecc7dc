"""A run directory has one recipe for good: another is refused with what differs, one that cannot run leaves none."""

import pytest

from codecl.cli.main import main
from tests.runs.directories import arguments, assert_same_numbers, go_on, refused
from tests.runs.running import codecl, contents, result_of

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text + "# a note\n\n",
        lambda text: text.replace("\n", "\r\n"),
        lambda text: text.replace("\n", "  # a note\n"),
        lambda text: text.replace("aperture = 16.0", "aperture = 16"),
        lambda text: text.replace('preset = "paper"\n', ""),  # it is the default
    ],
    ids=["comment", "line endings", "comments", "whole number", "default left out"],
)
def test_what_does_not_change_a_recipe_does_not_matter(change, stopped, whole):
    text = (stopped / "recipe.toml").read_bytes().decode()
    assert change(text) != text
    (stopped / "recipe.toml").write_bytes(change(text).encode())
    assert go_on(stopped) == ([], [(1, 2, [3])])
    assert_same_numbers(stopped, whole)


def test_checkpoints_of_another_recipe_are_refused_with_what_differs(stopped, whole, capsys):
    file = stopped / "recipe.toml"
    text = file.read_text()
    file.write_text(text.replace("aperture = 16.0", "aperture = 8.0"))
    before = contents(stopped)
    code, out, err = codecl(capsys, "run", "--resume", stopped)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "settings.aperture: 8.0 here, 16.0 there" in err
    assert f"to begin again: codecl run --resume {stopped} --restart" in err
    assert contents(stopped) == before
    file.write_text(text)
    assert go_on(stopped) == ([], [(1, 2, [3])])
    assert_same_numbers(stopped, whole)
    file.write_text(text.replace("aperture = 16.0", "aperture = 8.0"))
    code, _, err = codecl(capsys, "run", "--resume", stopped)
    assert (code, err.count("\n")) == (2, 1)  # the result is of the other recipe, too
    assert codecl(capsys, "run", "--resume", stopped, "--restart", "--quiet")[0] == 0
    assert result_of(stopped)["settings"]["aperture"] == 8.0


def test_the_same_recipe_is_accepted(whole, capsys):
    assert main(arguments([], whole)) == 0


@pytest.mark.parametrize(
    ("change", "difference"),
    [
        (["--set", "aperture=8"], "settings.aperture: 8 here, 16.0 there"),
        (["--set", "lr=0.2"], "training.lr: 0.2 here, 0.1 there"),
        (["--threads", "2"], "threads: 2 here, 1 there"),
        (["--seed", "1"], "seed: 1 here, 0 there"),
        (["--method", "finetune"], "method: 'finetune' here, 'code-cl' there"),
        (["--tasks", "2"], "tasks: 2 here, 3 there"),
    ],
    ids=lambda value: str(value[0]),
)
@pytest.mark.parametrize("which", ["whole", "stopped"])
def test_another_recipe_is_refused_with_what_differs(which, change, difference, request, capsys):
    if change == ["--method", "finetune"]:
        change = [*change]
        path = request.getfixturevalue(which)
        before = contents(path)
        code, _, err = codecl(capsys, "run", *change, "--out", path)
        assert (code, contents(path) == before) == (2, True)
    else:
        err = refused(capsys, request.getfixturevalue(which), *change)
    assert difference in err
    assert "holds another run" in err


def test_a_recipe_that_cannot_run_leaves_no_directory(tmp_path, capsys):
    for bad in (["--tasks", "9"], ["--set", "aperture=-1"], ["--set", "norm=banana"], ["--set", "samples=0"]):
        code, _, err = codecl(capsys, "run", *bad, "--out", tmp_path / "run")
        assert code == 2
        assert err.count("\n") == 1
        assert not (tmp_path / "run").exists(), bad


WIDE = """
import torch
from codecl.benchmarks.registry import Benchmark
from codecl.networks import MultiHead
from codecl.training.stream import Stream, Task

part = torch.randn(8, 7), torch.arange(8) % 2
WIDE = Benchmark("too wide", 1, lambda root, seed: Stream("wide", [Task("first", 2, part, part, part)]),
                 lambda stream: MultiHead(torch.nn.Linear(6, 4), 4, 2))
"""


def test_a_network_that_does_not_take_the_first_task_is_told_in_one_line(tmp_path, monkeypatch, capsys):
    (tmp_path / "too_wide.py").write_text(WIDE)
    monkeypatch.syspath_prepend(tmp_path)
    code, _, err = codecl(capsys, "run", "--benchmark", "too_wide:WIDE", "--epochs", "1", "--out", tmp_path / "run")
    assert (code, err.count("\n")) == (2, 1)
    assert err.startswith("codecl: task 'first': its inputs are [7] of torch.float32, and the network does not take")
    assert "'backbone', Linear(in_features=6, out_features=4, bias=True), was given [2, 7]." in err
    assert not (tmp_path / "run").exists()

"""``codecl run``: progress for people and for programs, where it writes, what its options mean, the device it takes."""

import json

import pytest
import torch

from codecl.cli import run
from tests.runs.running import SMALL, codecl, epochs_of, log_of, result_of


def test_a_run_shows_its_progress_and_where_it_wrote(tmp_path, capsys):
    path = tmp_path / "run"
    code, out, err = codecl(capsys, "run", *SMALL, "--out", path)
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert [line.split("  ")[:2] for line in lines[:2]] == [["task 1/2", "epoch 1/2"], ["task 1/2", "epoch 2/2"]]
    A = result_of(path)["accuracy"]
    assert lines[2] == f"after task 1/2: {A[0][0]:5.1f}   mean {A[0][0]:.1f}"
    assert lines[5] == f"after task 2/2: {A[1][0]:5.1f} {A[1][1]:5.1f}   mean {(A[1][0] + A[1][1]) / 2:.1f}"
    assert f"ACC {result_of(path)['acc']:.2f} %, BWT {result_of(path)['bwt']:+.2f} %" in lines[6]
    assert f"{path}/result.json" in lines[-1]
    assert "\r" not in out


def test_quiet_shows_the_result_alone(tmp_path, capsys):
    code, out, err = codecl(capsys, "run", *SMALL, "--out", tmp_path / "run", "--quiet")
    assert (code, err) == (0, "")
    assert out.startswith("code-cl on permuted-digits, seed 0: ACC")
    assert out.count("\n") == 3


def test_quiet_does_not_hide_a_damaged_checkpoint(tmp_path, capsys):
    path = tmp_path / "run"
    assert codecl(capsys, "run", *SMALL, "--out", path, "--quiet", "--set", "lr=999999")[0] == 1
    (path / "task-000.ckpt").write_bytes(b"?")
    _, _, err = codecl(capsys, "run", "--resume", path, "--quiet")
    assert "task-000.ckpt" in err.splitlines()[0]
    assert "no checkpoint in" in err.splitlines()[1]


def test_json_is_one_event_a_line_and_the_result(tmp_path, capsys):
    path = tmp_path / "run"
    code, out, err = codecl(capsys, "run", *SMALL, "--out", path, "--json")
    assert (code, err) == (0, "")
    lines = [json.loads(line) for line in out.splitlines()]
    assert lines[:-1] == log_of(path)
    assert lines[-1] == {"result": result_of(path)}
    again = codecl(capsys, "run", "--resume", path, "--json")
    assert again == (0, json.dumps({"result": result_of(path)}) + "\n", "")


def test_interruption_is_said_in_one_line(tmp_path, capsys, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(run, "run", interrupted)
    code, _, err = codecl(capsys, "run", "--out", tmp_path / "run")
    assert code == 130
    assert err == "codecl: stopped. What was computed is kept; the same command again goes on.\n"


def test_a_run_has_a_directory_by_default(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert codecl(capsys, "run", *SMALL, "--method", "finetune", "--seed", "5", "--quiet")[0] == 0
    assert result_of("runs/permuted-digits/finetune-seed5")["seed"] == 5


def test_a_recipe_file_and_the_options_give_the_same_run(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    _, recipe, _ = codecl(capsys, "run", *SMALL, "--seed", "2", "--dry-run")
    (tmp_path / "r.toml").write_text(recipe)
    assert codecl(capsys, "run", *SMALL, "--seed", "2", "--out", "a", "--quiet")[0] == 0
    assert codecl(capsys, "run", "r.toml", "--out", "b", "--quiet")[0] == 0
    assert result_of("a")["accuracy"] == result_of("b")["accuracy"]
    assert epochs_of("a") == epochs_of("b")
    assert (tmp_path / "a" / "recipe.toml").read_text() == (tmp_path / "b" / "recipe.toml").read_text() == recipe


def test_an_aperture_for_every_layer(tmp_path, capsys):
    path, change = tmp_path / "run", 'aperture={"*hidden.0*"=4.0,"*"=8.0}'
    assert codecl(capsys, "run", *SMALL, "--set", change, "--out", path, "--quiet")[0] == 0
    assert result_of(path)["settings"]["aperture"] == {"*hidden.0*": 4.0, "*": 8.0}
    assert codecl(capsys, "run", "--resume", path)[0] == 0


@pytest.mark.parametrize("word", ["none", "None", "NONE"])
def test_none_is_none_however_it_is_written(word, capsys):
    assert '\nsamples = "none"\n' in codecl(capsys, "run", "--set", f"samples={word}", "--dry-run")[1]


@pytest.mark.parametrize(
    ("cuda", "mps", "expected"),
    [(False, False, "cpu"), (True, True, "cuda"), (False, True, "mps"), (True, False, "cuda")],
)
def test_the_automatic_device_is_the_best_there_is(cuda, mps, expected, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: mps)
    assert f'device = "{expected}"' in codecl(capsys, "run", "--device", "auto", "--dry-run")[1]
    (tmp_path / "r.toml").write_text('device = "auto"\n')
    assert f'device = "{expected}"' in codecl(capsys, "run", tmp_path / "r.toml", "--dry-run")[1]
    assert f'device = "{expected}"' in codecl(capsys, "run", "--dry-run")[1]  # the default
    assert 'device = "cpu"' in codecl(capsys, "run", "--device", "cpu", "--dry-run")[1]


def test_a_run_for_a_device_that_is_not_here_cannot_be_resumed(tmp_path, capsys):
    recipe = codecl(capsys, "run", "--dry-run")[1].replace('device = "cpu"', 'device = "cuda"')
    (tmp_path / "recipe.toml").write_text(recipe)
    code, _, err = codecl(capsys, "run", "--resume", tmp_path)
    assert code == 2
    assert "'cuda' is not available here" in err

"""What a run leaves in its directory: recipe, log, result, final state, and what it needs to go on."""

import shutil

import pytest
import torch

from codecl.runs import rundir
from codecl.runs.recipe import make_recipe
from codecl.runs.run import run
from codecl.runs.rundir import RunDirectory
from codecl.training import checkpoint, metrics
from tests.runs.directories import RECIPE, Stop, stop_at
from tests.runs.running import log_of, result_of

pytestmark = pytest.mark.slow


def test_a_run_leaves_recipe_log_result_and_final_state(whole):
    assert {file.name for file in whole.iterdir()} == {"recipe.toml", "log.jsonl", "result.json", "final.ckpt", "lock"}
    assert RECIPE.differences(RunDirectory(whole).recipe()) == []
    final = checkpoint.load(whole / "final.ckpt")
    assert final["accuracy"] == result_of(whole)["accuracy"]
    assert final["method"]["tasks"] == [0, 1, 2]
    assert "heads.2.weight" in final["model"]
    assert [e["event"] for e in log_of(whole)] == ["epoch", "epoch", "epoch", "task"] * 3


def test_method_state_is_stored_as_computed(whole):
    def tensors(tree):
        if isinstance(tree, torch.Tensor):
            yield tree
        elif isinstance(tree, dict | list):
            for value in tree.values() if isinstance(tree, dict) else tree:
                yield from tensors(value)

    found = list(tensors(checkpoint.load(whole / "final.ckpt")["method"]["memory"]))
    assert len(found) == 2  # a factor of the correlations of each layer
    assert all(tensor.dtype == torch.float64 for tensor in found)


def test_the_result_has_what_the_design_promises(whole):
    result = result_of(whole)
    kinds = {
        "method": str, "benchmark": str, "preset": str, "seed": int, "data": str, "tasks": int,
        "accuracy": list, "acc": float, "bwt": float, "seconds": dict, "bytes": dict, "threads": int, "versions": dict,
    }  # fmt: skip
    assert {key: type(result[key]) for key in kinds} == kinds
    assert (result["method"], result["benchmark"], result["preset"]) == ("code-cl", "permuted-digits", "paper")
    assert (result["seed"], result["tasks"], result["threads"]) == (0, 3, 1)
    assert result["data"] == "official"
    A = result["accuracy"]
    assert [len(row) for row in A] == [3, 3, 3]
    assert all((A[i][j] is None) == (j > i) for i in range(3) for j in range(3))
    assert all(0 <= value <= 100 for row in A for value in row if value is not None)
    assert result["acc"] == metrics.acc(A) == pytest.approx(sum(A[2]) / 3)
    assert result["bwt"] == metrics.bwt(A) == pytest.approx((A[2][0] - A[0][0] + A[2][1] - A[1][1]) / 2)
    assert set(result["seconds"]) == {"train", "between_tasks", "evaluate"}
    assert all(value > 0 for value in result["seconds"].values())
    assert set(result["bytes"]) == {"memory", "per_task"}
    assert result["bytes"]["memory"] > result["bytes"]["per_task"] > 0
    assert {"codecl", "torch"} <= set(result["versions"])
    assert result["versions"]["torch"] == torch.__version__
    assert result["epochs"] == [3, 3, 3]
    assert result["training"]["evaluation_batch"] == 128
    assert result["settings"]["overlap"] == 0.0


def test_a_multitask_like_result_of_one_task_has_no_bwt(tmp_path):
    recipe = make_recipe({"method": "finetune", "tasks": 1}, {"batch_size": 400}, epochs=1)
    assert run(recipe, RunDirectory(tmp_path / "run")).bwt is None


def test_checkpoints_of_a_run_killed_while_it_finished_are_removed(whole, tmp_path):
    path = shutil.copytree(whole, tmp_path / "run")
    for name in ("task-002.ckpt", "epoch.ckpt"):
        shutil.copy(path / "final.ckpt", path / name)
    result = run(RECIPE, RunDirectory(path))
    assert result.to_fields() == result_of(whole)
    assert [file.name for file in path.glob("*.ckpt")] == ["final.ckpt"]


def test_the_newest_of_a_thousand_tasks_is_the_one_with_the_highest_number(tmp_path):
    directory = RunDirectory(tmp_path / "run")
    directory.open_for(RECIPE)
    state = {"model": {}, "method": {}, "accuracy": [], "epochs": [], "measures": {}}
    state["seconds"] = dict.fromkeys(("train", "between_tasks", "evaluate"), 0.0)
    for task in (998, 999, 1000, 1001):
        directory.save_task(task, state | {"task": task})
    assert {file.name for file in directory.path.glob("task-*")} == {"task-1000.ckpt", "task-1001.ckpt"}
    assert directory.latest()[0]["task"] == 1001


def test_two_beginnings_of_tasks_are_kept(stopped, tmp_path):
    assert {f.name for f in stopped.glob("task-*.ckpt")} == {"task-000.ckpt", "task-001.ckpt"}
    with pytest.raises(Stop):
        run(RECIPE, RunDirectory(stopped), (stop_at("epoch", 2, 1),))
    assert {f.name for f in stopped.glob("task-*.ckpt")} == {"task-001.ckpt", "task-002.ckpt"}


def test_only_whole_files_are_ever_seen(tmp_path, monkeypatch):
    directory = RunDirectory(tmp_path / "run")

    def stop(*_):
        raise Stop

    monkeypatch.setattr(rundir.os, "replace", stop)
    with pytest.raises(Stop):
        directory.open_for(RECIPE)
    assert not directory.recipe_file.exists()

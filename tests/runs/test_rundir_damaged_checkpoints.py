"""Checkpoints that are damaged, wrong, hostile or no files are set aside, and a run goes on from those before."""

import os

import pytest
import torch

from codecl.runs import rundir
from codecl.runs.run import run
from codecl.runs.rundir import RunDirectory
from codecl.training import checkpoint
from tests.runs.directories import RECIPE, Stop, assert_same_numbers, cut, go_on

pytestmark = pytest.mark.slow


def flip(file):
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)


def foreign(file):
    file.write_bytes(b"PK\x03\x04 what torch.save writes")


def empty(file):
    file.write_bytes(b"")


def of_another_recipe(file):
    checkpoint.save(file, checkpoint.load(file) | {"recipe": "0" * 64})


def of_something_else(file):
    checkpoint.save(file, [1, 2, 3])


DAMAGES = [cut, flip, foreign, empty, of_another_recipe, of_something_else]


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda f: f.__name__)
def test_a_damaged_epoch_is_refused_and_the_one_before_used(damage, stopped, whole):
    damage(stopped / "epoch.ckpt")
    notices, resumed = go_on(stopped)
    assert resumed == [(1, 1, [3])]
    assert len(notices) == 1
    assert "epoch.ckpt " in notices[0]
    assert "going on from the one before it" in notices[0]
    assert_same_numbers(stopped, whole)


def first_tensor_doubled(tree):
    name = next(iter(tree["model"]))
    return tree["model"] | {name: tree["model"][name].repeat(2, *[1] * (tree["model"][name].dim() - 1))}


WRONG = {
    "no model": lambda tree: {"model": {}},
    "a larger model": lambda tree: {"model": first_tensor_doubled(tree)},
    "no method": lambda tree: {"method": {}},
    "text for weights": lambda tree: {"model": dict.fromkeys(tree["model"], "w")},
}
WRONG_EPOCH = WRONG | {
    "no optimizer": lambda tree: {"optimizer": {}},
    "another optimizer": lambda tree: {"optimizer": {"state": {}, "param_groups": []}},
    "no rule": lambda tree: {"rule": {}},
    "words for a rule": lambda tree: {"rule": dict.fromkeys(tree["rule"], "x")},
    "no best": lambda tree: {"best": None},
    "an empty best": lambda tree: {"best": {}},
    "no end": lambda tree: {"stop": None, "best": []},
}
WRONG_TASK = WRONG | {
    "the method of another": lambda tree: {"method": tree["method"] | {"method": "gpm"}},
    "no accuracies": lambda tree: {"accuracy": []},
    "too many accuracies": lambda tree: {"accuracy": tree["accuracy"] * 2},
    "short accuracies": lambda tree: {"accuracy": [[50.0]]},
    "no epochs": lambda tree: {"epochs": []},
    "a task beyond the last": lambda tree: {"task": 7},
    "accuracies in words": lambda tree: {"accuracy": [["a", "b", "c"]]},
}


@pytest.mark.parametrize("what", WRONG_EPOCH)
def test_a_well_formed_epoch_with_wrong_content_is_set_aside_like_a_damaged_one(what, stopped, whole):
    file = stopped / "epoch.ckpt"
    tree = checkpoint.load(file)
    checkpoint.save(file, tree | WRONG_EPOCH[what](tree))
    notices, resumed = go_on(stopped)
    assert resumed[-1] == (1, 1, [3])
    assert len(notices) == 1
    assert "It is set aside as epoch.ckpt.refused; going on from the one before it." in notices[0]
    assert_same_numbers(stopped, whole)


@pytest.mark.parametrize("what", WRONG_TASK)
def test_a_well_formed_task_with_wrong_content_is_set_aside_like_a_damaged_one(what, stopped, whole):
    file = stopped / "task-001.ckpt"
    tree = checkpoint.load(file)
    checkpoint.save(file, tree | WRONG_TASK[what](tree))
    notices, resumed = go_on(stopped)
    assert resumed[-1] == (0, 0, [])
    assert "It is set aside as task-001.ckpt.refused; going on from the one before it." in notices[0]
    assert_same_numbers(stopped, whole)


def test_a_pipe_in_place_of_a_checkpoint_is_set_aside_at_once(stopped, whole):
    (stopped / "epoch.ckpt").unlink()
    os.mkfifo(stopped / "epoch.ckpt")
    notices, resumed = go_on(stopped)
    assert resumed == [(1, 1, [3])]
    assert "epoch.ckpt is no file" in notices[0]
    assert_same_numbers(stopped, whole)


def test_a_damaged_epoch_does_not_take_the_place_of_a_good_one(stopped, whole):
    cut(stopped / "epoch.ckpt")

    def stop_while_saving(*_):
        raise Stop

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rundir.checkpoint, "save", stop_while_saving)
        with pytest.raises(Stop):
            run(RECIPE, RunDirectory(stopped))
    assert go_on(stopped) == ([], [(1, 1, [3])])
    assert_same_numbers(stopped, whole)


def test_without_a_good_epoch_the_task_begins_again(stopped, whole):
    for name in ("epoch.ckpt", "epoch-before.ckpt"):
        cut(stopped / name)
    notices, resumed = go_on(stopped)
    assert resumed == [(1, 0, [3])]
    assert len(notices) == 2
    assert_same_numbers(stopped, whole)


def test_without_the_beginning_of_its_task_the_one_before_is_learned_again(stopped, whole):
    cut(stopped / "task-001.ckpt")
    notices, resumed = go_on(stopped)
    assert resumed == [(0, 0, [])]
    assert len(notices) == 1
    assert_same_numbers(stopped, whole)


def test_no_code_in_a_checkpoint_is_run(stopped, whole, tmp_path):
    class Evil:
        def __reduce__(self):
            return (os.mkdir, (str(tmp_path / "evil"),))

    for name in ("epoch.ckpt", "task-001.ckpt"):
        torch.save({"task": 1, "x": Evil()}, stopped / name)
    go_on(stopped)
    assert not (tmp_path / "evil").exists()
    assert_same_numbers(stopped, whole)

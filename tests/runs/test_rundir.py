"""The run directory: one recipe for good, damaged files refused, what was computed kept."""

import builtins
import errno
import json
import os
import shutil

import pytest
import torch

from codecl.cli.main import main
from codecl.errors import UsageError
from codecl.runs import rundir
from codecl.runs.events import ResumeEvent
from codecl.runs.provenance import data_digest
from codecl.runs.recipe import make_recipe
from codecl.runs.records import read_run
from codecl.runs.run import run
from codecl.runs.rundir import RunDirectory
from codecl.training import checkpoint, metrics
from codecl.training.stream import FromDataset, Stream, Task, Tensors
from tests.runs.running import codecl, contents, epochs_of, log_of, result_of

pytestmark = pytest.mark.slow

RECIPE = make_recipe({"method": "code-cl", "tasks": 3}, {"overlap": 0.0, "batch_size": 200}, epochs=3)


class Stop(Exception):
    """Raised by an observer to end a run at a certain event."""


def stop_at(event, task, epoch=None):
    def observe(e):
        if (e.kind, e.task, getattr(e, "epoch", None)) == (event, task, epoch):
            raise Stop

    return observe


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    path = tmp_path_factory.mktemp("whole") / "run"
    run(RECIPE, RunDirectory(path))
    return path


@pytest.fixture(scope="module")
def stopped_once(tmp_path_factory):
    """A run that was stopped in its second task, when the third epoch was logged but not saved."""
    path = tmp_path_factory.mktemp("stopped") / "run"
    with pytest.raises(Stop):
        run(RECIPE, RunDirectory(path), (stop_at("epoch", 1, 3),))
    return path


@pytest.fixture
def stopped(stopped_once, tmp_path):
    return shutil.copytree(stopped_once, tmp_path / "run")


def go_on(path):
    """Go on with the run in ``path``: its notices, and where it says that it goes on."""
    notices, resumed = [], []
    directory = RunDirectory(path)
    directory.on_notice = notices.append

    def observe(event):
        if isinstance(event, ResumeEvent):
            resumed.append((event.task, event.epoch, event.epochs))

    run(RECIPE, directory, (observe,))
    return notices, resumed


def assert_same_numbers(path, whole):
    assert result_of(path)["accuracy"] == result_of(whole)["accuracy"]
    assert epochs_of(path) == epochs_of(whole)
    ours, theirs = (checkpoint.load(p / "final.ckpt")["model"] for p in (path, whole))
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


# The records.


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
        "method": str, "benchmark": str, "preset": str, "quick": bool, "seed": int, "data": str, "tasks": int,
        "accuracy": list, "acc": float, "bwt": float, "seconds": dict, "bytes": dict, "threads": int, "versions": dict,
    }  # fmt: skip
    assert {key: type(result[key]) for key in kinds} == kinds
    assert (result["method"], result["benchmark"], result["preset"]) == ("code-cl", "permuted-digits", "paper")
    assert (result["quick"], result["seed"], result["tasks"], result["threads"]) == (False, 0, 3, 1)
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


# Going on.


def test_a_stopped_run_goes_on_after_its_last_saved_epoch(stopped, whole):
    assert sum(e["event"] == "epoch" for e in log_of(stopped)) == 6
    assert go_on(stopped) == ([], [(1, 2, [3])])
    assert_same_numbers(stopped, whole)
    assert result_of(stopped)["epochs"] == [3, 3, 3]


@pytest.mark.parametrize(
    ("event", "expected"),
    [
        (("epoch", 0, 1), (0, 0, [])),
        (("task", 0), (0, 3, [])),
        (("epoch", 1, 1), (1, 0, [3])),
        (("task", 2), (2, 3, [3, 3])),
    ],
    ids=str,
)
def test_it_goes_on_from_anywhere(event, expected, whole, tmp_path):
    with pytest.raises(Stop):
        run(RECIPE, RunDirectory(tmp_path / "run"), (stop_at(*event),))
    assert go_on(tmp_path / "run") == ([], [expected])
    assert_same_numbers(tmp_path / "run", whole)


def test_seconds_add_up_over_a_stop(stopped):
    before = checkpoint.load(stopped / "epoch.ckpt")["seconds"]
    slow = checkpoint.load(stopped / "epoch.ckpt") | {"seconds": dict.fromkeys(before, 1000.0)}
    checkpoint.save(stopped / "epoch.ckpt", slow)
    go_on(stopped)
    assert all(1000 < value < 1100 for value in result_of(stopped)["seconds"].values())


# Damaged checkpoints.


def cut(file):
    file.write_bytes(file.read_bytes()[:-1000])


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


def test_checkpoints_of_a_run_killed_while_it_finished_are_removed(whole, tmp_path):
    path = shutil.copytree(whole, tmp_path / "run")
    for name in ("task-002.ckpt", "epoch.ckpt"):
        shutil.copy(path / "final.ckpt", path / name)
    result = run(RECIPE, RunDirectory(path))
    assert result.to_fields() == result_of(whole)
    assert [file.name for file in path.glob("*.ckpt")] == ["final.ckpt"]


# What numbers depend on besides the recipe.


@pytest.mark.parametrize("name", ["data", "torch", "codecl"])
def test_a_run_goes_on_with_other_data_or_versions_only_if_that_is_accepted(name, stopped, whole, capsys):
    for file in stopped.glob("*.ckpt"):
        tree = checkpoint.load(file)
        checkpoint.save(file, tree | {"made_with": tree["made_with"] | {name: "0.0"}})
    log = (stopped / "log.jsonl").read_bytes()
    code, out, err = codecl(capsys, "run", "--resume", stopped, "--quiet")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.endswith(f"To go on all the same: --accept {name}\n")
    assert ("other data" if name == "data" else f"{name} 0.0, and this is") in err
    assert (stopped / "log.jsonl").read_bytes() == log
    assert codecl(capsys, "run", "--resume", stopped, "--quiet", "--accept", name)[0] == 0
    assert_same_numbers(stopped, whole)


def test_the_digest_tells_other_data_and_not_other_copies():
    labels = torch.arange(4)

    def stream(x, y=labels, kind=Tensors):
        return Stream("s", [Task("a", 4, *[kind(x, y)] * 3)])

    x = torch.arange(8.0).view(4, 2)
    digest = data_digest(stream(x))
    assert digest == data_digest(stream(x.clone())) == data_digest(stream(x.mT.contiguous().mT))
    assert len({digest, data_digest(stream(x + 1)), data_digest(stream(x, labels.flip(0)))}) == 3
    files = [(x[i], int(label)) for label in (0, 1) for i in range(4)]
    from_files = [FromDataset(files), FromDataset(files[:-1]), FromDataset([*files[:-1], (x[0], 3)])]
    assert len({data_digest(stream(None, part, lambda _, part: part)) for part in from_files}) == 3


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


def test_without_any_good_checkpoint_it_starts_anew_only_when_asked(stopped, whole, capsys):
    for file in stopped.glob("*.ckpt"):
        cut(file)
    log = (stopped / "log.jsonl").read_bytes()
    for _ in range(2):
        code, _, err = codecl(capsys, "run", "--resume", stopped, "--quiet")
        assert code == 2
        assert err.splitlines()[-1] == (
            f"codecl: no checkpoint in {stopped} can be read, so the run cannot go on. "
            f"To begin it again: codecl run --resume {stopped} --restart"
        )
        assert (stopped / "log.jsonl").read_bytes() == log
    assert codecl(capsys, "run", "--resume", stopped, "--restart", "--quiet")[0] == 0
    assert_same_numbers(stopped, whole)
    assert log_of(stopped)[0]["epoch"] == 1
    assert contents(stopped).keys() == contents(whole).keys()


def test_a_finished_run_is_begun_again_only_when_asked(whole, tmp_path, capsys):
    path = shutil.copytree(whole, tmp_path / "run")
    before = contents(path)
    assert codecl(capsys, "run", "--resume", path)[1].startswith("this run was finished already")
    assert contents(path) == before
    assert codecl(capsys, *arguments(["--seed", "1"], path), "--restart")[0] == 2  # another recipe
    assert contents(path) == before
    assert not codecl(capsys, *arguments([], path), "--restart")[1].startswith("this run was finished already")
    assert_same_numbers(path, whole)
    assert "resume" not in [event["event"] for event in log_of(path)]


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


def test_no_code_in_a_checkpoint_is_run(stopped, whole, tmp_path):
    class Evil:
        def __reduce__(self):
            return (os.mkdir, (str(tmp_path / "evil"),))

    for name in ("epoch.ckpt", "task-001.ckpt"):
        torch.save({"task": 1, "x": Evil()}, stopped / name)
    go_on(stopped)
    assert not (tmp_path / "evil").exists()
    assert_same_numbers(stopped, whole)


def test_a_torn_line_of_the_log_is_forgotten(stopped, whole):
    with open(stopped / "log.jsonl", "a") as log:
        log.write('{"event": "epo')
    assert len(read_run(stopped).events) == 7
    assert go_on(stopped) == ([], [(1, 2, [3])])
    assert_same_numbers(stopped, whole)


@pytest.mark.parametrize(
    "line", [b"\xff\xfe\n", b'{"event": "epo\n', b"{}\n", b'{"event": "notice", "text": "a", "crc": "0"}\n']
)
def test_a_log_is_cut_at_its_last_good_line(line, stopped, whole):
    log = stopped / "log.jsonl"
    lines = log.read_bytes().splitlines(keepends=True)
    log.write_bytes(b"".join([*lines[:2], line, *lines[3:]]))
    notices, resumed = go_on(stopped)
    assert resumed == [(1, 2, [3])]
    assert [notice.startswith(f"{log} is damaged: line 3: ") for notice in notices] == [True]
    assert result_of(stopped)["accuracy"] == result_of(whole)["accuracy"]
    assert epochs_of(stopped) == [*epochs_of(whole)[:2], *epochs_of(whole)[5:]]


def test_a_log_that_is_a_link_is_replaced_and_not_written_to(stopped, tmp_path):
    log, thesis = stopped / "log.jsonl", tmp_path / "thesis.txt"
    thesis.write_text("mine\n")
    log.unlink()
    log.symlink_to(thesis)
    notices, _ = go_on(stopped)
    assert "line 1: it is not JSON" in notices[0]
    assert thesis.read_text() == "mine\n"
    assert not log.is_symlink()


def test_a_pipe_in_place_of_the_log_is_refused_at_once(stopped, capsys):
    (stopped / "log.jsonl").unlink()
    os.mkfifo(stopped / "log.jsonl")
    code, _, err = codecl(capsys, "run", "--resume", stopped, "--quiet")
    assert (code, err.count("\n")) == (2, 1)
    assert "not a regular file" in err


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


# Refusals: one line, exit code 2, nothing touched.


def arguments(recipe, path):
    changes = ["--set", "overlap=0.0", "--set", "batch_size=200"]
    return ["run", "--tasks", "3", "--epochs", "3", *changes, *recipe, "--out", str(path)]


def refused(capsys, path, *recipe):
    before = contents(path)
    code, out, err = codecl(capsys, *arguments(recipe, path))
    assert contents(path) == before
    assert code == 2
    assert out == ""
    assert err.count("\n") == 1
    return err


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


def test_a_directory_of_something_else_is_refused(tmp_path, capsys):
    (tmp_path / "thesis.tex").write_text("mine")
    assert "is not empty and not a run directory" in refused(capsys, tmp_path)


def test_a_file_of_the_users_called_lock_survives(tmp_path, capsys):
    (tmp_path / "lock").write_text("mine")
    (tmp_path / "thesis.tex").write_text("mine")
    refused(capsys, tmp_path)
    assert (tmp_path / "lock").read_text() == "mine"


def test_a_directory_in_use_is_refused(stopped, whole, capsys):
    with RunDirectory(stopped).locked():
        assert "another process is working in" in refused(capsys, stopped)
    assert main(arguments([], stopped)) == 0
    assert_same_numbers(stopped, whole)


@pytest.mark.parametrize("text", ['{"accuracy": [[', "", "[]", "{}", "\x00\x01"])
def test_a_damaged_result_is_refused(text, whole, tmp_path, capsys):
    path = shutil.copytree(whole, tmp_path / "run")
    (path / "result.json").write_text(text)
    err = refused(capsys, path)
    again = f"codecl run --resume {path} --restart"
    assert "result.json is damaged" in err
    assert err.endswith(f" Remove it to go on, or begin again: {again}\n")
    (path / "result.json").unlink()
    assert f"there is no checkpoint to go on from. Put the checkpoints back, or begin it again: {again}" in refused(
        capsys, path
    )
    assert main(arguments(["--restart"], path)) == 0
    assert_same_numbers(path, whole)


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
@pytest.mark.parametrize("name", ["result.json", "recipe.toml", "lock"])
def test_what_is_no_file_is_refused_at_once(make, name, stopped, whole, capsys):
    kept = (stopped / name).read_bytes() if (stopped / name).exists() else None
    (stopped / name).unlink(missing_ok=True)
    make(stopped / name)
    for command in (["run", "--resume", stopped, "--quiet"], ["export", stopped, "--out", stopped / "x.pt2"]):
        if (command[0], name) == ("export", "lock"):  # which it does not need
            continue
        code, _, err = codecl(capsys, *command)
        assert (code, err.count("\n")) == (2, 1), err
        assert err.startswith(f"codecl: {stopped / name}")
    (stopped / name).rmdir() if make is os.mkdir else (stopped / name).unlink()
    if kept is not None:
        (stopped / name).write_bytes(kept)
    go_on(stopped)
    assert_same_numbers(stopped, whole)


def test_a_run_whose_checkpoints_were_removed_begins_again_only_when_asked(stopped, whole, capsys):
    for file in stopped.glob("*.ckpt"):
        file.unlink()
    before = contents(stopped)
    assert refused(capsys, stopped) == (
        f"codecl: {stopped / 'log.jsonl'} tells of a run, but there is no checkpoint to go on from. "
        f"Put the checkpoints back, or begin it again: codecl run --resume {stopped} --restart\n"
    )
    assert contents(stopped) == before
    assert codecl(capsys, "run", "--resume", stopped, "--restart", "--quiet")[0] == 0
    assert_same_numbers(stopped, whole)
    assert "resume" not in [event["event"] for event in log_of(stopped)]


def test_a_log_that_was_removed_is_told(stopped, whole):
    (stopped / "log.jsonl").unlink()
    notices, resumed = go_on(stopped)
    assert resumed == [(1, 2, [3])]
    assert notices == [f"{stopped / 'log.jsonl'} has 0 lines of the 6 before the checkpoint."]
    assert result_of(stopped)["accuracy"] == result_of(whole)["accuracy"]


def test_beginning_again_may_be_stopped_at_any_moment(stopped, whole, tmp_path, monkeypatch, capsys):
    """What is left goes on to the same numbers, or wants to be begun again."""
    found = set()
    for count in range(20):
        path = shutil.copytree(stopped, tmp_path / f"run-{count}")
        left, unlink = [count], os.unlink

        def stop(*given, left=left, unlink=unlink, **options):
            left[0] -= 1
            if left[0] < 0:
                raise Stop
            return unlink(*given, **options)

        with monkeypatch.context() as patched:
            patched.setattr(os, "unlink", stop)
            try:
                RunDirectory(path).restart()
            except Stop:
                pass
            else:
                break
        code, _, err = codecl(capsys, "run", "--resume", path, "--quiet")
        found.add(code)
        if code == 2:
            assert err.endswith(f"codecl run --resume {path} --restart\n")
            assert codecl(capsys, "run", "--resume", path, "--restart", "--quiet")[0] == 0
        assert_same_numbers(path, whole)
        assert [e["event"] for e in log_of(path) if e["event"] != "resume"].count("task") == 3
    assert found == {0, 2}
    assert count > 4


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


@pytest.mark.parametrize("left", [[], ["lock"], ["lock", "recipe.toml.new"]], ids=str)
def test_what_a_run_killed_in_its_first_moments_leaves_is_no_obstacle(left, whole, tmp_path):
    path = tmp_path / "run"
    path.mkdir()
    for name in left:
        (path / name).write_text("" if name == "lock" else 'method = "code-c')
    assert go_on(path) == ([], [])
    assert_same_numbers(path, whole)


def test_only_whole_files_are_ever_seen(tmp_path, monkeypatch):
    directory = RunDirectory(tmp_path / "run")

    def stop(*_):
        raise Stop

    monkeypatch.setattr(rundir.os, "replace", stop)
    with pytest.raises(Stop):
        directory.open_for(RECIPE)
    assert not directory.recipe_file.exists()


def test_a_directory_without_a_recipe_cannot_be_resumed(tmp_path):
    with pytest.raises(UsageError, match=r"is not a run directory: it has no recipe\.toml"):
        RunDirectory(tmp_path).recipe()


# A full disk.


@pytest.mark.parametrize("where", ["save", "log", "result", "recipe"])
def test_a_full_disk_is_said_and_nothing_is_lost(where, whole, tmp_path, capsys, monkeypatch):
    path, real, real_open = tmp_path / "run", checkpoint.save, builtins.open

    def save(file, tree):
        if tree.get("epoch") == 2 and tree["task"] == 1:
            raise OSError(errno.ENOSPC, "No space left on device", str(file))
        real(file, tree)

    def opens(file, *rest, **options):
        name, modes = os.path.basename(file) if isinstance(file, str | os.PathLike) else "", rest[:1]
        log_is_long = name == "log.jsonl" and path.joinpath(name).exists() and path.joinpath(name).stat().st_size > 900
        if modes and modes[0] != "r" and name == {"result": "result.json.new", "recipe": "recipe.toml.new"}.get(where):
            raise OSError(errno.ENOSPC, "No space left on device")
        if where == "log" and log_is_long:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real_open(file, *rest, **options)

    with monkeypatch.context() as patch:
        if where == "save":
            patch.setattr(checkpoint, "save", save)
        else:
            patch.setattr(builtins, "open", opens)
        code, _, err = codecl(capsys, *arguments([], path))
    assert code == 1
    assert "No space left on device. Free" in err
    assert err.endswith("Free some space; the same command again goes on.\n")
    assert err.count("\n") == 1
    done = 0 if where == "recipe" else len(epochs_of(path))
    assert done >= {"save": 5, "log": 3, "result": 9, "recipe": 0}[where]
    code, _, err = codecl(capsys, *arguments([], path))
    assert (code, err) == (0, "")
    resumed = [sum(e["epochs"]) + e["epoch"] for e in log_of(path) if e["event"] == "resume"]
    assert resumed == ([] if where == "recipe" else [max(resumed)])
    assert all(n >= done - 1 for n in resumed)
    assert_same_numbers(path, whole)


def test_a_file_system_out_of_quota_is_full_too(tmp_path, capsys, monkeypatch):
    def save(file, tree):
        raise OSError(errno.EDQUOT, "Disk quota exceeded", str(file))

    monkeypatch.setattr(checkpoint, "save", save)
    code, _, err = codecl(capsys, *arguments([], tmp_path / "run"))
    assert code == 1
    assert "Disk quota exceeded" in err
    assert "the same command again goes on" in err


def test_a_nan_loss_is_said_and_nothing_is_lost(tmp_path, capsys):
    path = tmp_path / "run"
    code, _, err = codecl(capsys, *arguments(["--set", "lr=999999"], path))
    assert code == 1
    assert err.count("\n") == 1
    assert "became nan in epoch" in err
    assert "--set lr" in err
    assert "--out" in err
    assert (path / "task-000.ckpt").exists()
    assert not (path / "result.json").exists()
    assert json.loads(json.dumps(RunDirectory(path).recipe().training["lr"])) == 999999

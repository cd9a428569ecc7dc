"""A run of three tasks to try run directories on: stopped where one wants, going on, refused by the command."""

import torch

from codecl.runs.events import ResumeEvent
from codecl.runs.recipe import make_recipe
from codecl.runs.run import run
from codecl.runs.rundir import RunDirectory
from codecl.training import checkpoint
from tests.runs.running import codecl, contents, epochs_of, result_of

RECIPE = make_recipe({"method": "code-cl", "tasks": 3}, {"overlap": 0.0, "batch_size": 200}, epochs=3)


class Stop(Exception):
    """Raised by an observer to end a run at a certain event."""


def stop_at(event, task, epoch=None):
    def observe(e):
        if (e.kind, e.task, getattr(e, "epoch", None)) == (event, task, epoch):
            raise Stop

    return observe


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


def cut(file):
    file.write_bytes(file.read_bytes()[:-1000])


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

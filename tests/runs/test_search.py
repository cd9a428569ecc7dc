"""A search: what a trial is worth, what is pruned, and searches that go on."""

import importlib.util
import json

import pytest
import torch

from codecl.errors import UsageError
from codecl.files import locked
from codecl.runs.recipe import make_recipe
from codecl.runs.run import make_trainer, run
from codecl.runs.rundir import RunDirectory
from codecl.runs.search import Range, Search, parse_ranges
from codecl.training import checkpoint
from tests.runs.running import codecl, log_of

BASE = {"method": "gpm", "benchmark": "permuted-digits", "tasks": 2}
TINY = {"epochs": 1, "batch_size": 200}
RANGES = [Range("lr", 0.01, 0.5, whole=False), Range("threshold", 0.8, 0.99, whole=False)]


def test_ranges_and_what_is_none():
    base = make_recipe({"method": "code-cl"}, {})
    lr, aperture, freed = parse_ranges(["lr=1e-3..0.2", "aperture = 1..9", "free_dims=0..40"], base)
    assert (lr, lr.log) == (Range("lr", 0.001, 0.2, whole=False), True)
    assert (aperture, aperture.log) == (Range("aperture", 1.0, 9.0, whole=False), False)
    assert (freed, freed.log) == (Range("free_dims", 0.0, 40.0, whole=True), False)
    for wrong in ("lr", "lr=1", "lr=2..1", "lr=a..b", "=1..2", "lr=1..nan"):
        with pytest.raises(UsageError, match=r"--search takes name=low\.\.high"):
            parse_ranges([wrong], base)
    with pytest.raises(UsageError, match="lr is given twice"):
        parse_ranges(["lr=1..2", "lr=1..3"], base)
    with pytest.raises(UsageError, match="free_dims is a whole number"):
        parse_ranges(["free_dims=0.5..4"], base)


def test_without_optuna(tmp_path, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"needs the package optuna: pip install 'codecl\[optuna\]'"):
        search(tmp_path)


@pytest.fixture
def optuna():
    return pytest.importorskip("optuna")


def search(out, seeds=(0,), ranges=RANGES, **changes):
    lines = []
    found = Search(
        out, ranges, lambda values: make_recipe(BASE, TINY | changes | dict(values)), seeds, out / "data", lines.append
    )
    found.lines = lines
    return found


def test_a_trial_is_worth_the_validation_accuracy_of_all_tasks_at_its_end(optuna, tmp_path):
    found = search(tmp_path, seeds=(0, 1), lr=0.3)
    found.run(1)
    (trial,) = found.ended()
    assert trial.state == "complete"
    means = []
    for seed in (0, 1):
        directory = RunDirectory(tmp_path / f"trial-000/seed{seed}")
        assert directory.recipe().training["lr"] == trial.values["lr"]
        trainer = make_trainer(directory.recipe(), tmp_path / "data")
        state = checkpoint.load(directory.path / "final.ckpt")
        trainer.model.load_state_dict(state["model"])
        trainer.method.load_state_dict(state["method"])
        for t, task in enumerate(trainer.stream.tasks):
            with trainer.method.task(t), torch.no_grad():
                x, y = task.validation.take(torch.arange(len(task.validation)))
                means.append(100 * float((trainer.model.eval()(x).argmax(1) == y).double().mean()))
    assert trial.accuracy == pytest.approx(sum(means) / 4)


def test_a_search_that_is_stopped_goes_on_to_the_same_trials(optuna, tmp_path, monkeypatch):
    whole = search(tmp_path / "whole")
    whole.run(3)

    class Stop(BaseException):
        pass

    def stop(recipe, directory, *args, watching, **settings):
        if directory.path.parent.name == "trial-001":  # in the middle of it
            settings["watching"] = lambda trainer: Stopping(watching(trainer))
        else:
            settings["watching"] = watching
        return run(recipe, directory, *args, **settings)

    class Stopping:
        def __init__(self, observer):
            self.observer = observer

        def __call__(self, event):
            self.observer(event)
            if event.kind == "task":
                raise Stop

    stopped = search(tmp_path / "stopped")
    with monkeypatch.context() as patched:
        patched.setattr("codecl.runs.search.run", stop)
        with pytest.raises(Stop):
            stopped.run(3)
    again = search(tmp_path / "stopped")
    again.run(3)
    assert again.ended() == whole.ended()
    assert [trial.number for trial in again.ended()] != []
    assert [event for event in log_of(tmp_path / "stopped/trial-001/seed0") if event["event"] == "resume"]
    again.run(3)
    assert len(again.lines) == 2  # the one that was stopped, and the last


def test_a_trial_that_another_process_works_on_is_left_to_it(optuna, tmp_path):
    theirs = search(tmp_path)
    trial = theirs.study.ask()
    (tmp_path / "trial-000").mkdir()
    ours = search(tmp_path)
    with locked(tmp_path / "trial-000/lock"):
        ours.run(2)
        assert [trial.number for trial in ours.ended()] == [1]
    theirs.study.tell(trial.number, 12.0)
    assert {trial.number: trial.accuracy for trial in ours.ended()}[0] == 12.0


def test_a_bad_trial_is_pruned_after_its_first_task(optuna, tmp_path):
    found = search(tmp_path, ranges=[Range("lr", 0.1, 0.5, whole=False)])
    found.study.pruner = optuna.pruners.ThresholdPruner(lower=101.0)  # none is good enough
    found.run(1)
    (trial,) = found.ended()
    assert trial.state == "pruned"
    assert found.lines[0].endswith("pruned after task 1")
    assert not (tmp_path / "trial-000/seed0/result.json").exists()


def test_another_search_in_the_same_place_is_refused(optuna, tmp_path):
    search(tmp_path)
    for other in ({"seeds": (1,)}, {"ranges": RANGES[:1]}, {"batch_size": 100}):
        with pytest.raises(UsageError, match="holds another search"):
            search(tmp_path, **other)


def test_the_command(optuna, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ("sweep", "--method", "gpm", "--search", "lr=0.01..0.5", "--tasks", "2", "--epochs", "1", "--out", "s")
    code, out, err = codecl(capsys, *words, "--trials", "1")
    assert code == 0
    assert out.splitlines()[0].split() == ["trial", "lr", "validation", "%", "state"]
    assert "the best recipe: s/trial-000/seed0/recipe.toml" in out
    assert err.startswith("trial 0: lr ")
    code, out, _ = codecl(capsys, *words, "--trials", "2", "--json")
    assert [trial["number"] for trial in sorted(json.loads(out)["trials"], key=lambda t: t["number"])] == [0, 1]
    assert codecl(capsys, "run", "s/trial-000/seed0/recipe.toml", "--out", "again", "--quiet")[0] == 0
    ours, theirs = (json.loads((tmp_path / p / "result.json").read_text()) for p in ("again", "s/trial-000/seed0"))
    assert ours["accuracy"] == theirs["accuracy"]
    code, _, err = codecl(capsys, *words, "--jobs", "2")
    assert code == 2
    assert "one trial at a time" in err
    code, _, err = codecl(capsys, *words[:3], "--search", "speed=1..2", "--out", "t")
    assert code == 2
    assert "speed" in err

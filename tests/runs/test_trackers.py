"""TensorBoard, MLflow and Weights & Biases, played by modules that take notes."""

import sys
import types

import pytest

from codecl.errors import UsageError
from codecl.runs.events import make_event
from codecl.runs.recipe import make_recipe
from codecl.runs.trackers import open_tracker, scalars
from tests.runs.running import SMALL, codecl, log_of, result_of

RECIPE = make_recipe({"method": "finetune", "seed": 3}, {})
EPOCH = {
    "event": "epoch", "task": 0, "epoch": 1, "of": 9, "loss": 2, "validation_loss": 1.5, "validation_accuracy": 40.0,
    "lr": 0.1, "seconds": 1.0,
}  # fmt: skip
TASK = {"event": "task", "name": "a", "layers": {}}
EVENTS = [
    EPOCH,
    EPOCH | {"epoch": 2},
    TASK | {"task": 0, "accuracy": [80.0, None], "bytes": {"memory": 5, "per_task": 1}},
    EPOCH | {"task": 1},
    TASK | {"task": 1, "accuracy": [70.0, 90.0], "bytes": {"memory": 7, "per_task": 1}},
]
OF_EPOCH = {"loss": 2.0, "validation_loss": 1.5, "validation_accuracy": 40.0, "lr": 0.1}
EXPECTED = [
    *((f"task 0/{name}", value, 1) for name, value in OF_EPOCH.items()),
    *((f"task 0/{name}", value, 2) for name, value in OF_EPOCH.items()),
    ("test accuracy/task 0", 80.0, 2),
    ("test accuracy/mean", 80.0, 2),
    ("memory/bytes", 5.0, 2),
    *((f"task 1/{name}", value, 3) for name, value in OF_EPOCH.items()),
    ("test accuracy/task 0", 70.0, 3),
    ("test accuracy/task 1", 90.0, 3),
    ("test accuracy/mean", 80.0, 3),
    ("memory/bytes", 7.0, 3),
]


@pytest.fixture
def notes(monkeypatch):
    """Every scalar that any of the three was given, and what else was said to them."""
    noted = types.SimpleNamespace(scalars=[], said=[])

    class SummaryWriter:
        def __init__(self, path):
            noted.said.append(("open", path))
            from pathlib import Path

            Path(path).mkdir(parents=True)  # as the real one does, at once
            (Path(path) / "events.out").touch()

        def add_text(self, name, text):
            noted.said.append((name, text))

        def add_scalar(self, name, value, step):
            noted.scalars.append((name, value, step))

        def close(self):
            noted.said.append(("close",))

    def several(values, step):
        assert values
        noted.scalars.extend((name, value, step) for name, value in values.items())

    def module(name, **members):
        made = types.ModuleType(name)
        vars(made).update(members)
        monkeypatch.setitem(sys.modules, name, made)

    def note(*words):
        return lambda *a, **k: noted.said.append((*words, *a, k) if k else (*words, *a))

    def init(**options):
        noted.said.append(("init", options))
        return types.SimpleNamespace(log=several, finish=note("close"))

    module("tensorboard")
    module("torch.utils.tensorboard", SummaryWriter=SummaryWriter)
    module(
        "mlflow", set_experiment=note("experiment"), start_run=note("run"), log_params=note("params"),
        log_metrics=several, end_run=note("close"),
    )  # fmt: skip
    module("wandb", init=init)
    return noted


@pytest.mark.parametrize("name", ["tensorboard", "mlflow", "wandb"])
def test_scalars_arrive_with_the_epoch_as_their_step(name, notes, tmp_path):
    tracker = open_tracker(name, tmp_path / "run", RECIPE)
    for event in EVENTS:
        tracker(make_event(event))
    tracker(make_event({"event": "notice", "text": "nothing to track"}))
    assert notes.scalars == EXPECTED
    assert ("close",) not in notes.said
    tracker.close()
    assert notes.said[-1] == ("close",)


def test_each_is_told_what_is_run(notes, tmp_path):
    path = tmp_path / "run"
    open_tracker("tensorboard", path, RECIPE)
    assert notes.said == [("open", str(path / "tensorboard")), ("recipe", RECIPE.to_toml())]
    notes.said.clear()
    known = {"benchmark": "permuted-digits", "method": "finetune", "seed": 3}
    open_tracker("mlflow", path, RECIPE)
    assert notes.said == [("experiment", "permuted-digits"), ("run", {"run_name": "run"}), ("params", known)]
    notes.said.clear()
    open_tracker("wandb", path, RECIPE)
    config = known | {"text": RECIPE.to_toml()}
    assert notes.said == [("init", {"project": "codecl", "name": "run", "dir": str(path), "config": config})]


@pytest.mark.parametrize("name", ["tensorboard", "mlflow", "wandb"])
def test_after_a_resumption_the_steps_go_on(name, notes, tmp_path):
    tracker = open_tracker(name, tmp_path / "run", RECIPE)
    tracker(make_event({"event": "resume", "task": 2, "epoch": 3, "epochs": [4, 5]}))
    tracker(make_event(EPOCH | {"task": 2, "epoch": 4}))
    assert {step for _, _, step in notes.scalars} == {4 + 5 + 4}


def test_an_epoch_that_is_run_again_has_the_step_it_had(notes, tmp_path):
    tracker = open_tracker("wandb", tmp_path, RECIPE)
    for event in (EPOCH, EPOCH | {"epoch": 2}, EPOCH | {"epoch": 2}, EPOCH | {"task": 1}):
        tracker(make_event(event))
    assert [step for name, _, step in notes.scalars if name.endswith("/loss")] == [1, 2, 2, 3]


def test_other_events_have_no_scalars():
    assert list(scalars(make_event({"event": "resume", "task": 1, "epoch": 2, "epochs": [3]}))) == []


def test_a_tracked_run_in_a_new_directory_and_resumed(notes, tmp_path, capsys):
    """A tracker writes into the run directory at once; the directory still is the run's."""
    path = tmp_path / "run"
    arguments = ("run", "--method", "finetune", *SMALL, "--out", path, "--quiet", "--track", "tensorboard")
    code, _, err = codecl(capsys, *arguments, "--track", "wandb")
    assert (code, err) == (0, "")
    losses = [e["loss"] for e in log_of(path) if e["event"] == "epoch"]
    tracked = [value for name, value, _ in notes.scalars if name.endswith("/loss") and "validation" not in name]
    assert tracked == [loss for loss in losses for _ in range(2)]
    assert max(step for _, _, step in notes.scalars) == 4
    assert notes.said.count(("close",)) == 2
    notes.said.clear()
    assert codecl(capsys, *arguments)[0] == 0  # finished: nothing is opened
    assert notes.said == []
    assert result_of(path)["tasks"] == 2


def test_trackers_are_closed_when_a_run_fails(notes, tmp_path, capsys):
    out = ("--out", tmp_path / "run", "--quiet", "--track", "mlflow")
    code, _, err = codecl(capsys, "run", "--method", "finetune", *SMALL, "--set", "lr=1e30", *out)
    assert code == 1
    assert "became nan" in err
    assert notes.said[-1] == ("close",)


@pytest.mark.parametrize("name", ["tensorboard", "mlflow", "wandb"])
def test_a_missing_package_names_the_extra(name, monkeypatch, tmp_path, capsys):
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(UsageError, match=rf"--track {name} needs .*pip install 'codecl\[{name}\]'"):
        open_tracker(name, tmp_path, RECIPE)
    code, _, err = codecl(capsys, "run", *SMALL, "--out", tmp_path / "run", "--track", name)
    assert code == 2
    assert f"codecl[{name}]" in err
    assert not (tmp_path / "run").exists()


def test_an_unknown_tracker_is_refused_with_a_suggestion(tmp_path):
    with pytest.raises(UsageError, match=r"no tracker 'tensorbord'\. Did you mean 'tensorboard'"):
        open_tracker("tensorbord", tmp_path, RECIPE)

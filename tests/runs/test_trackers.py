"""Trackers: what they are told, and what becomes of a run whose tracker fails."""

import contextlib
import json
import os
import sys
import types

import pytest

from codecl.errors import UsageError
from codecl.runs import trackers
from codecl.runs.events import make_event
from codecl.runs.trackers import PARENT, Tracker, parent_run, run_title
from tests.runs.running import SMALL, codecl, log_of, result_of
from tests.runs.tracking import EPOCH, EVENTS, EXPECTED, RECIPE, RESUME, TASK, track


class Notes:
    """A tracker that takes notes."""

    def __init__(self, directory, parameters, known, parent):
        self.id, self.known, self.parameters, self.parent = known or "first", known, parameters, dict(parent)
        self.scalars, self.closed = [], None
        made.append(self)

    def log(self, values, step):
        self.scalars += [(name, value, step) for name, value in values.items()]

    def close(self, finished):
        self.closed = finished


class Down:
    """A tracker whose server is down."""

    def __init__(self, *_):
        raise ConnectionError("refused\nby the server")


class BreaksDown(Notes):
    """A tracker whose server goes down."""

    def log(self, values, step):
        super().log(values, step)
        raise ConnectionError("gone")


made = []


@pytest.fixture
def notes(monkeypatch):
    made.clear()
    monkeypatch.setitem(trackers.TRACKERS, "notes", Notes)
    monkeypatch.setitem(trackers.TRACKERS, "down", Down)
    monkeypatch.setitem(trackers.TRACKERS, "breaks-down", BreaksDown)
    for name in ("notes", "down", "breaks-down"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    return made


def test_numbers_arrive_over_one_continuous_step_with_tasks_counted_from_1(notes, tmp_path):
    tracker, warnings = track("notes", tmp_path, *EVENTS, {"event": "notice", "text": "nothing to track"})
    assert (notes[0].scalars, warnings, notes[0].closed) == (EXPECTED, [], None)
    tracker.close()
    assert notes[0].closed is True
    unfinished, _ = track("notes", tmp_path / "other", *EVENTS[:3])
    unfinished.close()
    assert notes[1].closed is False


def test_every_hyperparameter_is_told(notes, tmp_path):
    track("notes", tmp_path)
    told = notes[0].parameters
    assert (told["method"], told["seed"], told["tasks"], told["training.lr"]) == ("finetune", "3", "none", "0.1")
    assert {f"training.{name}" for name in RECIPE.training} <= told.keys()
    assert all(isinstance(value, str) for value in told.values())


def test_methods_that_learn_all_at_once_have_no_bwt(notes, tmp_path):
    joint = TASK | {"task": 1, "accuracy": [70.0, 90.0], "bytes": {"memory": 7, "per_task": 1}, "together": 2}
    track("notes", tmp_path, joint)
    names = [name for name, _, _ in notes[0].scalars]
    assert names == ["test accuracy/task 1", "test accuracy/task 2", "ACC", "memory bytes"]


def test_a_run_that_goes_on_does_so_in_the_same_run_of_its_tracker(notes, tmp_path):
    track("notes", tmp_path, *EVENTS[:3])
    (tmp_path / "log.jsonl").write_text("".join(make_event(event).to_line() for event in EVENTS[:3]))
    track("notes", tmp_path, RESUME, *EVENTS[3:])
    assert [note.known for note in notes] == [None, "first"]
    assert notes[0].scalars + notes[1].scalars == EXPECTED


def test_an_epoch_that_is_run_again_has_the_step_it_had(notes, tmp_path):
    track("notes", tmp_path, EPOCH, EPOCH | {"epoch": 2}, EPOCH | {"epoch": 2}, EPOCH | {"task": 1})
    assert [step for name, _, step in notes[0].scalars if name == "loss"] == [1, 2, 2, 3]


def test_a_server_that_is_down_is_one_warning_and_training_goes_on(notes, tmp_path, capsys):
    for name, says in (("down", "ConnectionError: refused by the server"), ("breaks-down", "ConnectionError: gone")):
        _, warnings = track(name, tmp_path / name, *EVENTS)
        assert warnings == [f"--track {name} does not work and is left out: {says}"]
    out = ("--out", tmp_path / "run", "--quiet", "--track", "down", "--track", "notes")
    code, _, err = codecl(capsys, "run", "--method", "finetune", *SMALL, *out)
    assert (code, err.count("\n")) == (0, 1)
    assert err.startswith("codecl: --track down does not work and is left out: ")
    assert notes[-1].closed is True


def test_a_tracked_run_in_a_new_directory_and_resumed(notes, tmp_path, capsys):
    """A tracker writes into the run directory at once; the directory still is the run's."""
    path = tmp_path / "run"
    arguments = ("run", "--method", "finetune", *SMALL, "--out", path, "--quiet", "--track", "notes")
    code, _, err = codecl(capsys, *arguments)
    assert (code, err) == (0, "")
    losses = [e["loss"] for e in log_of(path) if e["event"] == "epoch"]
    assert [value for name, value, _ in notes[0].scalars if name == "loss"] == losses
    assert [value for name, value, _ in notes[0].scalars if name == "ACC"][-1] == pytest.approx(result_of(path)["acc"])
    assert [value for name, value, _ in notes[0].scalars if name == "BWT"][-1] == pytest.approx(result_of(path)["bwt"])
    assert codecl(capsys, *arguments)[0] == 0  # finished: nothing is opened
    assert len(notes) == 1
    assert codecl(capsys, *arguments, "--restart")[0] == 0  # anew, in another run of the tracker
    assert [note.known for note in notes] == [None, None]


def test_trackers_are_closed_when_a_run_fails(notes, tmp_path, capsys):
    out = ("--out", tmp_path / "run", "--quiet", "--track", "notes")
    code, _, err = codecl(capsys, "run", "--method", "finetune", *SMALL, "--set", "lr=999999", *out)
    assert code == 1
    assert "became nan" in err
    assert notes[0].closed is False


def test_a_parent_run_is_finished_unless_its_runs_were_stopped(notes, tmp_path, monkeypatch):
    monkeypatch.setitem(trackers.TRACKERS, "mlflow", Notes)
    for stops in (False, True):
        with contextlib.suppress(KeyboardInterrupt), parent_run(["mlflow"], tmp_path / "c", "digits", print):
            assert json.loads(os.environ[PARENT])["mlflow"] == "first"
            if stops:
                raise KeyboardInterrupt
    assert [note.closed for note in notes] == [True, False]
    assert PARENT not in os.environ


@pytest.mark.parametrize("when", ["opened", "closed"])
def test_a_parent_run_whose_server_is_down_is_one_warning(when, notes, tmp_path, monkeypatch):
    class Falls(Notes):
        def close(self, finished):
            raise ConnectionError("gone")

    monkeypatch.setitem(trackers.TRACKERS, "mlflow", Down if when == "opened" else Falls)
    warnings, went_on = [], []
    with parent_run(["mlflow"], tmp_path / "c", "digits", warnings.append):
        went_on.append(True)
    says = "refused by the server" if when == "opened" else "gone"
    assert warnings == [f"--track mlflow does not work and is left out: ConnectionError: {says}"]
    assert went_on == [True]


def test_a_run_is_called_by_its_place_in_its_sweep(tmp_path):
    above = {"directory": str(tmp_path / "s")}
    assert run_title(tmp_path / "s" / "aperture=4" / "seed0", above) == "aperture=4/seed0"
    assert run_title(tmp_path / "elsewhere" / "a", above) == "a"
    assert run_title(tmp_path / "elsewhere" / "a", {}) == "a"


def test_trackers_of_a_search_are_looked_for_before_it_begins(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "mlflow", None)
    command = ("sweep", "--search", "aperture=1..9", "--trials", "1", *SMALL, "--out", tmp_path / "s")
    code, _, err = codecl(capsys, *command, "--track", "mlflow")
    assert (code, "--track mlflow needs the package mlflow" in err) == (2, True)
    assert not (tmp_path / "s").exists()


def test_the_trials_of_a_search_are_tracked(notes, tmp_path, capsys):
    pytest.importorskip("optuna", reason="optuna is not installed")
    command = ("sweep", "--search", "aperture=1..9", "--trials", "2", *SMALL, "--out", tmp_path / "s", "--quiet")
    assert codecl(capsys, *command, "--track", "notes")[::2] == (0, "")
    assert [note.parent["name"] for note in notes] == ["s", "s"]
    assert [note.closed for note in notes] == [True, True]
    assert len({note.parameters["settings.aperture"] for note in notes}) == 2


def test_prepared_commands_pass_trackers_on(notes, tmp_path, capsys):
    command = ("sweep", "--method", "gpm", "--vary", "threshold=0.8", *SMALL, "--out", tmp_path / "s", "--prepare")
    code, out, _ = codecl(capsys, *command, "--track", "notes", "--accept", "torch")
    assert code == 0
    assert out.endswith("--quiet --accept torch --track notes\n")


def test_the_ids_of_trackers_are_read_with_care(notes, tmp_path):
    (tmp_path / "trackers.json").write_text('{"notes": 3}')
    _, warnings = track("notes", tmp_path, *EVENTS)
    assert warnings == [
        "--track notes does not work and is left out: ValueError: trackers.json.notes must be text; got 3."
    ]


@pytest.mark.parametrize("name", ["tensorboard", "mlflow", "wandb"])
def test_a_missing_package_names_the_extra(name, monkeypatch, tmp_path, capsys):
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(UsageError, match=rf"--track {name} needs .*pip install 'codecl\[{name}\]'.* '\.\[{name}\]'"):
        Tracker(name, tmp_path, RECIPE, print)
    code, _, err = codecl(capsys, "run", *SMALL, "--out", tmp_path / "run", "--track", name)
    assert code == 2
    assert f"codecl[{name}]" in err
    assert not (tmp_path / "run").exists()


def test_an_unknown_tracker_is_refused_with_a_suggestion(tmp_path):
    with pytest.raises(UsageError, match=r"no tracker 'tensorbord'\. Did you mean 'tensorboard'"):
        Tracker("tensorbord", tmp_path, RECIPE, print)

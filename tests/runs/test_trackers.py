"""Trackers: what they are told, real TensorBoard event files, a real MLflow with a local store."""

import sys
import types

import pytest

from codecl.errors import UsageError
from codecl.runs import trackers
from codecl.runs.events import make_event
from codecl.runs.recipe import make_recipe
from codecl.runs.trackers import Tracker
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
RESUME = {"event": "resume", "task": 1, "epoch": 0, "epochs": [2]}
OF_EPOCH = {"loss": 2.0, "validation_loss": 1.5, "validation_accuracy": 40.0, "lr": 0.1}
EXPECTED = [
    *(("task", 1.0, 1), *((name, value, 1) for name, value in OF_EPOCH.items())),
    *(("task", 1.0, 2), *((name, value, 2) for name, value in OF_EPOCH.items())),
    ("test accuracy/task 1", 80.0, 2),
    ("ACC", 80.0, 2),
    ("memory bytes", 5.0, 2),
    *(("task", 2.0, 3), *((name, value, 3) for name, value in OF_EPOCH.items())),
    ("test accuracy/task 1", 70.0, 3),
    ("test accuracy/task 2", 90.0, 3),
    ("ACC", 80.0, 3),
    ("BWT", -10.0, 3),
    ("memory bytes", 7.0, 3),
]


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


def track(name, path, *events):
    warnings = []
    tracker = Tracker(name, path, RECIPE, warnings.append)
    for event in events:
        tracker(make_event(event))
    return tracker, warnings


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


def test_the_ids_of_trackers_are_read_with_care(notes, tmp_path):
    (tmp_path / "trackers.json").write_text('{"notes": 3}')
    _, warnings = track("notes", tmp_path, *EVENTS)
    assert warnings == [
        "--track notes does not work and is left out: ValueError: trackers.json.notes must be text; got 3."
    ]


def test_tensorboard_writes_event_files_that_it_reads(tmp_path, capsys):
    reading = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator", reason="no tensorboard")
    path = tmp_path / "run"
    arguments = ("run", "--method", "finetune", *SMALL, "--out", path, "--quiet", "--track", "tensorboard")
    assert codecl(capsys, *arguments)[::2] == (0, "")
    found = reading.EventAccumulator(str(path / "tensorboard"))
    found.Reload()
    assert [event.step for event in found.Scalars("loss")] == [1, 2, 3, 4]
    assert found.Scalars("ACC")[-1].value == pytest.approx(result_of(path)["acc"], rel=1e-6)
    assert [event.step for event in found.Scalars("test accuracy/task 1")] == [2, 4]
    (text,) = found.Tensors("recipe/text_summary")
    assert "| training.batch_size | 100 |" in text.tensor_proto.string_val[0].decode()


@pytest.fixture
def store(tmp_path, monkeypatch):
    """A local store of a real MLflow."""
    mlflow = pytest.importorskip("mlflow", reason="mlflow is not installed")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "mlruns").as_uri())
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    return mlflow.MlflowClient()


def test_mlflow_has_parameters_metrics_and_one_run_over_a_stop(store, tmp_path):
    first, warnings = track("mlflow", tmp_path / "run", *EVENTS[:3])
    first.close()
    (tmp_path / "run" / "log.jsonl").write_text("".join(make_event(event).to_line() for event in EVENTS[:3]))
    (experiment,) = [e for e in store.search_experiments() if e.name == "permuted-digits"]
    (run,) = store.search_runs([experiment.experiment_id])
    assert run.info.status == "KILLED"
    second, again = track("mlflow", tmp_path / "run", RESUME, *EVENTS[3:])
    second.close()
    assert warnings == again == []
    (run,) = store.search_runs([experiment.experiment_id])
    assert (run.info.status, run.info.run_name) == ("FINISHED", "run")
    assert run.data.params["training.lr"] == "0.1"
    assert run.data.metrics["BWT"] == -10.0
    for name in {name for name, _, _ in EXPECTED}:
        history = [(name, m.value, m.step) for m in store.get_metric_history(run.info.run_id, name)]
        assert sorted(history) == sorted(item for item in EXPECTED if item[0] == name)


@pytest.mark.slow
def test_a_comparison_is_a_parent_run_of_its_runs(store, tmp_path, capsys):
    out = tmp_path / "c"
    command = ("compare", "--methods", "finetune,gpm", *SMALL, "--out", out, "--quiet", "--track", "mlflow")
    code, _, err = codecl(capsys, *command)
    assert (code, err) == (0, "")
    (experiment,) = [e for e in store.search_experiments() if e.name == "permuted-digits"]
    runs = {run.info.run_name: run for run in store.search_runs([experiment.experiment_id])}
    assert runs.keys() == {"c", "finetune-seed0", "gpm-seed0"}
    for name in ("finetune-seed0", "gpm-seed0"):
        assert runs[name].data.tags["mlflow.parentRunId"] == runs["c"].info.run_id
        assert runs[name].data.metrics["ACC"] == pytest.approx(result_of(out / name)["acc"])
    assert {run.info.status for run in runs.values()} == {"FINISHED"}


@pytest.mark.slow
def test_a_real_mlflow_whose_server_is_down_is_one_warning(tmp_path, capsys, monkeypatch):
    pytest.importorskip("mlflow", reason="mlflow is not installed")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    out = ("--out", tmp_path / "run", "--quiet", "--track", "mlflow")
    code, _, err = codecl(capsys, "run", "--method", "finetune", *SMALL, *out)
    assert (code, err.count("\n")) == (0, 1), err
    assert err.startswith("codecl: --track mlflow does not work and is left out: ")


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

"""Real trackers, where they are installed: TensorBoard's event files, MLflow with a local store and with a server."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import types

import pytest

from codecl.runs.events import make_event
from tests.runs.running import SMALL, codecl, log_of, result_of
from tests.runs.tracking import EVENTS, EXPECTED, RESUME, track


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


@pytest.fixture
def server(tmp_path, monkeypatch):
    """A real MLflow server with a local store, and a client of it."""
    mlflow = pytest.importorskip("mlflow", reason="mlflow is not installed")
    with socket.create_server(("127.0.0.1", 0)) as found:
        port = found.getsockname()[1]
    store = ("--backend-store-uri", f"sqlite:///{tmp_path}/store.db", "--artifacts-destination", str(tmp_path / "kept"))
    command = [sys.executable, "-m", "mlflow", "server", "--port", str(port), "--workers", "1", *store]
    with open(tmp_path / "server.log", "w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)

    def stop():
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # its workers too
        process.wait()

    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://127.0.0.1:{port}")
    try:
        for _ in range(600):
            assert process.poll() is None, (tmp_path / "server.log").read_text()
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
                break
            time.sleep(0.2)
        yield types.SimpleNamespace(client=mlflow.MlflowClient(), stop=stop)
    finally:
        stop()


@pytest.mark.slow
def test_a_real_mlflow_server_has_a_sweep_and_goes_down(server, tmp_path, capsys):
    sweep = ("sweep", "--method", "gpm", "--vary", "threshold=0.8,0.9", *SMALL, "--track", "mlflow", "--json")
    code, out, err = codecl(capsys, *sweep, "--out", tmp_path / "s")
    assert (code, err) == (0, "")
    assert [json.loads(line) for line in out.splitlines()][-1]["failures"] == []  # nothing else is printed
    (experiment,) = [e for e in server.client.search_experiments() if e.name == "permuted-digits"]
    runs = {run.info.run_name: run for run in server.client.search_runs([experiment.experiment_id])}
    assert runs.keys() == {"s", "threshold=0.8/seed0", "threshold=0.9/seed0"}
    for name in runs.keys() - {"s"}:
        assert runs[name].data.tags["mlflow.parentRunId"] == runs["s"].info.run_id
        assert runs[name].data.params["settings.threshold"] == name[10:13]
        assert runs[name].data.metrics["ACC"] == pytest.approx(result_of(tmp_path / "s" / name)["acc"])
        losses = [event["loss"] for event in log_of(tmp_path / "s" / name) if event["event"] == "epoch"]
        history = server.client.get_metric_history(runs[name].info.run_id, "loss")
        assert [(m.step, m.value) for m in history] == list(enumerate(losses, 1))
    assert {run.info.status for run in runs.values()} == {"FINISHED"}

    path = tmp_path / "falls"
    tracker, warnings = track("mlflow", path, *EVENTS[:1])
    server.stop()
    for event in EVENTS[1:]:
        tracker(make_event(event))
    tracker.close()
    assert len(warnings) == 1
    assert warnings[0].startswith("--track mlflow does not work and is left out: ")
    out = ("--out", tmp_path / "run", "--quiet", "--track", "mlflow")
    code, _, err = codecl(capsys, "run", "--method", "finetune", *SMALL, *out)
    assert (code, err.count("\n")) == (0, 1), err
    assert err.startswith("codecl: --track mlflow does not work and is left out: ")

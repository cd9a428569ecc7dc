"""The trained network of a run: loaded with its method, and as files that need no codecl."""

import dataclasses
import json
import os
import shutil
import subprocess
import sys

import pytest
import torch

import codecl
from codecl.benchmarks.registry import BENCHMARKS
from codecl.runs.export import model_card, open_run
from codecl.runs.recipe import make_recipe
from codecl.runs.run import make_trainer, run
from codecl.runs.rundir import RunDirectory
from codecl.training import checkpoint
from tests.runs.running import codecl as command
from tests.runs.running import result_of

pytestmark = pytest.mark.slow

RECIPE = make_recipe({"method": "code-cl", "tasks": 3}, {"overlap": 0.0, "batch_size": 200}, epochs=2)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("export") / "run"
    run(RECIPE, RunDirectory(path))
    return path


@pytest.fixture(scope="module")
def inputs(path):
    """Test inputs of each task, and what the engine said of them."""
    return [task.test for task in make_trainer(RECIPE, path).stream.tasks]


def accuracy(network, part):
    with torch.no_grad():
        x, y = part.take(torch.arange(len(part)))
        return 100 * (network(x).argmax(1) == y).double().mean().item()


def test_a_run_is_loaded_without_data_and_classifies_as_it_did(path, inputs, monkeypatch):
    def no_data(*_, **__):
        raise AssertionError("the data were read")

    without = dataclasses.replace(BENCHMARKS["permuted-digits"], stream=no_data)
    monkeypatch.setitem(BENCHMARKS, "permuted-digits", without)
    model, method = codecl.load(path)
    assert not model.training
    assert method.tasks == [0, 1, 2]
    last = result_of(path)["accuracy"][-1]
    for t, part in enumerate(inputs):
        with method.task(t):
            assert accuracy(model, part) == pytest.approx(last[t], abs=1e-9)


def test_a_loaded_run_learns_on_from_the_weights_it_ended_with(path, inputs):
    model, method = codecl.load(path)
    model.classes = [*model.classes, 10]
    batches = [inputs[0].take(torch.arange(64))]
    x = batches[0][0]
    with method.task(0), torch.no_grad():
        told = model(x)
    method.begin_task("more", batches)
    with method.task(0), torch.no_grad():
        assert torch.equal(model(x), told)


@pytest.mark.parametrize("task", [1, 3])
def test_weights_are_those_of_the_task(path, inputs, task, tmp_path, capsys):
    safetensors = pytest.importorskip("safetensors.torch")
    file = tmp_path / "model.safetensors"
    assert command(capsys, "export", path, "--task", task, "--out", file) == (0, f"{file}\n", "")
    network = codecl.load(path).method.export(0)
    network.load_state_dict(safetensors.load_file(file))
    plain = codecl.load(path).method.export(task - 1)
    assert all(torch.equal(value, plain.state_dict()[name]) for name, value in network.state_dict().items())
    assert accuracy(plain, inputs[task - 1]) == pytest.approx(result_of(path)["accuracy"][-1][task - 1], abs=1e-9)


USE = """
import sys, torch
x = torch.load(sys.argv[2])
print(torch.export.load(sys.argv[1]).module()(x).argmax(1).tolist())
assert not any(name.split(".")[0] == "codecl" for name in sys.modules)
"""


def test_a_program_runs_without_codecl(path, inputs, tmp_path, capsys):
    file = tmp_path / "model.pt2"
    assert command(capsys, "export", path, "--task", 2, "--out", file)[0] == 0
    x, _ = inputs[1].take(torch.arange(7))
    torch.save(x, tmp_path / "x")
    clean = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, "-P", "-c", USE, file, tmp_path / "x"], capture_output=True, text=True, env=clean, check=True
    )
    model, method = codecl.load(path)
    with method.task(1), torch.no_grad():
        assert json.loads(done.stdout) == model(x).argmax(1).tolist()


def test_a_hub_folder_has_weights_program_recipe_and_card(path, tmp_path, capsys):
    pytest.importorskip("safetensors")
    code, out, _ = command(capsys, "export", path, "--hub-folder", tmp_path / "hub")
    files = ["README.md", "model.pt2", "model.safetensors", "recipe.toml", "result.json"]
    assert (code, out) == (0, f"{tmp_path / 'hub'}: {', '.join(files)}\n")
    card = (tmp_path / "hub" / "README.md").read_text()
    result = result_of(path)
    assert card.startswith("---\nlibrary_name: codecl\n")
    assert f"after all 3 tasks: {result['accuracy'][-1][2]:.2f} %." in card
    assert f"ACC {result['acc']:.2f} % and BWT {result['bwt']:.2f} %" in card
    block = card.split("```python\n")[1].split("```")[0]
    done = subprocess.run([sys.executable, "-c", block], capture_output=True, text=True, cwd=tmp_path / "hub")
    assert (done.returncode, done.stderr) == (0, "")
    code, _, err = command(capsys, "export", path, "--hub-folder", tmp_path / "hub")
    assert (code, err.count("\n")) == (2, 1)
    assert "is not empty" in err


def test_the_names_of_a_foreign_run_are_text_in_the_card(path, tmp_path):
    pytest.importorskip("safetensors")
    foreign = shutil.copytree(path, tmp_path / "run")
    state = checkpoint.load(foreign / "final.ckpt")
    state["tasks"][2]["name"] = "![x](https://a.b/c)\n# <script>`|@me\x1b[31m"
    checkpoint.save(foreign / "final.ckpt", state)
    lines = model_card(open_run(foreign), 3, has_program=False).splitlines()
    name = "\\!\\[x\\](https&#58;//a.b/c)?# &lt;script>\\`\\|&#64;me?\\[31m"
    assert [line for line in lines if line.startswith("#")] == [f"# permuted-digits, task 3 of 3: {name}"]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"model": {}}, "cannot be used: "),
        ({"method": None}, "method must be a table; got None."),
        ({"tasks": [{"name": "a"}]}, "classes must be a whole number; got None."),
        ({"example": 3}, "cannot be used: "),
    ],
)
def test_a_final_state_that_cannot_be_is_refused(path, tmp_path, change, says, capsys):
    shutil.copytree(path, tmp_path / "run")
    file = tmp_path / "run" / "final.ckpt"
    checkpoint.save(file, checkpoint.load(file) | change)
    code, _, err = command(capsys, "export", tmp_path / "run", "--out", tmp_path / "a.pt2")
    assert (code, err.count("\n")) == (2, 1)
    assert says in err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ("", "say where to write: --out FILE or --hub-folder DIR."),
        ("--out a.pt", "--out must end in .safetensors or .pt2; got a.pt."),
        ("--out nowhere/a.pt2", "there is no directory nowhere"),
        ("--out a.pt2 --task 4", "the run learned the tasks 1 to 3; there is no task 4 to export."),
        ("--out a.pt2 --task 0", "there is no task 0 to export."),
        ("--out a.pt2 --task last", "invalid int value"),
    ],
)
def test_what_cannot_be_exported_is_said_in_one_line(path, tmp_path, arguments, says, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, out, err = command(capsys, "export", path, *arguments.split())
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert says in err
    assert list(tmp_path.iterdir()) == []


def test_a_run_that_is_not_finished_has_no_network_to_export(path, tmp_path, capsys):
    (tmp_path / "recipe.toml").write_text((path / "recipe.toml").read_text())
    code, _, err = command(capsys, "export", tmp_path, "--out", "a.pt2")
    assert (code, err) == (
        2,
        f"codecl: {tmp_path} has no final.ckpt: the run is not finished. To go on: codecl run --resume {tmp_path}\n",
    )


def test_a_finished_run_without_its_network_says_how_to_get_it_back(path, tmp_path, capsys):
    for name in ("recipe.toml", "log.jsonl", "result.json"):
        (tmp_path / name).write_text((path / name).read_text())
    code, _, err = command(capsys, "export", tmp_path, "--out", "a.pt2")
    assert (code, err.count("\n")) == (2, 1)
    assert err.startswith(f"codecl: {tmp_path} has its result but no final.ckpt: the trained network is gone.")
    assert err.endswith(f"codecl run {tmp_path / 'recipe.toml'} --out {tmp_path} --restart\n")

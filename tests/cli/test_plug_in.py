"""The method and the benchmark of one's own that the documents show: the command runs them beside ours."""

import importlib
import json
import re
import sys
from pathlib import Path

import pytest
import torch

from codecl import check_method
from codecl.cli.main import main
from codecl.training.check import CHECKS

pytestmark = pytest.mark.slow

CONTRIBUTING = Path(__file__).parents[2] / "CONTRIBUTING.md"


@pytest.fixture
def my_method(tmp_path, monkeypatch):
    """``mypackage.mymodule:MyMethod``, as a reader would write it."""
    (block,) = [b for b in re.findall(r"```python\n(.*?)```", CONTRIBUTING.read_text(), re.S) if "class MyMethod" in b]
    package = tmp_path / "mypackage"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "mymodule.py").write_text(block)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")  # for the runs, which are processes of their own
    importlib.invalidate_caches()
    return importlib.import_module("mypackage.mymodule").MyMethod


def test_it_is_as_short_as_we_say(my_method):
    lines = [
        line for line in Path(importlib.import_module(my_method.__module__).__file__).read_text().splitlines() if line
    ]
    assert len(lines) <= 20


def test_it_keeps_every_promise(my_method):
    assert len(check_method(my_method)) == len(CHECKS)


def test_its_penalty_is_the_one_it_says(my_method):
    model = torch.nn.Linear(3, 2).double()
    method = my_method(model, strength=0.5)
    assert method.penalty() is None
    method.begin_task(0)
    method.end_task()
    with torch.no_grad():
        model.weight += 2.0
        model.bias -= 1.0
    assert float(method.penalty().detach()) == pytest.approx(0.25 * (6 * 4 + 2 * 1))


def test_it_is_compared_by_the_command(my_method, tmp_path, capsys):
    out = tmp_path / "runs"
    methods = "gpm,mypackage.mymodule:MyMethod"
    code = main(["compare", "--methods", methods, "--set", "strength=0.25", "--tasks", "2", "--epochs", "2",
                 "--out", str(out), "--quiet"])  # fmt: skip
    assert code == 0
    printed = capsys.readouterr().out
    assert "gpm" in printed
    assert re.search(r"^my-method ", printed, re.MULTILINE)
    assert "mypackage.mymodule:MyMethod" not in printed
    result = json.loads((out / "mypackage.mymodule.MyMethod-seed0" / "result.json").read_text())
    assert (result["settings"]["strength"], result["method_name"]) == (0.25, "my-method")
    assert len(result["accuracy"]) == 2


@pytest.fixture
def my_benchmark(tmp_path, monkeypatch):
    """The blocks of the page on benchmarks as a module of the user's."""
    page = (Path(__file__).parents[2] / "docs" / "howto" / "add-a-benchmark.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    (tmp_path / "mybenchmark.py").write_text(blocks[0].split("\nfor make in")[0] + blocks[1])
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
    yield
    sys.modules.pop("mybenchmark", None)


def test_a_benchmark_of_ones_own_is_compared_by_the_command(my_benchmark, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    asked = ["--benchmark", "mybenchmark:SOURCES", "--epochs", "2", "--set", "lr=0.1", "--quiet"]
    assert main(["compare", "--methods", "gpm,finetune", *asked]) == 0
    result = json.loads((tmp_path / "runs" / "mybenchmark.SOURCES" / "gpm-seed0" / "result.json").read_text())
    assert result["benchmark"] == "mybenchmark:SOURCES"
    assert len(result["accuracy"]) == 3
    assert main(["report", "runs", "--no-figures"]) == 0
    assert "mybenchmark:SOURCES" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("mybenchmark:MISSING", "the benchmark 'mybenchmark:MISSING' cannot be imported: AttributeError"),
        ("nowhere.at_all:B", "the benchmark 'nowhere.at_all:B' cannot be imported: ModuleNotFoundError"),
        ("mybenchmark:stream", "'mybenchmark:stream' is not a Benchmark"),
    ],
)
def test_what_is_no_benchmark_is_refused_in_one_line(my_benchmark, name, words, capsys):
    assert main(["run", "--benchmark", name]) == 2
    assert words in capsys.readouterr().err

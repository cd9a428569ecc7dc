"""The examples run, and show what they say they show."""

import importlib.util
from pathlib import Path

from codecl import CodeCL, Method

EXAMPLES = Path(__file__).parent.parent / "examples"


def load(name):
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_in_the_quickstart_fine_tuning_forgets_and_code_cl_does_not(monkeypatch):
    quickstart = load("quickstart")
    monkeypatch.setattr(quickstart, "TASKS", 3)
    monkeypatch.setattr(quickstart, "EPOCHS", 5)
    plain = quickstart.learn_all(Method)
    protected = quickstart.learn_all(CodeCL, aperture=16.0, free_dims=20)
    assert plain[0] == protected[0]  # the first task is learned alike
    assert plain[-1][0] < plain[0][0] - 10
    assert protected[-1][0] > protected[0][0] - 3
    assert protected[-1][2] > 80


def test_the_quickstart_prints_both_rows(monkeypatch, capsys):
    quickstart = load("quickstart")
    monkeypatch.setattr(quickstart, "TASKS", 2)
    monkeypatch.setattr(quickstart, "EPOCHS", 1)
    quickstart.main()
    printed = capsys.readouterr().out.splitlines()
    for label in ("fine-tuning", "CODE-CL"):
        (row,) = [line for line in printed if line.startswith(label)]
        assert row.count("(") == 2  # beside each last accuracy, the one just after learning

"""The examples run, and show what they say they show."""

import importlib.util
import random
import re
import sys
from pathlib import Path

import pytest

from codecl import CodeCL, Method
from codecl.runs.recipe import make_recipe
from codecl.runs.run import run
from codecl.runs.rundir import RunDirectory
from tests.runs.running import difference_of_runs, epochs_of

pytestmark = pytest.mark.slow

EXAMPLES = Path(__file__).parent.parent / "examples"


@pytest.fixture(autouse=True)
def _examples_are_importable(monkeypatch):
    """As when one of them is run: its folder comes first on the path."""
    monkeypatch.syspath_prepend(str(EXAMPLES))


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


def test_unmarked_tasks_are_found_and_inferred(monkeypatch, capsys):
    quickstart = load("quickstart")
    monkeypatch.setitem(sys.modules, "quickstart", quickstart)
    monkeypatch.setattr(quickstart, "TASKS", 3)
    example = load("unknown_tasks")
    monkeypatch.setattr(example, "EPOCHS", 4)
    example.main()
    first, *rows = capsys.readouterr().out.splitlines()
    assert "3 tasks found, 3 there were" in first
    assert len(rows) == 3
    for row in rows:
        inferred, right = (float(number) for number in re.findall(r"([\d.]+) %", row))
        assert inferred >= 99
        assert right > 85


def lost(rows):
    """How much of the accuracy on earlier tasks is gone after the last one, on average."""
    return sum(row[-1] - last for row, last in zip(rows[:-1], rows[-1][:-1], strict=True)) / (len(rows) - 1)


def check_that_code_cl_keeps_what_fine_tuning_loses(plain, protected, learned=90):
    assert plain[0] == protected[0]  # the first task is learned alike
    assert lost(plain) > 10
    assert lost(protected) < 4
    assert min(row[-1] for row in protected) > learned


def test_a_vision_transformer_on_digits(monkeypatch):
    vit = load("vit_digits")
    monkeypatch.setattr(vit, "TASKS", 3)
    monkeypatch.setattr(vit, "EPOCHS", 5)
    plain, protected = vit.learn_all(Method), vit.learn_all(CodeCL, aperture=60.0, free_dims=16)
    check_that_code_cl_keeps_what_fine_tuning_loses(plain, protected)


def test_a_text_transformer_over_two_of_its_domains(monkeypatch):
    text = load("text_domains")
    monkeypatch.setattr(text, "DOMAINS", dict(list(text.DOMAINS.items())[:2]))
    monkeypatch.setattr(text, "SENTENCES", 400)
    plain = text.learn_all(Method)
    protected = text.learn_all(CodeCL, aperture={"words*": 300.0, "*": 16.0}, free_dims=8)
    check_that_code_cl_keeps_what_fine_tuning_loses(plain, protected, learned=85)


def test_what_is_praise_in_a_sentence():
    """Read with a parser of its own: the last clause counts, and *not* turns it around."""
    text, chance = load("text_domains"), random.Random(3)
    for domain, (_, _, good, bad) in text.DOMAINS.items():
        found = [text.sentence(domain, chance) for _ in range(60)]
        for words, praise in found:
            *before, adjective = words.split(" but ")[-1].split()
            assert adjective in good.split(",") + bad.split(",")
            assert praise == ((adjective in good.split(",")) != ("not" in before))
            assert text.numbers(words)[: len(words.split()) + 1] == [
                text.NUMBER[w] for w in ("<start> " + words).split()
            ]
            assert len(text.numbers(words)) == text.LENGTH
        assert {praise for _, praise in found} == {0, 1}


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """A folder with four of the eight kinds."""
    cnn, folder = load("folder_cnn"), tmp_path_factory.mktemp("pictures")
    cnn.KINDS = {name: cnn.KINDS[name] for name in ("frame", "plus", "ring", "square")}
    cnn.draw_pictures(folder)
    return folder


def test_a_cnn_on_a_folder_of_pictures(pictures):
    cnn = load("folder_cnn")
    stream = cnn.tasks(pictures)
    assert [name for name, _, _ in stream] == ["frame or plus", "ring or square"]
    assert [len(part) for _, *parts in stream for part in parts] == [160, 80] * 2
    plain, protected = cnn.learn_all(stream, Method), cnn.learn_all(stream, CodeCL, aperture=8.0, free_dims=16)
    check_that_code_cl_keeps_what_fine_tuning_loses(plain, protected)


@pytest.mark.parametrize("name", ["vit_digits", "text_domains", "folder_cnn"])
def test_an_example_prints_both_rows(name, pictures, monkeypatch, capsys):
    example = load(name)
    monkeypatch.setattr(example, "EPOCHS", 1)
    if name == "vit_digits":
        monkeypatch.setattr(example, "TASKS", 2)
    if name == "text_domains":
        monkeypatch.setattr(example, "DOMAINS", dict(list(example.DOMAINS.items())[:2]))
    example.main(*[str(pictures)] if name == "folder_cnn" else [])
    printed = capsys.readouterr().out.splitlines()
    for label in ("fine-tuning", "CODE-CL"):
        (row,) = [line for line in printed if line.startswith(label)]
        assert row.count("(") == 2  # beside each last accuracy, the one just after learning


def test_measuring_every_epoch_on_test_data_changes_no_bit_of_a_run(tmp_path, capsys):
    which = load("which_epoch")
    asked = {"benchmark": "permuted-digits", "preset": "official", "tasks": 2}
    recipe = make_recipe(asked, {"epochs": 6, "patience": 1, "rule": "accuracy"})
    watched = which.learn(recipe, tmp_path / "watched", tmp_path)
    whole = run(recipe, RunDirectory(tmp_path / "plain"))
    assert not difference_of_runs(tmp_path / "watched", tmp_path / "plain")
    assert [(t, epoch, rate, validation) for epochs in watched for t, epoch, rate, validation, _ in epochs] == [
        (e["task"], e["epoch"], e["lr"], e["validation_accuracy"]) for e in epochs_of(tmp_path / "plain")
    ]
    for t, epochs in enumerate(watched):
        kept, last, best = which.choices(epochs)
        assert kept[4] == whole.accuracy[t][t]  # measured again once the task had ended
        assert last is epochs[-1]
        assert best[4] == max(epoch[4] for epoch in epochs)
    which.show(watched)
    *_, one, two, mean = (line.split() for line in capsys.readouterr().out.splitlines())
    assert mean[0] == "mean"
    for of_means, of_tasks in ((1, 3), (2, 4), (3, 6), (4, 7), (5, 8)):  # the mean has neither epochs nor rates
        both = (float(one[of_tasks]) + float(two[of_tasks])) / 2
        assert float(mean[of_means]) == pytest.approx(both, abs=0.01)


def test_an_epoch_that_was_measured_twice_counts_as_measured_last(tmp_path):
    which = load("which_epoch")
    recipe = make_recipe({"benchmark": "permuted-digits", "preset": "official", "tasks": 1}, {"epochs": 2})
    (tmp_path / "run.csv").write_text("0,1,0.5,101.0,101.0\n")  # of a run that was killed before it saved the epoch
    ((first, _),) = which.learn(recipe, tmp_path / "run", tmp_path)
    assert max(first[3:]) <= 100

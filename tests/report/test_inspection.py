"""``codecl inspect``: what the log has, and one line for what is no record."""

import json

import pytest

from codecl.report.inspection import Inspection
from codecl.runs.events import TaskEvent
from codecl.runs.recipe import make_recipe
from codecl.runs.records import RunRecord
from codecl.text import size
from tests.runs.running import codecl, contents, log_of, result_of

RECIPE = ("--tasks", "2", "--epochs", "2", "--set", "batch_size=100", "--set", "overlap=0.0", "--set", "free_dims=20")


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    from codecl.cli.main import main

    path = tmp_path_factory.mktemp("inspected") / "run"
    assert main(["run", *RECIPE, "--out", str(path), "--quiet"]) == 0
    return path


@pytest.fixture
def run(finished, tmp_path):
    """A copy to break."""
    path = tmp_path / "run"
    path.mkdir()
    for file in finished.iterdir():
        (path / file.name).write_bytes(file.read_bytes())
    return path


def rewrite(path, change):
    """The log with every event changed, or left out for None."""
    events = [change(event) for event in log_of(path)]
    (path / "log.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events if event is not None))


def rows(text):
    return {line.split()[0]: line.split()[1:] for line in text.splitlines() if line}


def test_the_layers_of_every_task(finished, capsys):
    before = contents(finished)
    code, out, err = codecl(capsys, "inspect", finished)
    assert (code, err) == (0, "")
    head, accuracies, first, second = out.split("\n\n")
    result, tasks = result_of(finished), [event for event in log_of(finished) if event["event"] == "task"]
    assert head.splitlines()[0] == (
        f"code-cl on permuted-digits, preset paper, seed 0: "
        f"finished, ACC {result['acc']:.2f} %, BWT {result['bwt']:+.2f} %"
    )
    assert head.splitlines()[1] == "2 of 5 tasks, at most 2 epochs each"
    assert "settings.overlap: 0.0 here, " in head
    A = result["accuracy"]
    memory = [size(event["bytes"]["memory"]).split() for event in tasks]
    assert rows(accuracies)["1"] == ["permutation", "0", "2", f"{A[0][0]:.2f}", f"{A[1][0]:.2f}", *memory[0]]
    assert rows(accuracies)["2"] == ["permutation", "1", "2", f"{A[1][1]:.2f}", f"{A[1][1]:.2f}", *memory[1]]
    assert first.startswith("after task 1 (permutation 0), memory ")
    assert "overlap" not in first
    assert rows(second)["weight"] == ["inputs", "rank", "capacity", "overlap", "shared", "freed", "bytes"]
    for name, of in tasks[1]["layers"].items():
        cells = rows(second)[name]
        assert cells[:2] == [str(of["shape"][2]), str(int(of["rank"]))]
        assert float(cells[2]) == pytest.approx(of["capacity"], rel=5e-3)
        assert float(cells[3]) == pytest.approx(of["overlap"], rel=5e-3)
        assert cells[4:6] == [str(int(of["shared"])), "20"]
    assert contents(finished) == before


def test_one_task_alone_and_everything_as_json(finished, capsys):
    _, out, _ = codecl(capsys, "inspect", finished, "--task", "2")
    assert "after task 2" in out
    assert "after task 1" not in out
    code, _, err = codecl(capsys, "inspect", finished, "--task", "3")
    assert code == 2
    assert "has learned the tasks 1 to 2; there is no task 3 to inspect." in err
    _, out, _ = codecl(capsys, "inspect", finished, "--json")
    found = json.loads(out)
    tasks = [event for event in log_of(finished) if event["event"] == "task"]
    assert [task["layers"] for task in found["tasks"]] == [task["layers"] for task in tasks]
    assert [task["epochs"] for task in found["tasks"]] == result_of(finished)["epochs"]
    assert (found["finished"], found["at"], found["acc"]) == (True, None, result_of(finished)["acc"])
    spectrum = found["tasks"][1]["layers"]["backbone.hidden.0.weight"]["spectrum"]
    assert spectrum == sorted(spectrum, reverse=True)


def test_an_unfinished_run_says_how_far_it_is(run, capsys):
    (run / "result.json").unlink()
    rewrite(run, lambda event: None if event["event"] == "task" and event["task"] == 1 else event)
    with open(run / "log.jsonl", "a") as log:
        log.write('{"event": "ta')  # killed while it wrote
    _, out, _ = codecl(capsys, "inspect", run)
    assert "seed 0: unfinished, in task 2 after epoch 2 of at most 2\n" in out
    assert list(rows(out.split("\n\n")[1])) == ["task", "----", "1"]
    rewrite_whole = [event for event in log_of_whole(run) if event["task"] == 0]
    (run / "log.jsonl").write_text("".join(json.dumps(event) + "\n" for event in rewrite_whole))
    assert "seed 0: unfinished, 1 tasks learned\n" in codecl(capsys, "inspect", run)[1]
    (run / "log.jsonl").unlink()
    code, out, _ = codecl(capsys, "inspect", run)
    assert code == 0
    assert "unfinished, 0 tasks learned" in out


def log_of_whole(path):
    lines = (path / "log.jsonl").read_text().splitlines(keepends=True)
    return [json.loads(line) for line in lines if line.endswith("\n")]


@pytest.mark.parametrize(
    ("file", "text", "says"),
    [
        ("log.jsonl", "{\n", "log.jsonl is damaged: line 1: it is not JSON: Expecting property name"),
        ("log.jsonl", "3\n", "log.jsonl is damaged: line 1: it must be an event; got 3."),
        ("log.jsonl", '{"event": "task", "task": 0}\n', "log.jsonl is damaged: line 1: name must be text; got None."),
        ("log.jsonl", '{"event": "epoch", "epoch": 1}\n', "line 1: task must be a whole number; got None."),
        ("result.json", "{", "result.json is damaged: it is not JSON: Expecting property name"),
        ("result.json", '{"accuracy": []}', "result.json is damaged: method must be text; got None."),
        ("recipe.toml", "method = ", "recipe.toml is not a recipe"),
        ("recipe.toml", 'method = "gmp"\n', "no method 'gmp'"),
    ],
)
def test_a_damaged_record_is_one_line(file, text, says, run, capsys):
    (run / file).write_text(text)
    code, out, err = codecl(capsys, "inspect", run)
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert says in err


def change_result(path, **fields):
    (path / "result.json").write_text(json.dumps(result_of(path) | fields))


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"acc": "x"}, "acc is 'x', but the accuracy matrix gives "),
        ({"bwt": None}, "bwt is None, but the accuracy matrix gives "),
        ({"accuracy": [5, 6]}, "accuracy[0] must be a list; got 5."),
        ({"seed": 7}, "seed is 7 in it and 0 in recipe.toml."),
    ],
)
def test_a_result_that_cannot_be_believed_is_one_line(fields, says, run, capsys):
    change_result(run, **fields)
    code, out, err = codecl(capsys, "inspect", run)
    assert (code, out, err.count("\n")) == (2, "", 1)
    what = "of another run" if "seed" in fields else "damaged"
    assert f"{run / 'result.json'} is {what}: {says}" in err
    assert err.endswith(f" Restore it, or remove it and run again: codecl run --resume {run}\n")


LAYER = {"shape": [1, 3, 4], "bytes": 8}
END = {
    "event": "task",
    "task": 0,
    "name": "n",
    "accuracy": [50.0, None],
    "bytes": {"memory": 8},
    "layers": {"a": LAYER},
}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"layers": {"a": {"bytes": 8}}}, "layers.a.shape must be a list; got None."),
        ({"layers": {"a": LAYER | {"shape": [3, 4]}}}, "layers.a.shape must be 3 sizes; got [3, 4]."),
        ({"layers": {"a": LAYER | {"bytes": "8"}}}, "layers.a.bytes must be a finite number; got '8'."),
        ({"layers": {"a": LAYER | {"trusted": 1}}}, "layers.a.trusted must be a list or none; got 1."),
        ({"layers": {"a": 3}}, "layers.a must be a table; got 3."),
        ({"layers": ["a"]}, "layers must be a table; got ['a']."),
        ({"bytes": {"per_task": 8}}, "bytes.memory must be a whole number; got None."),
        ({"bytes": 8}, "bytes must be a table; got 8."),
        ({"accuracy": []}, "accuracy must have a number for the task itself; got []."),
        ({"accuracy": [None, 50.0]}, "accuracy must have a number for the task itself; got [None, 50.0]."),
        ({"task": "0"}, "task must be a whole number; got '0'."),
    ],
)
def test_the_end_of_a_task_that_cannot_be_believed_is_one_line(change, says, run, capsys):
    (run / "result.json").unlink()
    for event, expected in ((END, 0), (END | change, 2)):
        (run / "log.jsonl").write_text(json.dumps(event) + "\n")
        code, out, err = codecl(capsys, "inspect", run)
        assert code == expected, err
    assert (out, err) == ("", f"codecl: {run / 'log.jsonl'} is damaged: line 1: {says}\n")


def test_a_finished_run_without_its_log_says_so(run, capsys):
    (run / "log.jsonl").unlink()
    code, out, _ = codecl(capsys, "inspect", run)
    assert code == 0
    assert out.endswith("\n\nit has no log.jsonl, which would say what happened task by task.\n")


def test_what_is_stored_without_layers_stands_beside_the_tasks(tmp_path, capsys):
    small = ("--tasks", "2", "--epochs", "1", "--set", "batch_size=200", "--quiet")
    assert codecl(capsys, "run", "--method", "er", *small, "--set", "memory=30", "--out", tmp_path / "er")[0] == 0
    _, out, _ = codecl(capsys, "inspect", tmp_path / "er")
    head, tasks = out.split("\n\n")
    stored = [event["bytes"]["memory"] for event in log_of(tmp_path / "er") if event["event"] == "task"]
    assert min(stored) > 0
    assert [" ".join(rows(tasks)[t][-2:]) for t in ("1", "2")] == [size(count) for count in stored]
    assert rows(tasks)["task"] == ["name", "epochs", "learned", "%", "now", "%", "memory"]
    assert "ACC" in head


def test_methods_that_protect_nothing_or_learn_all_at_once(tmp_path, capsys):
    small = ("--tasks", "2", "--epochs", "1", "--set", "batch_size=200", "--quiet")
    assert codecl(capsys, "run", "--method", "finetune", *small, "--out", tmp_path / "f")[0] == 0
    _, out, _ = codecl(capsys, "inspect", tmp_path / "f")
    assert list(rows(out.split("\n\n")[1])) == ["task", "----", "1", "2"]
    assert "after task" not in out
    assert codecl(capsys, "run", "--method", "multitask", *small, "--out", tmp_path / "m")[0] == 0
    _, out, _ = codecl(capsys, "inspect", tmp_path / "m")
    ((a, b),) = result_of(tmp_path / "m")["accuracy"]
    head, tasks = out.split("\n\n")
    assert head.splitlines()[0].endswith(f"seed 0: finished, ACC {(a + b) / 2:.2f} %")  # and no BWT
    assert head.splitlines()[1] == "2 of 5 tasks at once, at most 1 epochs"
    assert tasks.splitlines() == [
        "learned at once in 1 epochs, memory 0 B", "task  accuracy %", "----  ----------",
        f"1     {a:10.2f}", f"2     {b:10.2f}",
    ]  # fmt: skip
    code, _, err = codecl(capsys, "inspect", tmp_path / "m", "--task", "1")
    assert code == 2
    assert err.endswith("learns its tasks at once: there are no layers after one of them. Omit --task.\n")
    (tmp_path / "m/result.json").unlink()
    rewrite(tmp_path / "m", lambda event: event if event["event"] == "epoch" else None)
    assert "seed 0: unfinished, after epoch 1 of at most 1\n" in codecl(capsys, "inspect", tmp_path / "m")[1]


def test_columns_are_those_that_there_are_and_tasks_are_counted_from_one(tmp_path):
    layers = {
        "a": {"shape": [2, 3, 5], "bytes": 1500, "own": "word", "capacity": 0.01234, "trusted": [1, 0], "rank": 2.5},
        "b": {"shape": [1, 3, 4], "bytes": 0, "trusted": [], "rank": 1234.0, "spectrum": [1.0]},
    }
    recipe = make_recipe({"method": "trgp", "tasks": 5}, {}, 15)
    task = TaskEvent(0, "n", [50.0], {"memory": 2000, "per_task": 0}, layers)
    text = Inspection(recipe, RunRecord(tmp_path, events=[task])).to_text()
    assert "5 tasks, at most 15 epochs each\n" in text
    told = rows(text.split("\n\n")[2])
    assert told["weight"] == ["inputs", "rank", "capacity", "trusted", "own", "bytes"]
    assert told["a"] == ["2×5", "2.5", "0.0123", "2,1", "word", "1.5", "kB"]
    assert told["b"] == ["4", "1234", "–", "–", "–", "0", "B"]

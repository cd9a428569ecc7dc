"""Results, events and whole runs as read from files that anyone may have written."""

import json
import os

import pytest

from codecl.runs.events import EpochEvent, NoticeEvent, ResumeEvent, TaskEvent, make_event, parse_log
from codecl.runs.recipe import make_recipe
from codecl.runs.records import LOG, RECIPE, RESULT, Result, read_run
from codecl.runs.untrusted import MEGABYTE, parse_json, parse_toml, read_text

A = [[80.0, None], [70.0, 90.0]]
FIELDS = {
    "method": "gpm", "benchmark": "split-cifar100", "preset": "paper", "seed": 0, "data": "official",
    "switches": {"split_seed": "0"}, "tasks": 2, "accuracy": A, "acc": 80.0, "bwt": -10.0, "epochs": [3, 3],
    "seconds": {"train": 60.0, "between_tasks": 5.0, "evaluate": 10.0}, "bytes": {"memory": 12, "per_task": 5},
    "threads": 1, "device": "cpu", "training": {"epochs": 3, "lr": 0.1}, "settings": {"closed": []},
    "versions": {"codecl": "0.1.0"},
}  # fmt: skip
EPOCH = {
    "event": "epoch", "task": 0, "epoch": 1, "of": 3, "loss": 1.0, "validation_loss": 1.5, "validation_accuracy": 50.0,
    "lr": 0.1, "seconds": 2.0,
}  # fmt: skip
LAYER = {"shape": [1, 8, 4], "bytes": 10, "capacity": 0.5, "rank": 2.0, "spectrum": [0.9, 0.5], "trusted": [0]}
TASK = {
    "event": "task", "task": 1, "name": "a", "accuracy": [70.0, 90.0], "bytes": {"memory": 12, "per_task": 5},
    "layers": {"a.weight": LAYER},
}  # fmt: skip
RESUME = {"event": "resume", "task": 1, "epoch": 2, "epochs": [3]}
NOTICE = {"event": "notice", "text": "hello"}
DEEP = "[" * 100_000 + "]" * 100_000
NESTED = "[" * 100 + "]" * 100


def test_a_result_comes_back_as_it_was_written():
    text = json.dumps(FIELDS, indent=1) + "\n"
    result = Result.from_json(text)
    assert result.to_json() == text
    assert (result.acc, result.bwt, result.joint, result.total_seconds) == (80.0, -10.0, False, 75.0)
    assert (result.validation, result.validation_acc) == (None, None)
    validated = json.dumps(FIELDS | {"validation": [70.0, 75.0]}, indent=1) + "\n"
    assert Result.from_json(validated).validation_acc == 72.5
    assert Result.from_json(validated).to_json() == validated
    joint = Result.from_json(json.dumps(FIELDS | {"accuracy": [[70.0, 90.0]], "bwt": None}))
    assert (joint.joint, joint.bwt) == (True, None)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"method": None}, "method must be text; got None."),
        ({"seed": True}, "seed must be a whole number; got True."),
        ({"settings": []}, r"settings must be a table; got \[\]."),
        ({"accuracy": [5, 6]}, r"accuracy\[0\] must be a list; got 5."),
        ({"accuracy": [["80", None], [70.0, 90.0]]}, r"accuracy\[0\]\[0\] must be a finite number or none; got '80'."),
        ({"accuracy": [[80.0, None], [70.0, 900.0]]}, r"accuracy\[1\]\[1\] is 900.0, expected percent from 0 to 100"),
        ({"accuracy": [[80.0, None], [70.0]]}, "the rows of the accuracy matrix have lengths"),
        ({"accuracy": [[80.0, None]]}, "the run is not finished"),
        ({"tasks": 3}, "the accuracy matrix has 2 tasks; tasks = 3."),
        ({"acc": "x"}, "acc is 'x', but the accuracy matrix gives 80.0."),
        ({"acc": 99.99}, "acc is 99.99, but the accuracy matrix gives 80.0."),
        ({"bwt": None}, "bwt is None, but the accuracy matrix gives -10.0."),
        ({"epochs": [3, -1]}, r"epochs\[1\] must be 0 or more; got -1."),
        ({"epochs": [3, 10**18]}, r"epochs\[1\] must be at most 1e\+15"),
        ({"seconds": {"train": 1.0}}, "seconds.between_tasks must be a finite number; got None."),
        ({"seconds": FIELDS["seconds"] | {"train": 1e308}}, r"seconds.train must be at most 1e\+15; got 1e\+308."),
        ({"bytes": {"memory": "12", "per_task": 0}}, "bytes.memory must be a whole number; got '12'."),
        ({"training": {"epochs": 3}}, "training.lr must be a finite number; got None."),
        ({"validation": [80.0]}, r"validation must have 2 numbers; got \[80.0\]."),
        ({"validation": [80.0, 101.0]}, r"validation\[1\] must be at most 100; got 101.0."),
        ({"switches": {"a": 1}}, "switches.a must be text; got 1."),
        ({"versions": {"codecl": []}}, r"versions.codecl must be text; got \[\]."),
    ],
)
def test_a_result_that_cannot_be_is_refused_in_one_sentence(change, says):
    with pytest.raises(ValueError, match=f"^{says}") as caught:
        Result.from_json(json.dumps(FIELDS | change))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", sorted(FIELDS))
def test_no_field_of_a_result_may_be_missing(name):
    with pytest.raises(ValueError, match=f"^{name} "):
        Result.from_json(json.dumps({key: value for key, value in FIELDS.items() if key != name}))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "it is not JSON: Expecting property name"),
        ("3", "it must be a table; got 3."),
        (DEEP, "it is nested more than 64 levels deep."),
        (NESTED, "it is nested more than 64 levels deep."),
        ("9" * 5000, "it has a whole number of more than 64 bits."),
        (str(2**64), "it has a whole number of more than 64 bits."),
        ('{"method": "\\ud800"}', r"it has text that is not Unicode: '\\ud800'."),
        ('{"\\ud800": 1}', "it has text that is not Unicode"),
        ("NaN", "it has a number that is not finite: nan."),
        ("1e999", "it has a number that is not finite: inf."),
    ],
)
def test_json_that_no_run_writes_is_refused_in_one_sentence(text, says):
    with pytest.raises(ValueError, match=f"^{says}"):
        Result.from_json(text)


@pytest.mark.parametrize(
    "text", [f"a = {DEEP}", f"a = {NESTED}", f"a = {'9' * 5000}", f"a = {2**63}", "a =", f"[a{'.a' * 9999}]"]
)
def test_toml_that_no_run_writes_is_refused_in_one_sentence(text):
    with pytest.raises(ValueError, match=r"^[^\n]*\.$"):
        parse_toml(text)


def test_json_of_the_depth_and_size_that_are_allowed():
    assert parse_json("[" * 63 + "1" + "]" * 63)
    assert parse_json(str(2**63 - 1)) == 2**63 - 1


@pytest.mark.parametrize("fields", [EPOCH, TASK, RESUME, NOTICE, EPOCH | {"together": 2}])
def test_an_event_comes_back_as_it_was_logged(fields):
    event = make_event(fields)
    assert event.to_fields() == fields
    assert parse_log(event.to_line().encode()) == ([event], "")
    assert parse_log((json.dumps(fields) + "\n").encode()) == ([event], "")  # without a checksum


def test_events_are_of_their_kind():
    kinds = [type(make_event(fields)) for fields in (EPOCH, TASK, RESUME, NOTICE)]
    assert kinds == [EpochEvent, TaskEvent, ResumeEvent, NoticeEvent]
    assert make_event(EPOCH).max_epochs == 3
    assert make_event(TASK | {"accuracy": [70.0, 90.0, None]}).measured == [70.0, 90.0]


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        (3, "it must be an event; got 3."),
        ({"event": 3}, "it must be an event"),
        ({"event": "party"}, "event must be one of epoch, task, resume, notice; got 'party'."),
        ({"event": "task", "task": 1}, "name must be text; got None."),
        ({"event": "epoch", "epoch": 1}, "task must be a whole number; got None."),
        (EPOCH | {"of": None}, "of must be a whole number; got None."),
        (EPOCH | {"loss": "1"}, "loss must be a finite number; got '1'."),
        (EPOCH | {"seconds": 1e308}, r"seconds must be at most 1e\+15; got 1e\+308."),
        (TASK | {"accuracy": []}, r"accuracy must have a number for the task itself; got \[\]."),
        (TASK | {"accuracy": [1.0, None]}, r"accuracy must have a number for the task itself; got \[1.0, None\]."),
        (TASK | {"accuracy": [1.0, 101.0]}, r"accuracy\[1\] must be at most 100; got 101.0."),
        (TASK | {"bytes": 8}, "bytes must be a table; got 8."),
        (TASK | {"bytes": {}}, "bytes.memory must be a whole number; got None."),
        (TASK | {"layers": None}, "layers must be a table; got None."),
        (TASK | {"layers": {"a": 3}}, "layers.a must be a table; got 3."),
        (TASK | {"layers": {"a": LAYER | {"shape": [1, 2]}}}, r"layers.a.shape must be 3 sizes; got \[1, 2\]."),
        (TASK | {"layers": {"a": LAYER | {"bytes": "8"}}}, "layers.a.bytes must be a finite number; got '8'."),
        (TASK | {"layers": {"a": LAYER | {"trusted": 1}}}, "layers.a.trusted must be a list or none; got 1."),
        (
            TASK | {"layers": {"a": LAYER | {"spectrum": ["1"]}}},
            r"layers.a.spectrum\[0\] must be a finite number",
        ),
        (TASK | {"layers": {"a": LAYER | {"rank": "2"}}}, "layers.a.rank must be a finite number or none; got '2'."),
        (RESUME | {"epochs": [1.5]}, r"epochs\[0\] must be a whole number; got 1.5."),
        (EPOCH | {"together": "all"}, "together must be a whole number or none; got 'all'."),
        (NOTICE | {"text": 3}, "text must be text; got 3."),
    ],
)
def test_an_event_that_cannot_be_is_refused_in_one_sentence(fields, says):
    with pytest.raises(ValueError, match=f"^{says}"):
        make_event(fields)


def log_of(*events):
    return [make_event(fields).to_line().encode() for fields in events]


def test_a_log_is_read_up_to_the_first_line_that_is_none():
    first, second, third = log_of(RESUME, EPOCH, TASK)
    assert [event.kind for event in parse_log(first + second + third)[0]] == ["resume", "epoch", "task"]
    assert parse_log(first + second[:-1]) == (parse_log(first)[0], "")  # torn: it may have been about to end
    for damaged, says in (
        (second.replace(b"0.1", b"0.2"), "line 2: its checksum is not "),
        (second[:20] + third, "line 2: it is not JSON: "),
        (b'{"event": "notice", "text": "\xff"}\n', "line 2: it is not UTF-8: byte 29 is 0xff."),
    ):
        events, fault = parse_log(first + damaged + third)
        assert events == parse_log(first)[0]
        assert fault.startswith(says)


@pytest.fixture
def run(tmp_path):
    recipe = make_recipe({"method": "gpm", "benchmark": "split-cifar100", "tasks": 2}, {"lr": 0.1}, 3)
    (tmp_path / RECIPE).write_text(recipe.to_toml())
    (tmp_path / LOG).write_bytes(b"".join(log_of(EPOCH, TASK)))
    (tmp_path / RESULT).write_text(json.dumps(FIELDS))
    return tmp_path


def test_a_run_as_it_is_read(run):
    record = read_run(run)
    assert (record.damage, record.log_fault) == ({}, "")
    assert record.result == Result.from_json(json.dumps(FIELDS))
    assert record.recipe["method"] == "gpm"
    assert record.recipe_text == (run / RECIPE).read_text()
    assert (record.epochs, record.tasks) == ([make_event(EPOCH)], [make_event(TASK)])
    (run / RESULT).unlink()
    (run / LOG).unlink()
    record = read_run(run)
    assert (record.damage, record.result, record.events, record.log_fault) == ({}, None, [], "missing")


@pytest.mark.parametrize(
    ("file", "data", "says"),
    [
        (RECIPE, b"method = ", "is not a recipe: Invalid value"),
        (RECIPE, b"a = " + DEEP.encode(), "is not a recipe: it is nested more than 64 levels deep."),
        (RECIPE, b"a = '\xff'", "is not a recipe: it is not UTF-8: byte 5 is 0xff."),
        (RESULT, DEEP.encode(), "is damaged: it is nested more than 64 levels deep."),
        (RESULT, b"\xff", "is damaged: it is not UTF-8: byte 0 is 0xff."),
        (RESULT, json.dumps(FIELDS | {"seed": 7}).encode(), "is of another run: seed is 7 in it and 0 in recipe.toml."),
        (RESULT, json.dumps(FIELDS | {"training": {"epochs": 3, "lr": 0.2}}).encode(), "is of another run: "),
        (
            RESULT,
            json.dumps(FIELDS | {"settings": {"images": 3}}).encode(),
            "is of another run: ",
        ),
        (LOG, DEEP.encode() + b"\n", "is damaged: line 1: it is nested more than 64 levels deep."),
    ],
)
def test_a_damaged_file_is_named_and_the_others_are_read(run, file, data, says):
    whole = read_run(run)
    (run / file).write_bytes(data)
    record = read_run(run)
    assert list(record.damage) == [file]
    assert record.damage[file].startswith(says)
    assert record.result == (None if file == RESULT else whole.result)
    assert list(record.events) == ([] if file == LOG else list(whole.events))


@pytest.mark.parametrize("file", [RECIPE, RESULT, LOG])
def test_only_regular_files_are_read(run, file):
    (run / file).unlink()
    os.mkfifo(run / file)
    assert read_run(run).damage[file].endswith("not a regular file.")
    (run / file).unlink()
    (run / file).mkdir()
    assert read_run(run).damage[file].endswith("not a regular file.")


def test_a_file_above_its_limit_is_refused(tmp_path):
    with open(tmp_path / "file", "wb") as file:
        file.truncate(MEGABYTE + 1)  # takes no space
    with pytest.raises(ValueError, match=r"^it is larger than 1 MB\.$"):
        read_text(tmp_path / "file", MEGABYTE)
    (tmp_path / RECIPE).symlink_to(tmp_path / "file")
    assert read_run(tmp_path).damage == {RECIPE: "is not a recipe: it is larger than 1 MB."}

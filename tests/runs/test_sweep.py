"""Hyperparameters varied one at a time and in a grid: which cells there are, what they share, what failing costs."""

import json
import tomllib
from dataclasses import replace

import pytest

from codecl.errors import UsageError
from codecl.report.comparison import compare_cells
from codecl.runs.recipe import make_recipe
from codecl.runs.sweep import cell_name, parse_variations, variation_tables
from tests.runs.running import codecl, contents, log_of, make_result, result_of

pytestmark = pytest.mark.slow

PLUGIN = """
from codecl import Method


class Mine(Method):
    def __init__(self, model, strength=2.0, other=1, **common):
        super().__init__(model, **common)
        self.strength = strength
        if strength < 0:
            raise ValueError("strength must not be negative")

    def remember(self, loader):
        if self.strength == 1:
            raise RuntimeError("out of ideas")
"""
TINY = ("--tasks", "2", "--epochs", "1", "--set", "batch_size=200")


@pytest.fixture
def plugin(tmp_path, monkeypatch):
    place = tmp_path / "plugin"
    place.mkdir()
    (place / "sweptmethod.py").write_text(PLUGIN)
    monkeypatch.syspath_prepend(place)
    monkeypatch.setenv("PYTHONPATH", str(place), prepend=":")
    return place


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("1,2.5, 4", [1, 2.5, 4]),
        ("[1, 2],[3]", [[1, 2], [3]]),
        ('{"a,b"=1, c=[2,3]},4', [{"a,b": 1, "c": [2, 3]}, 4]),
        (r'"a\",b","c"', ['a",b', "c"]),
        (r'"a\\","b"', ["a\\", "b"]),
        ("""'"',"']" """, ['"', "']"]),
        ("a b, c", ["a b", "c"]),
        ("x=1,2", ["x=1", 2]),
    ],
)
def test_values_are_split_at_their_commas_and_no_others(text, values):
    assert parse_variations([f"name={text}"]) == {"name": values}


@pytest.mark.parametrize("text", ["[1,2", "1]", "]1[", '"a', "it's", "{a=1,[2}", '"\\"', "[1],word", '"a",word'])
def test_words_beside_brackets_or_quotes_are_refused(text):
    with pytest.raises(UsageError, match=r"^--vary name=.*: give all values as TOML, words and"):
        parse_variations([f"name={text}"])


def test_values_are_what_set_would_make_of_them():
    given = ["aperture=1,2.5,{'*'=4}", "smallest=none,50", "before=previous,shared", "closed=[],['a','b']"]
    assert parse_variations([*given, " replace = true , false "]) == {
        "aperture": [1, 2.5, {"*": 4}],
        "smallest": [None, 50],
        "before": ["previous", "shared"],
        "closed": [[], ["a", "b"]],
        "replace": [True, False],
    }


def test_one_at_a_time_and_all_combinations():
    variations = {"a": [1, 2], "b": ["x", "y"]}
    assert variation_tables(variations, grid=False) == [[{"a": 1}, {"a": 2}], [{"b": "x"}, {"b": "y"}]]
    assert variation_tables(variations, grid=True) == [
        [{"a": 1, "b": "x"}, {"a": 1, "b": "y"}, {"a": 2, "b": "x"}, {"a": 2, "b": "y"}]
    ]


def name_of(changes, **base):
    varied = list(changes)
    return cell_name(make_recipe({}, base | changes), make_recipe({}, base), varied)


def test_a_cell_is_named_by_where_it_departs_from_the_base():
    assert name_of({"aperture": 4.0, "free_dims": 20}, aperture=8.0, free_dims=20) == "aperture=4"
    assert name_of({"aperture": 4, "free_dims": 20}, aperture=8, free_dims=40) == "aperture=4,free_dims=20"
    assert name_of({"aperture": 8, "free_dims": 20}, aperture=8.0, free_dims=20) == "base"
    assert name_of({"lr": 0.00001}) == "lr=1e-05"
    assert name_of({"smallest": None}, smallest=50) == "smallest=none"
    assert name_of({"replace": True}) == "replace=true"


def test_names_are_safe_for_file_systems_and_tell_values_apart():
    values = [
        {"aperture": {"*conv*": 4.0, "*": 8.0}},
        {"aperture": {"conv": 4.0, "*": 8.0}},
        {"aperture": {"*": 8.0, "*conv*": 4.0}},
        *({"closed": [text]} for text in ("a/b", "a\\b", "..", "/", "é", "*", "x" * 300, "x" * 301)),
    ]
    names = [name_of(change) for change in values]
    assert len(set(names)) == len(names)
    for name in names:
        value = name.partition("=")[2]
        assert value.isascii()
        assert all(character.isalnum() or character in "._+-" for character in value), name
        assert len(name) < 64
    assert name_of(values[0]) == name_of({"aperture": {"*conv*": 4, "*": 8}})  # the same recipe


def test_the_table_has_a_row_for_every_value_also_where_nothing_came_out():
    def of_seed(seed, *accuracy):
        return make_result("code-cl", seed, list(accuracy), memory=2000, seconds=59.5)

    first, second = (
        of_seed(0, [80.0, None], [79.0, 81.0]),
        of_seed(1, [84.0, None], [81.0, 83.0]),
    )  # ACC 80, 82; BWT −1, −3
    joint, better = of_seed(0, [85.0, 85.0]), of_seed(0, [80.0, None], [80.5, 90.0])
    rows = [
        ("aperture=4", {"aperture": 4.0}, [first, second]),
        ("base", {"aperture": 6}, [joint]),
        ("aperture=8", {"aperture": 8}, []),
    ]
    lines = compare_cells(rows).splitlines()
    assert lines[0].split() == ["aperture", "ACC", "%", "BWT", "%", "seeds", "time", "a", "run", "memory"]
    assert lines[2].split() == ["4", "81.00", "±", "1.41", "-2.00", "±", "1.41", "2", "1m01s", "2", "kB"]
    assert lines[3].split() == ["6", "(base)", "85.00", "–", "1", "1m01s", "2", "kB"]
    assert lines[4].split() == ["8", "–", "–", "0", "–", "–"]
    assert "ddof = 1" in lines[5]
    assert not any("best by" in line for line in lines)
    validated = [replace(run, validation=[v, v]) for run, v in ((first, 70.0), (second, 72.0), (better, 60.0))]
    lines = compare_cells([("a=1", {"a": 1}, validated[:2]), ("a=2", {"a": 2}, validated[2:])]).splitlines()
    assert lines[0].split()[:5] == ["a", "validation", "%", "ACC", "%"]
    assert lines[-1] == "best by validation: a = 1 (validation 71.00 ± 1.41 %, test ACC 81.00 ± 1.41 %)."  # 85.25 at 2
    both = [("base", {"a": 1, "b": "x"}, [better]), ("b=y", {"a": 1, "b": "y"}, [])]
    lines = compare_cells(both).splitlines()
    assert lines[0].split()[:2] == ["a", "b"]
    assert [line.split()[:3] for line in lines[2:]] == [["1", "(base)", "x"], ["1", "y", "–"]]


def test_the_best_cell_is_chosen_by_validation_and_not_by_test_accuracy():
    def of(test, *validations):
        return [
            replace(make_result("code-cl", s, [[test, None], [test, test]]), validation=[v, v])
            for s, v in enumerate(validations)
        ]

    rows = [("a=1", {"a": 1}, of(90.0, 70.0, 72.0)), ("a=2", {"a": 2}, of(60.0, 71.5, 71.0)), ("a=3", {"a": 3}, [])]
    table = compare_cells(rows).splitlines()
    assert table[0].split()[:3] == ["a", "validation", "%"]
    assert table[2].split()[:4] == ["1", "71.00", "±", "1.41"]
    assert table[-1].startswith("best by validation: a = 2 (validation 71.25")
    rows[2][2][:] = of(80.0, 71.25, 71.25)
    assert compare_cells(rows).splitlines()[-1] == (
        "best by validation: a = 2 (validation 71.25 ± 0.35 %, test ACC 60.00 ± 0.00 %) and "
        "a = 3 (validation 71.25 ± 0.00 %, test ACC 80.00 ± 0.00 %)."
    )
    rows[0][2][:] = [replace(run, validation=None) for run in rows[0][2]]  # records of before
    assert not any("best by" in line for line in compare_cells(rows).splitlines())


def test_a_sweep_through_its_whole_life(tmp_path, capsys, plugin):
    """A cell fails and is told, what cells share is run once, the same command goes on, a grid takes what is there."""
    out = tmp_path / "s"
    command = ("sweep", "--method", "sweptmethod:Mine", "--vary", "strength=1,2", "--vary", "other=1,3", *TINY)
    command = (*command, "--jobs", "2", "--out", out)
    code, printed, err = codecl(capsys, *command, "--quiet")
    assert code == 1
    assert err == "codecl: strength=1/seed0 failed: RuntimeError: out of ideas\n"
    assert sorted(str(path.parent.relative_to(out)) for path in out.rglob("recipe.toml")) == [
        "base/seed0",
        "other=3/seed0",
        "strength=1/seed0",
    ]
    changed = {cell: tomllib.loads((out / cell / "seed0" / "recipe.toml").read_text()) for cell in ("base", "other=3")}
    assert changed["base"]["settings"] | {"other": 3} == changed["other=3"]["settings"]
    assert changed["base"]["settings"]["strength"] == 2.0
    base, other = (result_of(out / cell / "seed0") for cell in ("base", "other=3"))
    first, second, _ = printed.strip().split("\n\n")
    validation = f"{sum(base['validation']) / 2:.2f}"
    assert [line.split()[:4] for line in first.splitlines()[2:4]] == [
        ["1", "–", "–", "–"],
        ["2", "(base)", validation, f"{base['acc']:.2f}"],
    ]
    assert second.splitlines()[3].split()[:3] == ["3", validation, f"{other['acc']:.2f}"]
    alike = f"(validation {validation} %, test ACC {base['acc']:.2f} %)"
    assert second.splitlines()[4] == f"best by validation: other = 1 {alike} and other = 3 {alike}."
    assert base["accuracy"] == other["accuracy"]  # it has no effect

    before = contents(out)
    (plugin / "sweptmethod.py").write_text(PLUGIN.replace('raise RuntimeError("out of ideas")', "pass"))
    code, lines, err = codecl(capsys, *command, "--grid", "--json")
    assert (code, err) == (0, "")
    *events, last = [json.loads(line) for line in lines.splitlines()]
    assert {event["run"] for event in events} == {"strength=1/seed0", "strength=1,other=3/seed0"}
    assert next(event["event"] for event in events if event["run"] == "strength=1/seed0") == "resume"
    assert last["cells"] == {
        "strength=1": {"strength": 1, "other": 1},
        "strength=1,other=3": {"strength": 1, "other": 3},
        "base": {"strength": 2, "other": 1},
        "other=3": {"strength": 2, "other": 3},
    }
    assert last["runs"] == [f"{cell}/seed0" for cell in last["cells"]]
    assert last["results"] == [result_of(out / run) for run in last["runs"]]
    assert last["failures"] == []
    after = contents(out)
    assert all(after[file] == kept for file, kept in before.items() if not file.startswith("strength=1/"))
    assert [event["event"] for event in log_of(out / "strength=1" / "seed0")].count("resume") == 1

    code, _, err = codecl(capsys, *command, "--set", "lr=0.5")
    assert code == 2
    assert "training.lr: 0.5 here" in err
    assert contents(out) == after


def test_nothing_is_written_if_one_of_the_cells_cannot_be(tmp_path, capsys, plugin):
    out = tmp_path / "s"
    command = ("sweep", "--method", "sweptmethod:Mine", "--vary", "strength=-1,1", *TINY, "--out", out)
    code, printed, err = codecl(capsys, *command)
    assert (code, printed) == (2, "")
    assert err == "codecl: sweptmethod:Mine: strength must not be negative\n"
    assert not out.exists()

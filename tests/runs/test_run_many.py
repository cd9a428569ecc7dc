"""Methods × seeds: tables checked against the metrics, failures that stay alone, comparisons that go on."""

import json
import math
import sys
from dataclasses import replace

import pytest

from codecl.benchmarks.registry import BENCHMARKS
from codecl.errors import UsageError
from codecl.report.comparison import compare_methods
from codecl.runs.recipe import make_recipe
from codecl.runs.run import refuse_impossible
from tests.runs.running import codecl, contents, log_of, make_result, result_of

pytestmark = pytest.mark.slow

PLUGIN = """
from codecl import Method

print("a method may print")


class Sound(Method):
    name = "sound"

    def __init__(self, model, strength=2.0, **common):
        super().__init__(model, **common)


class Fails(Method):
    def remember(self, loader):
        raise RuntimeError("out of ideas")
"""
TINY = ("--tasks", "2", "--epochs", "1", "--set", "batch_size=200")


@pytest.fixture
def plugin(tmp_path, monkeypatch):
    place = tmp_path / "plugin"
    place.mkdir()
    (place / "mymethods.py").write_text(PLUGIN)
    monkeypatch.syspath_prepend(place)
    monkeypatch.setenv("PYTHONPATH", str(place), prepend=":")
    return place


def test_the_table_has_means_and_deviations_over_seeds():
    results = [
        make_result("gpm", 0, [[80.0, None], [70.0, 90.0]], memory=1000),
        make_result("gpm", 1, [[82.0, None], [76.0, 90.0]], memory=3000),
        make_result("sgp", 0, [[85.0, None], [85.0, 91.0]], seconds=60.0),
        make_result("sgp", 1, [[84.0, None], [80.0, 92.0]], seconds=60.0),
        make_result("er", 7, [[60.0, None], [50.0, 70.0]]),
    ]
    lines = compare_methods(results).splitlines()
    cells = {line.split()[0]: [c for c in line.split("  ") if c] for line in lines[2:-1]}
    assert lines[0].split("  ")[0] == "method"
    assert list(cells) == ["sgp", "gpm", "er"]  # the best first, whatever the order they came in
    assert "FWT % over gpm" in lines[0]
    # ACC 80, 83: std √4.5; BWT −10, −6: std √8
    assert [c.strip() for c in cells["gpm"]] == [
        "gpm",
        "81.50 ± 2.12",
        "-8.00 ± 2.83",
        "0.00 ± 0.00",
        "2",
        "2s",
        "2 kB",
    ]
    # ACC 88, 86; BWT 0, −4; FWT (5 + 1)/2, (2 + 2)/2
    assert [c.strip() for c in cells["sgp"]] == [
        "sgp",
        "87.00 ± 1.41",
        "-2.00 ± 2.83",
        "2.50 ± 0.71",
        "2",
        "1m02s",
        "0 B",
    ]
    assert [c.strip() for c in cells["er"]] == ["er", "60.00", "-10.00", "–", "1", "2s", "0 B"]
    assert "ddof = 1" in lines[-1]


def test_no_bwt_where_all_was_learned_at_once():
    joint = make_result("multitask", 0, [[80.0, 80.0]])
    assert compare_methods([joint]).splitlines()[2].split()[:3] == ["multitask", "80.00", "–"]


def test_methods_and_seeds_two_at_a_time(tmp_path, capsys, plugin):
    """One comparison through its whole life: a run fails, the others are kept, and it goes on where it stopped."""
    out = tmp_path / "c"
    command = ["compare", "--methods", "mymethods:Fails,mymethods:Sound", "--jobs", "2", *TINY, "--out", out]
    code, table, err = codecl(capsys, *command, "--seeds", "0,1,0", "--quiet")
    assert code == 1
    assert err.splitlines() == [
        f"codecl: mymethods.Fails-seed{seed} failed: RuntimeError: out of ideas" for seed in (0, 1)
    ]
    names = [f"mymethods.{m}-seed{s}" for m in ("Fails", "Sound") for s in (0, 1)]
    assert sorted(path.name for path in out.iterdir()) == names
    results = [result_of(out / f"mymethods.Sound-seed{seed}") for seed in (0, 1)]
    for what in ("acc", "bwt"):
        values = [r[what] for r in results]
        mean = sum(values) / 2
        std = math.sqrt(sum((value - mean) ** 2 for value in values))
        (line,) = [line for line in table.splitlines() if line.startswith("sound")]
        assert f"{mean:.2f} ± {std:.2f}" in line
    assert "Fails" not in table.split("recipes, logs")[0]
    assert results[0]["settings"]["strength"] == 2.0
    codecl(capsys, "run", "--method", "finetune", *TINY, "--out", tmp_path / "plain")
    assert results[0]["accuracy"] == result_of(tmp_path / "plain")["accuracy"] != results[1]["accuracy"]

    before = contents(out)
    (plugin / "mymethods.py").write_text(PLUGIN.replace('raise RuntimeError("out of ideas")', "pass"))
    code, lines, err = codecl(capsys, *command, "--seeds", "0", "--json")
    assert (code, err) == (0, "")
    *events, last = [json.loads(line) for line in lines.splitlines()]
    assert [(event["run"], event["event"]) for event in events] == [
        ("mymethods.Fails-seed0", event) for event in ("resume", "task", "epoch", "task")
    ]
    ended = [names[0], names[2]]
    assert last == {"runs": ended, "results": [result_of(out / name) for name in ended], "failures": []}
    after = contents(out)
    for file, kept in before.items():
        if not file.startswith("mymethods.Fails-seed0"):
            assert after[file] == kept, file
    assert result_of(out / "mymethods.Fails-seed0")["accuracy"] == results[0]["accuracy"]
    assert [e["event"] for e in log_of(out / "mymethods.Fails-seed0")].count("resume") == 1


def test_a_damaged_result_is_a_failure_of_that_run_alone(tmp_path, capsys):
    for seed in (0, 1):
        path = tmp_path / f"finetune-seed{seed}"
        assert codecl(capsys, "run", "--method", "finetune", "--seed", seed, *TINY, "--out", path, "--quiet")[0] == 0
    (tmp_path / "finetune-seed0" / "result.json").write_text("{")
    command = ("compare", "--methods", "finetune", "--seeds", "0,1", *TINY, "--out", tmp_path)
    code, out, err = codecl(capsys, *command)
    assert code == 1
    assert err.startswith("codecl: finetune-seed0 failed: ")
    assert "result.json is damaged" in err
    assert f"{result_of(tmp_path / 'finetune-seed1')['acc']:.2f}" in out


def test_nothing_is_written_if_one_of_the_runs_cannot_be(tmp_path, capsys):
    out = tmp_path / "c"
    for bad in (("--tasks", "9"), ("--set", "norm=banana"), ("--set", "aperture=-1")):
        code, _, err = codecl(capsys, "compare", "--methods", "code-cl", *bad, "--out", out)
        assert code == 2
        assert err.count("\n") == 1
        assert not out.exists()
    assert codecl(capsys, "run", "--method", "finetune", *TINY, "--out", out / "finetune-seed0", "--quiet")[0] == 0
    before = contents(out)
    code, _, err = codecl(capsys, "compare", "--methods", "code-cl,finetune", *TINY, "--epochs", "2", "--out", out)
    assert code == 2
    assert "training.epochs: 2 here, 1 there" in err
    assert contents(out) == before


def test_a_setting_goes_to_the_methods_that_have_it_and_to_no_other():
    from codecl.cli.compare import changes_by_method

    given = {"aperture": 8.0, "lr": 0.5, "nonsense": 1}
    by_method = changes_by_method(given, ["finetune", "code-cl"])
    assert by_method == {"finetune": {"lr": 0.5, "nonsense": 1}, "code-cl": given}


def test_a_module_in_the_current_directory_is_imported_only_where_it_is_named(tmp_path, capsys, monkeypatch):
    (tmp_path / "random.py").write_text("raise SystemExit('a file of the user was executed')\n")
    (tmp_path / "herebesides.py").write_text(PLUGIN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [place for place in sys.path if place])
    monkeypatch.delitem(sys.modules, "herebesides", raising=False)
    command = ("compare", "--methods", "finetune,herebesides:Sound", *TINY, "--out", "c", "--quiet")
    code, out, err = codecl(capsys, *command)
    assert (code, err) == (0, "")
    finetune, sound = (result_of(f"c/{name}-seed0") for name in ("finetune", "herebesides.Sound"))
    assert sound["accuracy"] == finetune["accuracy"]
    assert "\nsound " in out


def test_the_data_of_a_benchmark_are_read_once_to_refuse_what_cannot_be(monkeypatch, tmp_path):
    digits, read = BENCHMARKS["permuted-digits"], []

    def stream(root, seed):
        read.append(seed)
        return digits.stream(root, seed)

    monkeypatch.setitem(BENCHMARKS, "permuted-digits", replace(digits, stream=stream))
    asked = [{"method": method, "seed": seed} for method in ("finetune", "gpm", "code-cl") for seed in (0, 1)]
    recipes = [make_recipe(fields, {}) for fields in asked]
    refuse_impossible(recipes, tmp_path)
    assert len(read) == 1
    with pytest.raises(UsageError, match="aperture"):
        refuse_impossible([*recipes, make_recipe({"method": "code-cl"}, {"aperture": -1.0})], tmp_path)
    with pytest.raises(UsageError, match="permuted-digits has 5 tasks"):
        refuse_impossible([*recipes, make_recipe({"tasks": 9}, {})], tmp_path)

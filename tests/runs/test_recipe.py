"""Recipes: complete, written as TOML and read back the same, later words before earlier ones."""

import math
import tomllib

import pytest

from codecl import CodeCL, Method
from codecl.benchmarks.registry import BENCHMARKS
from codecl.errors import UsageError
from codecl.methods import METHODS
from codecl.runs import recipe as recipe_module
from codecl.runs.recipe import Recipe, make_recipe, parse_change, read_recipe, setting_defaults
from codecl.training.engine import Plan
from tests.runs.running import codecl


def through_toml(recipe, tmp_path):
    file = tmp_path / "recipe.toml"
    file.write_text(recipe.to_toml(), encoding="utf-8")
    return make_recipe(read_recipe(file), {})


@pytest.mark.parametrize("preset", ["paper", "official"])
@pytest.mark.parametrize("benchmark", BENCHMARKS)
@pytest.mark.parametrize("method", METHODS)
def test_every_recipe_survives_toml(method, benchmark, preset, tmp_path):
    recipe = make_recipe({"method": method, "benchmark": benchmark, "preset": preset, "seed": 3}, {})
    again = through_toml(recipe, tmp_path)
    assert recipe.differences(again) == []
    assert again.to_toml() == recipe.to_toml()
    assert again.plan() == recipe.plan()
    assert {key: list(v) if isinstance(v, tuple) else v for key, v in recipe.settings.items()} == again.settings


VALUES = {
    "none": None,
    "true": True,
    "whole": -7,
    "tiny": 1e-300,
    "huge": 1e22,
    "infinite": math.inf,
    "words": 'say "no" to \\ and\nnew lines\tor \x7f and \x01',
    "letters": "ünï–😀",
    "empty": "",
    "list": ("a", "b"),
    "numbers": [1, 2.5],
    "gaps": [1, None],
    "map": {"*conv*": 4.0, "*": 8.0, "plain-key_1": 1, "": 2, "ü": 3, 'with "quotes"': [None]},
}


class TakesAnything(Method):
    """A method with a setting for everything that TOML can say."""

    def __init__(self, model, value=None, **common):
        super().__init__(model, **common)
        self.value = value


@pytest.mark.parametrize("value", VALUES.values(), ids=VALUES)
def test_every_value_survives_toml(value, tmp_path):
    recipe = make_recipe({"method": f"{__name__}:TakesAnything"}, {"value": value})
    back = through_toml(recipe, tmp_path).settings["value"]
    assert back == (list(value) if isinstance(value, tuple) else value)
    assert type(back) is (list if isinstance(value, tuple) else type(value))


def test_what_toml_cannot_say_is_refused():
    with pytest.raises(UsageError, match="cannot be written to a recipe"):
        make_recipe({"method": f"{__name__}:TakesAnything"}, {"value": object()}).to_toml()


def test_a_recipe_names_every_value():
    recipe = make_recipe({}, {})
    assert recipe.method == "code-cl"
    assert recipe.benchmark == "permuted-digits"
    assert set(recipe.training) | {"seed", "device"} == set(Plan.__dataclass_fields__)
    assert set(recipe.settings) == set(setting_defaults(CodeCL)) >= {"aperture", "free_dims", "overlap", "norm", "bias"}
    assert recipe.settings["tolerance"] == 1e-6
    assert recipe.tasks is None
    assert (recipe.seed, recipe.threads, recipe.device) == (0, 1, "cpu")
    assert "norm" not in make_recipe({"method": "finetune"}, {}).settings  # nothing is held


def test_later_words_win(tmp_path):
    assert setting_defaults(CodeCL)["aperture"] == 6.0
    assert setting_defaults(CodeCL)["replace"] is False
    assert CodeCL.preset("official")["replace"] is True
    assert make_recipe({"preset": "official"}, {}).settings["replace"] is True  # a preset over the defaults
    assert make_recipe({}, {}).settings["aperture"] == 16.0  # the benchmark's file over the preset
    assert make_recipe({}, {}).training["lr"] == 0.1 != Plan().lr
    file = tmp_path / "recipe.toml"
    file.write_text('preset = "official"\n[settings]\naperture = 5.0\nreplace = false\n[training]\nlr = 0.2\n')
    recipe = make_recipe(read_recipe(file), {})
    assert (recipe.settings["aperture"], recipe.settings["replace"], recipe.training["lr"]) == (5.0, False, 0.2)
    assert recipe.settings["free_dims"] == 20  # what the file does not say
    assert recipe.training["batch_size"] == 32
    recipe = make_recipe(read_recipe(file), {"aperture": 9.0, "lr": 0.3, "epochs": 11})
    assert (recipe.settings["aperture"], recipe.training["lr"], recipe.training["epochs"]) == (9.0, 0.3, 11)


def test_the_file_of_a_benchmark_wins_over_the_reading_of_a_preset(monkeypatch):
    monkeypatch.setattr(CodeCL, "presets", {"paper": {"aperture": 1.0, "overlap": 0.25}})
    recipe = make_recipe({}, {})
    assert (recipe.settings["aperture"], recipe.settings["overlap"]) == (16.0, 0.25)


def test_a_name_in_two_tables_is_told_apart():
    recipe = make_recipe({"method": "api"}, {"training.warm_up": 0.1, "settings.warm_up": 3, "settings.rho": 0.25})
    assert (recipe.training["warm_up"], recipe.settings["warm_up"], recipe.settings["rho"]) == (0.1, 3, 0.25)
    with pytest.raises(UsageError, match=r"^api has 'warm_up' twice: say training.warm_up or settings.warm_up\.$"):
        make_recipe({"method": "api"}, {"warm_up": 3})


def test_the_most_epochs_win_over_the_recipe_file_and_a_change():
    assert make_recipe({}, {}).training["epochs"] == 30
    assert make_recipe({}, {}, epochs=4).training["epochs"] == 4
    assert make_recipe({}, {"epochs": 9}, epochs=50).training["epochs"] == 50


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("aperture=8", ("aperture", 8)),
        (" lr = 1e-3", ("lr", 1e-3)),
        ("before=shared", ("before", "shared")),
        ('before="shared"', ("before", "shared")),
        ("replace=true", ("replace", True)),
        ("samples=none", ("samples", None)),
        ("samples='none'", ("samples", None)),
        ('closed=["a*", "b"]', ("closed", ["a*", "b"])),
        ('aperture={"*conv*"=4.0,"*"=8.0}', ("aperture", {"*conv*": 4.0, "*": 8.0})),
        ("x=a=b", ("x", "a=b")),
        ("x=", ("x", "")),
    ],
)
def test_a_change_is_toml_or_a_plain_word(text, expected):
    assert parse_change(text) == expected


@pytest.mark.parametrize("text", ["aperture", "=3", " =3", ""])
def test_a_change_without_a_name_is_refused(text):
    with pytest.raises(UsageError, match="--set takes name=value"):
        parse_change(text)


def test_the_dry_run_is_a_recipe_that_says_the_same(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    asked = ["--method", "code-cl", "--preset", "official", "--epochs=7", "--seed=4", "--tasks=3", "--threads=2"]
    changes = ["--set", 'aperture={"*hidden.0*"=4.0,"*"=8.0}', "--set", "closed=['a\"b']", "--set", "samples=none"]
    code, printed, err = codecl(capsys, "run", *asked, *changes, "--dry-run")
    assert (code, err) == (0, "")
    assert list(tmp_path.iterdir()) == []  # it ran nothing
    (tmp_path / "mine.toml").write_text(printed)
    assert codecl(capsys, "run", "mine.toml", "--dry-run") == (0, printed, "")
    table = tomllib.loads(printed)
    assert table["settings"]["aperture"] == {"*hidden.0*": 4.0, "*": 8.0}
    assert table["settings"]["closed"] == ['a"b']
    assert table["settings"]["samples"] == "none"
    assert table["settings"]["replace"] is True
    assert table["training"]["epochs"] == 7
    assert (table["seed"], table["tasks"], table["threads"]) == (4, 3, 2)


def test_differences_name_both_sides():
    one = make_recipe({}, {})
    assert one.differences(make_recipe({}, {})) == []
    other = make_recipe({"seed": 1}, {"aperture": 3.0, "closed": ["a"]})
    assert one.differences(other) == [
        "seed: 0 here, 1 there",
        "settings.aperture: 16.0 here, 3.0 there",
        "settings.closed: [] here, ['a'] there",
    ]
    assert Recipe("code-cl").differences(Recipe("finetune")) == ["method: 'code-cl' here, 'finetune' there"]


@pytest.mark.parametrize("preset", ["paper", "official"])
@pytest.mark.parametrize("method", METHODS)
def test_a_benchmark_that_is_like_another_begins_with_its_values(method, preset):
    recipes = [
        make_recipe({"method": method, "preset": preset, "benchmark": benchmark}, {})
        for benchmark in ("split-cifar100", "split-cifar100-vit")
    ]
    assert recipes[0].training == recipes[1].training
    assert recipes[0].settings == recipes[1].settings


FAST_FILE = """
[training]
epochs = 200
batch_size = 32
lr = 0.01
rule = "loss"

[presets.official.training]
lr = 0.1

[presets.fast.training]
epochs = 12
lr = 0.2

[presets.fast.methods.hat.training]
lr = 0.05

[methods.gpm]
threshold = 0.9

[methods.gpm.training]
lr = 0.5

[presets.official.methods.gpm]
threshold = 0.8

[methods.sgp]
like = "gpm"
"""


def test_fast_presets_have_one_schedule_for_all_and_the_settings_of_their_reading(monkeypatch):
    monkeypatch.setattr(recipe_module, "_recipe_files", lambda benchmark: [tomllib.loads(FAST_FILE)])
    for method, preset, threshold in (("gpm", "fast", 0.9), ("sgp", "fast-official", 0.8), ("sgp", "fast", 0.9)):
        recipe = make_recipe({"method": method, "preset": preset}, {})
        schedule = [recipe.training[key] for key in ("epochs", "lr", "rule", "batch_size")]
        assert schedule == [12, 0.2, "annealed", 32]
        assert recipe.settings["threshold"] == threshold
    assert make_recipe({"method": "gpm", "preset": "fast-official"}, {}).settings["first_rule"] == "below"
    assert make_recipe({"method": "hat", "preset": "fast"}, {}).training["lr"] == 0.05  # its own step needs another
    assert make_recipe({"method": "gpm", "preset": "paper"}, {}).training["lr"] == 0.5


def test_the_own_reading_is_the_papers_but_for_what_it_names(monkeypatch):
    paper, own, fast = (make_recipe({"preset": preset}, {}) for preset in ("paper", "own", "fast-own"))
    assert own.training == paper.training
    assert fast.training == make_recipe({"preset": "fast"}, {}).training
    assert fast.settings == own.settings
    other = {name: value for name, value in own.settings.items() if value != paper.settings[name]}
    assert other == {name: value for name, value in CodeCL.preset("own").items() if name in other}
    assert other == {"own_share": 0.99, "after": "effective", "norm": "per-task"}
    file = FAST_FILE + "\n[presets.paper.training]\nlr = 0.3\n[presets.own.methods.code-cl]\naperture = 3.0\n"
    monkeypatch.setattr(recipe_module, "_recipe_files", lambda benchmark: [tomllib.loads(file)])
    own = make_recipe({"preset": "own"}, {})
    assert (own.training["lr"], own.settings["aperture"]) == (0.3, 3.0)
    assert make_recipe({"preset": "paper"}, {}).settings["aperture"] == 6.0
    for preset in ("own", "fast-own"):
        with pytest.raises(
            UsageError, match=f"^gpm has no preset '{preset}': it has paper, official, fast, fast-official.$"
        ):
            make_recipe({"method": "gpm", "preset": preset}, {})


@pytest.mark.parametrize("benchmark", BENCHMARKS)
def test_every_benchmark_has_a_fast_preset_with_a_rate_of_its_own(benchmark):
    files = recipe_module._recipe_files(benchmark)
    assert any("lr" in file.get("presets", {}).get("fast", {}).get("training", {}) for file in files)
    training = make_recipe({"benchmark": benchmark, "preset": "fast"}, {}).training
    assert training["rule"] == "annealed"
    assert training["epochs"] <= 15

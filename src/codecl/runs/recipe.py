"""A recipe: all that is needed to run an experiment again, as data.

It is made from the defaults of the method and of training, the reading that the preset names, the values in the
benchmark's recipe file, and what the user sets, in that order; later ones win.
"""

from __future__ import annotations

import dataclasses
import inspect
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import resources
from pathlib import Path
from typing import Annotated, Any

from codecl.benchmarks.registry import EMBEDDED
from codecl.errors import UsageError, refusing
from codecl.method.settings import accepted, setting_hints
from codecl.methods import Method
from codecl.runs.plugins import find_benchmark, find_method, is_plugin
from codecl.runs.typed import between, check, field_hints
from codecl.runs.untrusted import MEGABYTE, parse_toml, read_text, to_toml, toml_key
from codecl.text import unknown_name
from codecl.training.plan import Plan

READINGS = {"paper": ("paper",), "official": ("official",), "own": ("paper", "own")}
"""The readings of a method, and the presets in recipe files that each takes its values from; later ones win."""
FAST_PRESETS = {"fast": "paper", "fast-official": "official", "fast-own": "own"}
"""Those that train by one short schedule for all, so that their runs can be compared."""
PRESETS = {reading: reading for reading in READINGS} | FAST_PRESETS
"""The presets, and the reading of the method that each takes."""
TABLES = ("training", "settings", "data")
FAST = {"rule": "annealed", "epochs": 15}
NOT_SETTINGS = {"model", "forward", "loss", "heads", "skip", "added", "seed", "group"}
ELSEWHERE = {"seed", "device"}
"""Fields of ``Plan`` that stand at the top of a recipe."""
RECIPE_LIMIT = MEGABYTE


def _of_64_bits(name: str, value: int) -> None:
    if not -(2**63) <= value < 2**63:
        raise ValueError(f"{name} must be a whole number of 64 bits; got {value!r:.80}.")


@dataclass(frozen=True)
class Recipe:
    """A complete recipe; ``training`` and ``settings`` name every value, also those that are defaults."""

    method: str = "code-cl"
    benchmark: str = EMBEDDED
    preset: str = "paper"
    seed: Annotated[int, _of_64_bits] = 0
    threads: Annotated[int, between(1, 1024)] = 1
    device: str = "cpu"
    tasks: Annotated[int, between(1)] | None = None
    training: dict[str, Any] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    data: dict[str, Any] = field(default_factory=dict)

    def plan(self) -> Plan:
        return Plan(**self.training, seed=self.seed, device=self.device)

    def to_toml(self) -> str:
        flat = dict(vars(self))
        tables = {name: flat.pop(name) for name in TABLES}
        lines = [f"{key} = {to_toml(value)}" for key, value in flat.items()]
        for name, table in tables.items():
            lines += ["", f"[{name}]", *(f"{toml_key(key)} = {to_toml(value)}" for key, value in table.items())]
        return "\n".join(lines) + "\n"

    def differences(self, other: Recipe) -> list[str]:
        """What differs, a line each, as ``name: mine, the other's``."""
        mine, its = flatten(vars(self)), flatten(vars(other))
        return [f"{k}: {mine.get(k)!r} here, {its.get(k)!r} there" for k in mine | its if mine.get(k) != its.get(k)]


def make_recipe(asked: Mapping[str, Any], changes: Mapping[str, Any], epochs: int | None = None) -> Recipe:
    """The complete recipe for what was asked.

    Args:
        asked: Fields of a recipe, as many as there are; None counts as not given.
        changes: Values of single hyperparameters, in whichever table they stand.
        epochs: The most epochs of a task.

    >>> make_recipe({"method": "gpm"}, {"lr": 0.5}).training["lr"]
    0.5
    """
    recipe = stated_recipe(asked)
    if recipe.preset not in PRESETS:
        raise UsageError(unknown_name("preset", recipe.preset, PRESETS))
    method, switches = find_method(recipe.method), find_benchmark(recipe.benchmark).switches
    if (reading := PRESETS[recipe.preset]) not in method.presets:
        has = [name for name, of_method in PRESETS.items() if of_method in method.presets]
        raise UsageError(f"{recipe.method} has no preset {recipe.preset!r}: it has {', '.join(has)}.")
    published = _published(recipe.benchmark, recipe.method, recipe.preset)
    settings, plan = setting_defaults(method), _plan_defaults()
    training = plan | published["training"] | recipe.training
    tables: dict[str, dict[str, Any]] = {
        "training": training,
        "settings": settings | method.preset(reading) | published["settings"] | recipe.settings,
        "data": {switch: choices[0] for switch, choices in switches.items()} | recipe.data,
    }
    for table, known in {"training": plan, "settings": settings, "data": switches}.items():
        if unknown := [name for name in tables[table] if name not in known]:
            raise UsageError(f"[{table}]: {unknown_name('field', unknown[0], known)}")
    _apply(changes, tables, recipe.method)
    training |= {} if epochs is None else {"epochs": epochs}
    _check_training(training)
    with refusing("settings: "):
        for name, hint in setting_hints(method).items():
            check(name, tables["settings"].get(name), hint if name in settings else Any)
    tables["data"] = _choices(tables["data"], switches)
    return replace(recipe, **tables)  # type: ignore[arg-type]


def stated_recipe(asked: Mapping[str, Any]) -> Recipe:
    """The recipe as far as it is stated. Nothing is filled in, so nothing that it names is imported."""
    given = {key: value for key, value in asked.items() if value is not None}
    for name, value in given.items():
        if (hint := field_hints(Recipe).get(name)) is None:
            raise UsageError(f"recipe: {unknown_name('field', name, sorted(field_hints(Recipe)))}")
        with refusing("recipe: "):
            check(name, value, hint)
    return Recipe(**given)


def refuse_foreign(fields: Mapping[str, Any], where: Path) -> None:
    """``UsageError`` if a recipe from a file names a method or benchmark that would have to be imported."""
    for what in ("method", "benchmark"):
        if is_plugin(name := str(fields.get(what, ""))):
            raise UsageError(
                f"{where} names the {what} {name!r}, whose code would be run, and it is not codecl's. "
                "If you trust it, add --trust."
            )


def _apply(changes: Mapping[str, Any], tables: Mapping[str, dict[str, Any]], method: str) -> None:
    """Put each change where its name stands; one that stands in two tables is told apart as ``table.name``."""
    put: dict[tuple[str, str], str] = {}
    for key, value in changes.items():
        places = [(table, name) for table in tables for name in tables[table] if key in (name, f"{table}.{name}")]
        if not places:
            known = [name for table in tables.values() for name in table]
            raise UsageError(unknown_name(f"hyperparameter of {method}", key, known))
        if len(places) > 1:
            names = " or ".join(f"{table}.{name}" for table, name in places)
            raise UsageError(f"{method} has {key!r} twice: say {names}.")
        table, name = place = places[0]
        if place in put:
            raise UsageError(f"{table}.{name} is given twice, as {put[place]} and as {key}: leave one out.")
        put[place] = key
        tables[table][name] = value


def _choices(data: Mapping[str, Any], switches: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """What was chosen about the data, as text; ``UsageError`` where there is no such choice."""
    chosen = {switch: to_toml(value) if isinstance(value, bool) else str(value) for switch, value in data.items()}
    for switch, choice in chosen.items():
        if choice not in switches[switch]:
            raise UsageError(f"data: {unknown_name(f'choice of {switch}', choice, switches[switch])}")
    return chosen


def read_recipe(path: Path) -> dict[str, Any]:
    """The fields that a TOML file gives; it need not give all."""
    if not path.exists():
        raise UsageError(f"there is no recipe file {path}.")
    if path.is_dir():
        raise UsageError(
            f"{path} is a directory, not a recipe. To go on with the run in it: codecl run --resume {path}"
        )
    with refusing(f"{path} is not a recipe: "):
        try:
            return parse_toml(read_text(path, RECIPE_LIMIT))
        except OSError as error:
            raise UsageError(f"{path} cannot be read: {error.strerror}.") from None


def parse_change(text: str) -> tuple[str, Any]:
    """``name=value`` of ``--set``, the value as TOML or else as a plain word."""
    name, equals, value = (part.strip() for part in text.partition("="))
    if not equals or not name:
        raise UsageError(f"--set takes name=value; got {text!r}.")
    try:
        with refusing(f"--set {name}: "):
            return name, parse_toml(f"value = {value}")["value"]
    except UsageError as error:
        if not isinstance(error.__cause__, tomllib.TOMLDecodeError):
            raise
    return name, None if value.lower() == "none" else value


def setting_defaults(method: type[Method]) -> dict[str, Any]:
    """Every hyperparameter of a method with its default, those of the base class last."""
    found = {
        name: parameter.default
        for name, parameter in accepted(method).items()
        if name not in NOT_SETTINGS and parameter.default is not inspect.Parameter.empty
    }
    if not method.protects:  # nothing is held, so there is no policy
        found = {name: value for name, value in found.items() if name not in ("norm", "bias")}
    return found


def takes_seed(method: type[Method]) -> bool:
    return "seed" in inspect.signature(method.__init__).parameters


def _published(benchmark: str, method: str, preset: str) -> dict[str, dict[str, Any]]:
    """What the recipe file of the benchmark says: for all, in the preset, for the method, for it in the preset.

    A method that is ``like`` another begins with what that one has, and so does a benchmark. A fast preset has the
    settings of its reading, and a schedule that is the same for all methods unless it names one itself.
    """
    files = _recipe_files(benchmark)
    presets = READINGS[PRESETS[preset]]
    reading = [layer for file in files for layer in (file, *(file.get("presets", {}).get(p, {}) for p in presets))]
    fast = [file["presets"]["fast"] for file in files if "fast" in file.get("presets", {})]
    schedules = reading
    if preset in FAST_PRESETS:
        schedules = [*({"training": file.get("training", {})} for file in files), {"training": FAST}, *fast]
    like = {name: values.get("like") for file in files for name, values in file.get("methods", {}).items()}
    names = [method]  # it comes last, after those it is like
    while (ancestor := like.get(names[0])) is not None:
        names.insert(0, ancestor)
    training = {key: value for layer in schedules for key, value in layer.get("training", {}).items()}
    settings: dict[str, Any] = {}
    for name in names:
        for layer in schedules:
            training |= layer.get("methods", {}).get(name, {}).get("training", {})
        for layer in reading:
            own = layer.get("methods", {}).get(name, {})
            settings |= {key: value for key, value in own.items() if key not in ("like", "training")}
    return {"training": training, "settings": settings}


def _recipe_files(benchmark: str) -> list[dict[str, Any]]:
    """The recipe files of the benchmarks that this one is like, the furthest first, and its own; a user's has none."""
    if is_plugin(benchmark):
        return []
    file = resources.files("codecl.benchmarks") / "recipes" / f"{benchmark}.toml"
    own = parse_toml(file.read_text(encoding="utf-8"))
    return [*(_recipe_files(own["like"]) if "like" in own else ()), own]


def _plan_defaults() -> dict[str, Any]:
    return {f.name: f.default for f in dataclasses.fields(Plan) if f.name not in ELSEWHERE}


def _check_training(training: Mapping[str, Any]) -> None:
    with refusing("training: "):
        for name, default in _plan_defaults().items():
            check(name, value := training[name], type(default))
            if not isinstance(value, str) and value < 0:
                raise ValueError(f"{name} must not be negative; got {value!r}.")
        for name in ("epochs", "batch_size", "evaluation_batch", "lr", "min_lr"):
            if not training[name] > 0:
                raise ValueError(f"{name} must be above 0; got {training[name]!r}.")
        Plan(**training).new_rule()


def flatten(recipe: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a recipe, those of its tables as ``table.name``."""
    flat: dict[str, Any] = {}
    for name, value in recipe.items():
        if name in TABLES and isinstance(value, dict):
            flat |= {f"{name}.{key}": list(v) if isinstance(v, tuple) else v for key, v in value.items()}
        else:
            flat[name] = value
    return flat

"""A recipe: all that is needed to run an experiment again, as data.

It is made from the defaults of the method and of training, the reading that the preset names, the values in the
benchmark's recipe file, and what the user sets, in that order; later ones win.
"""

from __future__ import annotations

import dataclasses
import inspect
import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

from codecl.benchmarks.registry import EMBEDDED
from codecl.errors import UsageError
from codecl.methods import Method
from codecl.runs.plugins import find_benchmark, find_method
from codecl.runs.toml import from_toml, to_toml, toml_key
from codecl.runs.untrusted import MEGABYTE, read_text
from codecl.text import unknown_name
from codecl.training.plan import Plan

PRESETS = ("paper", "official")
TABLES = ("training", "settings", "data")
QUICK_EPOCHS = 15
NOT_SETTINGS = {"self", "model", "common", "forward", "loss", "heads", "skip", "added", "seed"}
ELSEWHERE = {"seed", "device"}
"""Fields of ``Plan`` that stand at the top of a recipe."""
KINDS = {
    "text": ("method", "benchmark", "preset", "device"),
    "true or false": ("quick",),
    "a whole number": ("seed", "threads", "tasks"),
    "a table": TABLES,
}
TYPES = {"text": str, "true or false": bool, "a whole number": int, "a table": dict}
MOST_THREADS = 1024
RECIPE_LIMIT = MEGABYTE


@dataclass(frozen=True)
class Recipe:
    """A complete recipe; ``training`` and ``settings`` name every value, also those that are defaults."""

    method: str
    benchmark: str = EMBEDDED
    preset: str = "paper"
    quick: bool = False
    seed: int = 0
    threads: int = 1
    device: str = "cpu"
    tasks: int | None = None
    training: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    data: Mapping[str, str] = field(default_factory=dict)

    def plan(self) -> Plan:
        return Plan(**self.training, seed=self.seed, device=self.device)

    def to_toml(self) -> str:
        flat = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        tables = {name: flat.pop(name) for name in TABLES}
        lines = [f"{key} = {to_toml(value)}" for key, value in flat.items()]
        for name, table in tables.items():
            lines += ["", f"[{name}]", *(f"{toml_key(key)} = {to_toml(value)}" for key, value in table.items())]
        return "\n".join(lines) + "\n"

    def differences(self, other: Recipe) -> list[str]:
        """What differs, a line each, as ``name: mine, the other's``."""
        mine, its = _flatten(self), _flatten(other)
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
    given = {key: value for key, value in asked.items() if value is not None}
    _check_top(given)
    name, benchmark = given.get("method", "code-cl"), given.get("benchmark", EMBEDDED)
    preset, quick = given.get("preset", PRESETS[0]), given.get("quick", False)
    if preset not in PRESETS:
        raise UsageError(unknown_name("preset", preset, PRESETS))
    method, switches = find_method(name), find_benchmark(benchmark).switches
    published = _published(benchmark, name, preset)
    settings = setting_defaults(method)
    tables: dict[str, dict[str, Any]] = {
        "training": _plan_defaults() | published["training"],
        "settings": settings | method.reading(preset) | published["settings"],
        "data": {switch: choices[0] for switch, choices in switches.items()},
    }
    for table, known in {"training": _plan_defaults(), "settings": settings, "data": switches}.items():
        tables[table] |= given.get(table, {})
        _check_names(table, tables[table], known)
    _apply(changes, tables, name)
    if epochs is not None:
        tables["training"]["epochs"] = epochs
    _check_training(tables["training"])
    _check_settings(tables["settings"], settings)
    tables["data"] = _choices(tables["data"], switches)
    if quick:
        _cut_schedule(tables["training"], keep_patience="patience" in changes)
    rest: dict[str, Any] = {key: given[key] for key in ("seed", "threads", "device", "tasks") if key in given} | tables
    return Recipe(name, benchmark, preset, quick, **rest)


def _apply(changes: Mapping[str, Any], tables: Mapping[str, dict[str, Any]], method: str) -> None:
    for key, value in changes.items():
        table = next((table for table in tables.values() if key in table), None)
        if table is None:
            known = [name for table in tables.values() for name in table]
            raise UsageError(unknown_name(f"hyperparameter of {method}", key, known))
        table[key] = value


def _choices(data: Mapping[str, Any], switches: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """What was chosen about the data, as text; ``UsageError`` where there is no such choice."""
    chosen = {switch: to_toml(value) if isinstance(value, bool) else str(value) for switch, value in data.items()}
    for switch, choice in chosen.items():
        if choice not in switches[switch]:
            raise UsageError(f"data: {unknown_name(f'choice of {switch}', choice, switches[switch])}")
    return chosen


def _cut_schedule(training: dict[str, Any], keep_patience: bool) -> None:
    """At most ``QUICK_EPOCHS``; patience is cut with them, or the learning rate would never decay."""
    if training["epochs"] > QUICK_EPOCHS:
        if not keep_patience:
            training["patience"] = max(2, round(training["patience"] * QUICK_EPOCHS / training["epochs"]))
        training["epochs"] = QUICK_EPOCHS


def read_recipe(path: Path) -> dict[str, Any]:
    """The fields that a TOML file gives; it need not give all."""
    try:
        return from_toml(read_text(path, RECIPE_LIMIT))
    except FileNotFoundError:
        raise UsageError(f"there is no recipe file {path}.") from None
    except OSError as error:
        raise UsageError(f"{path} is not a recipe: {error}.") from None
    except ValueError as error:
        raise UsageError(f"{path} is not a recipe: {error}") from None


def parse_change(text: str) -> tuple[str, Any]:
    """``name=value`` of ``--set``, the value as TOML or else as a plain word."""
    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        raise UsageError(f"--set takes name=value; got {text!r}.")
    try:
        parsed = from_toml(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        parsed = None if value.strip() == "none" else value.strip()
    except ValueError as error:
        raise UsageError(f"--set {name.strip()}: {error}") from None
    return name.strip(), parsed


def setting_defaults(method: type[Method]) -> dict[str, Any]:
    """Every hyperparameter of a method with its default, those of the base class last."""
    found: dict[str, Any] = {}
    for cls in method.__mro__:
        if "__init__" in vars(cls) and issubclass(cls, Method):
            for name, parameter in inspect.signature(cls.__init__).parameters.items():
                if name not in NOT_SETTINGS and parameter.default is not inspect.Parameter.empty:
                    found.setdefault(name, parameter.default)
    if not method.protects:  # nothing is held, so there is no policy
        found = {name: value for name, value in found.items() if name not in ("norm", "bias")}
    return found


def takes_seed(method: type[Method]) -> bool:
    return "seed" in inspect.signature(method.__init__).parameters


def _published(benchmark: str, method: str, preset: str) -> dict[str, dict[str, Any]]:
    """What the recipe file of the benchmark says: for all, in the preset, for the method, for it in the preset.

    A method that is ``like`` another begins with what that one has, and so does a benchmark.
    """
    tables = _recipe_files(benchmark)
    layers = [layer for table in tables for layer in (table, table.get("presets", {}).get(preset, {}))]
    methods = {name: values for table in tables for name, values in table.get("methods", {}).items()}
    training: dict[str, Any] = {}
    settings: dict[str, Any] = {}
    for layer in layers:
        training |= layer.get("training", {})
    for ancestor in _ancestry(methods, method):
        for layer in layers:
            own = dict(layer.get("methods", {}).get(ancestor, {}))
            own.pop("like", None)
            training |= own.pop("training", {})
            settings |= own
    return {"training": training, "settings": settings}


def _recipe_files(benchmark: str) -> list[dict[str, Any]]:
    """The recipe files of the benchmarks that this one is like, the furthest first, and its own; a user's has none."""
    if ":" in benchmark:
        return []
    file = resources.files("codecl.benchmarks") / "recipes" / f"{benchmark}.toml"
    own = from_toml(file.read_text(encoding="utf-8"))
    return [*(_recipe_files(own["like"]) if "like" in own else ()), own]


def _ancestry(methods: Mapping[str, Any], method: str) -> list[str]:
    """The methods that ``method`` is like, the furthest first, and itself."""
    like = methods.get(method, {}).get("like")
    return [*(_ancestry(methods, like) if like else ()), method]


def _plan_defaults() -> dict[str, Any]:
    return {f.name: f.default for f in dataclasses.fields(Plan) if f.name not in ELSEWHERE}


def _check_names(what: str, given: Mapping[str, Any], known: Mapping[str, Any]) -> None:
    for name in given:
        if name not in known:
            raise UsageError(f"[{what}]: {unknown_name('field', name, known)}")


def _check_top(given: Mapping[str, Any]) -> None:
    known = {f.name for f in dataclasses.fields(Recipe)}
    if unknown := given.keys() - known:
        raise UsageError(f"recipe: {unknown_name('field', sorted(unknown)[0], sorted(known))}")
    for kind, names in KINDS.items():
        for name in names:
            if name in given and type(given[name]) is not TYPES[kind]:
                raise UsageError(f"recipe: {name} must be {kind}; got {given[name]!r}.")
    for name, most in {"threads": MOST_THREADS, "tasks": None}.items():
        if name in given and not 1 <= given[name] <= (most or given[name]):
            raise UsageError(f"{name} must be 1 or more{f', at most {most}' if most else ''}; got {given[name]}.")
    if not -(2**63) <= given.get("seed", 0) < 2**63:
        raise UsageError(f"seed must be a whole number of 64 bits; got {given['seed']!r:.80}.")


def _check_training(training: Mapping[str, Any]) -> None:
    for name, default in _plan_defaults().items():
        value, kind = training[name], type(default)
        if type(value) is not kind and not (kind is float and type(value) is int):
            raise UsageError(f"training: {name} must be {kind.__name__}; got {value!r}.")
        if kind is not str and not 0 <= value < math.inf:
            raise UsageError(f"training: {name} must be finite and not negative; got {value!r}.")
    for name in ("epochs", "batch_size", "evaluation_batch", "lr", "min_lr"):
        if not training[name] > 0:
            raise UsageError(f"training: {name} must be above 0; got {training[name]!r}.")
    try:
        Plan(**training).new_rule()
    except ValueError as error:
        raise UsageError(f"training: {error}") from None


def _check_settings(settings: Mapping[str, Any], defaults: Mapping[str, Any]) -> None:
    """As far as a default tells what is meant; the method itself knows the rest."""
    for name, default in defaults.items():
        value = settings[name]
        kind, wrong = {
            bool: ("true or false", not isinstance(value, bool)),
            int: ("a whole number", isinstance(value, (bool, float))),
            tuple: ("a list", not isinstance(value, (list, tuple))),
        }.get(type(default), ("", False))
        if wrong and value is not None:
            raise UsageError(f"settings: {name} must be {kind}; got {value!r}.")


def _flatten(recipe: Recipe) -> dict[str, Any]:
    flat = {f.name: getattr(recipe, f.name) for f in dataclasses.fields(recipe)}
    for table in TABLES:
        flat |= {f"{table}.{key}": list(v) if isinstance(v, tuple) else v for key, v in flat.pop(table).items()}
    return flat

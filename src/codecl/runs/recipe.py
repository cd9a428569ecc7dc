"""A recipe: all that is needed to run an experiment again, as data.

It is made from the defaults of the method and of training, the reading that the preset names, the values in the
benchmark's recipe file, and what the user sets, in that order; later ones win.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

from codecl.benchmarks.registry import EMBEDDED
from codecl.errors import UsageError
from codecl.methods import Method
from codecl.runs.plugins import find_benchmark, find_method
from codecl.runs.untrusted import MEGABYTE, parse_toml, read_text
from codecl.text import unknown_name
from codecl.training.engine import Plan

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
        lines = [f"{key} = {_toml(value)}" for key, value in flat.items()]
        for name, table in tables.items():
            lines += ["", f"[{name}]", *(f"{_key(key)} = {_toml(value)}" for key, value in table.items())]
        return "\n".join(lines) + "\n"

    def differences(self, other: Recipe) -> list[str]:
        """What differs, a line each, as ``name: mine, the other's``."""
        mine, its = _flatten(self), _flatten(other)
        return [f"{k}: {mine.get(k)!r} here, {its.get(k)!r} there" for k in mine | its if mine.get(k) != its.get(k)]


def make_recipe(asked: Mapping[str, Any], changes: Mapping[str, Any], epochs: int | None = None) -> Recipe:
    """The complete recipe for the fields that were ``asked``, with ``changes`` to single hyperparameters."""
    given = {key: value for key, value in asked.items() if value is not None}
    known = {f.name for f in dataclasses.fields(Recipe)}
    if unknown := given.keys() - known:
        raise UsageError(f"recipe: {unknown_name('field', sorted(unknown)[0], sorted(known))}")
    _check_top(given)
    name, benchmark = given.get("method", "code-cl"), given.get("benchmark", EMBEDDED)
    preset, quick = given.get("preset", "paper"), bool(given.get("quick", False))
    if preset not in PRESETS:
        raise UsageError(unknown_name("preset", preset, PRESETS))
    method = find_method(name)
    switches = find_benchmark(benchmark).switches
    published = _published(benchmark, name, preset)
    training = _plan_defaults() | published["training"] | dict(given.get("training", {}))
    settings = (
        setting_defaults(method) | method.reading(preset) | published["settings"] | dict(given.get("settings", {}))
    )
    data = {switch: choices[0] for switch, choices in switches.items()}
    data |= {key: _word(value) for key, value in given.get("data", {}).items()}
    for key, value in changes.items():
        table = next((table for table in (training, settings, data) if key in table), None)
        if table is None:
            raise UsageError(unknown_name(f"hyperparameter of {name}", key, [*training, *settings, *data]))
        table[key] = _word(value) if table is data else value
    _check_names("training", training, _plan_defaults())
    _check_names("settings", settings, setting_defaults(method))
    _check_names("data", data, switches)
    for switch, choice in data.items():
        if choice not in switches[switch]:
            raise UsageError(f"data: {unknown_name(f'choice of {switch}', choice, switches[switch])}")
    if epochs is not None:
        training["epochs"] = epochs
    _check_training(training)
    _check_settings(settings, setting_defaults(method))
    if quick and training["epochs"] > QUICK_EPOCHS:
        if "patience" not in changes:  # cut with the epochs, or the learning rate would never decay
            training["patience"] = max(2, round(training["patience"] * QUICK_EPOCHS / training["epochs"]))
        training["epochs"] = QUICK_EPOCHS
    top = {key: given[key] for key in ("seed", "threads", "device", "tasks") if key in given}
    return Recipe(name, benchmark, preset, quick, **top, training=training, settings=settings, data=data)


def read_recipe(path: Path) -> dict[str, Any]:
    """The fields that a TOML file gives; it need not give all."""
    try:
        return parse_recipe(read_text(path, RECIPE_LIMIT))
    except FileNotFoundError:
        raise UsageError(f"there is no recipe file {path}.") from None
    except OSError as error:
        raise UsageError(f"{path} is not a recipe: {error}.") from None
    except ValueError as error:
        raise UsageError(f"{path} is not a recipe: {error}") from None


def parse_recipe(text: str) -> dict[str, Any]:
    """The fields that a recipe gives; ``ValueError`` if it is not TOML."""
    fields: dict[str, Any] = _nones(parse_toml(text))
    return fields


def parse_change(text: str) -> tuple[str, Any]:
    """``name=value`` of ``--set``, the value as TOML or else as a plain word."""
    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        raise UsageError(f"--set takes name=value; got {text!r}.")
    try:
        parsed = parse_toml(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        parsed = value.strip()
    except ValueError as error:
        raise UsageError(f"--set {name.strip()}: {error}") from None
    return name.strip(), _nones(parsed)


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
    methods = {name: of for table in tables for name, of in table.get("methods", {}).items()}
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
    own = _nones(tomllib.loads(file.read_text(encoding="utf-8")))
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


def _toml(value: Any) -> str:
    if value is None:
        return '"none"'  # TOML has no word for it
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return _quoted(value)
    if isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{_key(key)} = {_toml(item)}" for key, item in value.items()) + " }"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(_toml(item) for item in value) + "]"
    raise UsageError(f"{value!r} cannot be written to a recipe.")


def _key(name: str) -> str:
    bare = name.isascii() and name.replace("_", "").replace("-", "").isalnum()
    return name if bare else _quoted(name)


def _quoted(text: str) -> str:
    """A basic string of TOML: JSON's escapes, but for surrogate pairs and the one control character JSON leaves."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _word(value: Any) -> str:
    return _toml(value) if isinstance(value, bool) else str(value)


def _nones(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _nones(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_nones(item) for item in value]
    return None if value == "none" else value


def _flatten(recipe: Recipe) -> dict[str, Any]:
    flat = {f.name: getattr(recipe, f.name) for f in dataclasses.fields(recipe)}
    for table in TABLES:
        flat |= {f"{table}.{key}": list(v) if isinstance(v, tuple) else v for key, v in flat.pop(table).items()}
    return flat

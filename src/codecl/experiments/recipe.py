"""A recipe: all that is needed to run an experiment again, as data.

It is made from the defaults of the method and of training, the reading that the preset names, the values in the
benchmark's recipe file, and what the user sets, in that order; later ones win.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

from codecl.experiments.registry import EMBEDDED, UsageError, _unknown, find_benchmark, find_method
from codecl.methods import Method
from codecl.training.engine import Plan

PRESETS = ("paper", "official")
QUICK_EPOCHS = 15
NOT_SETTINGS = {"self", "model", "common", "forward", "heads", "skip", "seed"}
ELSEWHERE = {"seed", "device"}
"""Fields of ``Plan`` that stand at the top of a recipe."""


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

    def plan(self) -> Plan:
        return Plan(**self.training, seed=self.seed, device=self.device)

    def to_toml(self) -> str:
        flat = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        tables = {name: flat.pop(name) for name in ("training", "settings")}
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
        raise UsageError(f"recipe: {_unknown('field', sorted(unknown)[0], sorted(known))}")
    name, benchmark = given.get("method", "code-cl"), given.get("benchmark", EMBEDDED)
    preset, quick = given.get("preset", "paper"), bool(given.get("quick", False))
    if preset not in PRESETS:
        raise UsageError(_unknown("preset", preset, PRESETS))
    method = find_method(name)
    find_benchmark(benchmark)
    published = _published(benchmark, name, preset)
    training = _plan_defaults() | published["training"] | dict(given.get("training", {}))
    settings = (
        setting_defaults(method) | method.reading(preset) | published["settings"] | dict(given.get("settings", {}))
    )
    for key, value in changes.items():
        table = training if key in training else settings
        if key not in table:
            raise UsageError(_unknown(f"hyperparameter of {name}", key, [*training, *settings]))
        table[key] = value
    _check_names("training", training, _plan_defaults())
    _check_names("settings", settings, setting_defaults(method))
    if quick:
        training["epochs"] = min(training["epochs"], QUICK_EPOCHS)
    if epochs is not None:
        training["epochs"] = epochs
    _check_training(training)
    top = {key: given[key] for key in ("seed", "threads", "device", "tasks") if key in given}
    return Recipe(name, benchmark, preset, quick, **top, training=training, settings=settings)


def read_recipe(path: Path) -> dict[str, Any]:
    """The fields that a TOML file gives; it need not give all."""
    try:
        return _nones(tomllib.loads(path.read_text()))
    except FileNotFoundError:
        raise UsageError(f"there is no recipe file {path}.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, OSError) as error:
        raise UsageError(f"{path} is not a recipe: {error}.") from None


def parse_change(text: str) -> tuple[str, Any]:
    """``name=value`` of ``--set``, the value as TOML or else as a plain word."""
    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        raise UsageError(f"--set takes name=value; got {text!r}.")
    try:
        parsed = tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        parsed = value.strip()
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
    """What the recipe file of the benchmark says: for all, the preset, the method, the method in the preset."""
    file = resources.files("codecl.experiments") / "recipes" / f"{benchmark}.toml"
    table = _nones(tomllib.loads(file.read_text()))
    layers = [table, table.get("presets", {}).get(preset, {})]
    training: dict[str, Any] = {}
    settings: dict[str, Any] = {}
    for layer in layers:
        training |= layer.get("training", {})
        own = dict(layer.get("methods", {}).get(method, {}))
        training |= own.pop("training", {})
        settings |= own
    return {"training": training, "settings": settings}


def _plan_defaults() -> dict[str, Any]:
    return {f.name: f.default for f in dataclasses.fields(Plan) if f.name not in ELSEWHERE}


def _check_names(what: str, given: Mapping[str, Any], known: Mapping[str, Any]) -> None:
    for name in given:
        if name not in known:
            raise UsageError(f"[{what}]: {_unknown('field', name, known)}")


def _check_training(training: Mapping[str, Any]) -> None:
    for name, default in _plan_defaults().items():
        value, kind = training[name], type(default)
        sound = (
            isinstance(value, str) if kind is str else isinstance(value, (int, float)) and not isinstance(value, bool)
        )
        if not sound or (kind is int and value != int(value)) or (kind is not str and value < 0):
            raise UsageError(
                f"training: {name} must be {kind.__name__}{'' if kind is str else ' and not negative'}; got {value!r}."
            )
    if training["rule"] not in ("loss", "accuracy"):
        raise UsageError(f"training: rule must be 'loss' or 'accuracy'; got {training['rule']!r}.")
    for name in ("epochs", "batch_size", "evaluation_batch", "lr"):
        if not training[name] > 0:
            raise UsageError(f"training: {name} must be above 0; got {training[name]!r}.")


def _toml(value: Any) -> str:
    if value is None:
        return '"none"'  # TOML has no word for it
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return json.dumps(value)
    if isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{_key(key)} = {_toml(item)}" for key, item in value.items()) + " }"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(_toml(item) for item in value) + "]"
    raise UsageError(f"{value!r} cannot be written to a recipe.")


def _key(name: str) -> str:
    return name if name.replace("_", "").replace("-", "").isalnum() else json.dumps(name)


def _nones(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _nones(item) for key, item in value.items()}
    return None if value == "none" else value


def _flatten(recipe: Recipe) -> dict[str, Any]:
    flat = {f.name: getattr(recipe, f.name) for f in dataclasses.fields(recipe)}
    for table in ("training", "settings"):
        flat |= {f"{table}.{key}": list(v) if isinstance(v, tuple) else v for key, v in flat.pop(table).items()}
    return flat

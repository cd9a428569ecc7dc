"""What a run directory records, as typed values: the result, the events of the log, and the record of a whole run.

A record is validated when it is made, so whoever has one can use every field. What a file says that cannot be is one
``ValueError`` in a sentence.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_origin, get_type_hints

from codecl.runs.events import EpochEvent, Event, TaskEvent, parse_log
from codecl.runs.fields import check_amounts, check_text, check_whole, is_number
from codecl.runs.recipe import RECIPE_LIMIT
from codecl.runs.toml import from_toml
from codecl.runs.untrusted import MEGABYTE, parse_json, read_bytes, read_text
from codecl.training import metrics

RECIPE, LOG, RESULT = "recipe.toml", "log.jsonl", "result.json"
RESULT_LIMIT, LOG_LIMIT = 64 * MEGABYTE, 1024 * MEGABYTE
SECONDS = ("train", "between_tasks", "evaluate")
AMOUNTS = {
    "seconds": SECONDS,
    "bytes": ("memory", "per_task"),
    "training": ("epochs", "lr"),
}
"""Numbers that a table of a result must have."""
SAME_IN_RECIPE = ("method", "benchmark", "preset", "quick", "seed")
TABLES_IN_RECIPE = {"training": "training", "settings": "settings", "data": "switches"}
"""What a recipe and its result both say, and what the result calls it."""


@dataclass(frozen=True)
class Result:
    """The content of ``result.json``: what was run, and what came of it.

    ``accuracy[i][j]`` is the accuracy in percent on task ``j`` after learning task ``i``, None where not measured.
    """

    method: str
    benchmark: str
    preset: str
    quick: bool
    seed: int
    data: str
    switches: dict[str, str]
    tasks: int
    accuracy: list[list[float | None]]
    epochs: list[int]
    seconds: dict[str, float]
    bytes: dict[str, int]
    threads: int
    device: str
    training: dict[str, Any]
    settings: dict[str, Any]
    versions: dict[str, str]

    def __post_init__(self) -> None:
        for name, kind in RESULT_KINDS.items():
            if type(value := getattr(self, name)) is not kind:
                raise ValueError(f"{name} must be {kind.__name__}; got {value!r:.80}.")
        if not all(isinstance(row, list) for row in self.accuracy):
            raise ValueError(f"accuracy must be a list of rows; got {self.accuracy!r:.80}.")
        if len(metrics.final(self.accuracy)) != self.tasks:
            raise ValueError(f"the accuracy matrix has {len(self.accuracy[0])} tasks; tasks = {self.tasks}.")
        for name in ("seconds", "bytes"):
            check_amounts(name, getattr(self, name), AMOUNTS[name])
        check_amounts("training", {key: self.training.get(key) for key in AMOUNTS["training"]})
        for i, count in enumerate(self.epochs):
            check_whole(f"epochs[{i}]", count)
        for name in ("switches", "versions"):
            for key, text in getattr(self, name).items():
                check_text(f"{name}.{key}", text)

    @property
    def acc(self) -> float:
        """Mean accuracy over all tasks in the end, in percent."""
        return metrics.acc(self.accuracy)

    @property
    def bwt(self) -> float | None:
        """Backward transfer in percent; None where no task came later."""
        return metrics.bwt(self.accuracy)

    @property
    def joint(self) -> bool:
        """Whether all tasks were learned at once: an upper bound and not continual learning."""
        return metrics.together(self.accuracy)

    @property
    def total_seconds(self) -> float:
        return float(sum(self.seconds.values()))

    @classmethod
    def from_json(cls, text: str) -> Result:
        """The result that ``text`` states; ``ValueError`` if it is none, or its ACC and BWT are not its matrix's."""
        stated = parse_json(text)
        if not isinstance(stated, dict):
            raise ValueError(f"it must be a table; got {stated!r:.80}.")
        known: dict[str, Any] = {name: stated.get(name) for name in RESULT_KINDS}
        result = cls(**known)
        for name in ("acc", "bwt"):
            given, computed = stated.get(name), getattr(result, name)
            close = is_number(given) and is_number(computed) and math.isclose(given, computed, abs_tol=1e-6)
            if given != computed and not close:
                raise ValueError(f"{name} is {given!r:.80}, but the accuracy matrix gives {computed!r}.")
        return result

    def to_fields(self) -> dict[str, Any]:
        """The fields of ``result.json``, with ACC and BWT after the accuracy matrix."""
        fields: dict[str, Any] = {}
        for name in RESULT_KINDS:
            fields[name] = getattr(self, name)
            if name == "accuracy":
                fields |= {"acc": self.acc, "bwt": self.bwt}
        return fields

    def to_json(self) -> str:
        return json.dumps(self.to_fields(), indent=1) + "\n"


RESULT_KINDS: dict[str, type] = {name: get_origin(hint) or hint for name, hint in get_type_hints(Result).items()}


@dataclass(frozen=True)
class RunRecord:
    """A run directory as it was read. ``damage`` says of a file, by its name, what is wrong with it.

    ``events`` are those before the damage of a damaged log, and ``result`` is None if it is damaged or not there.
    """

    path: Path
    recipe_text: str = ""
    recipe: Mapping[str, Any] = field(default_factory=dict)
    result: Result | None = None
    events: Sequence[Event] = ()
    damage: Mapping[str, str] = field(default_factory=dict)

    @property
    def has_log(self) -> bool:
        return (self.path / LOG).exists()

    @property
    def epochs(self) -> list[EpochEvent]:
        return [event for event in self.events if isinstance(event, EpochEvent)]

    @property
    def tasks(self) -> list[TaskEvent]:
        """The ends of the tasks that were learned."""
        return [event for event in self.events if isinstance(event, TaskEvent)]

    @property
    def log_fault(self) -> str:
        """Why the log does not say what it should: "missing", or what is damaged in it; empty if all is well."""
        return self.damage.get(LOG, "") if self.has_log else "missing"


def read_run(path: Path) -> RunRecord:
    """Everything that the run directory ``path`` records. It raises nothing about what it finds: see ``damage``."""
    damage: dict[str, str] = {}
    text, recipe, result = "", {}, None
    try:
        text = read_text(path / RECIPE, RECIPE_LIMIT)
        recipe = from_toml(text)
    except FileNotFoundError:
        damage[RECIPE] = "is a link to nothing." if (path / RECIPE).is_symlink() else "is missing."
    except OSError as error:
        damage[RECIPE] = f"cannot be read: {error.strerror}."
    except ValueError as error:
        damage[RECIPE] = f"is not a recipe: {error}"
    try:
        result = read_result(path, recipe)
    except OSError as error:
        damage[RESULT] = f"cannot be read: {error.strerror}."
    except ValueError as error:
        damage[RESULT] = f"is damaged: {error}"
    events, fault = read_log(path)
    if fault:
        damage[LOG] = f"is damaged: {fault}"
    return RunRecord(path, text, recipe, result, events, damage)


def read_result(path: Path, recipe: Mapping[str, Any]) -> Result | None:
    """The result in the run directory ``path``, None if there is none yet.

    ``ValueError`` if it cannot be believed, or is not of the ``recipe`` that lies beside it.
    """
    try:
        text = read_text(path / RESULT, RESULT_LIMIT)
    except (FileNotFoundError, NotADirectoryError):
        return None
    result = Result.from_json(text)
    for name, asked, recorded in _in_both(recipe, result):
        if asked != recorded:
            raise ValueError(f"it is not of its recipe.toml, where {name} is {asked!r:.80}; here {recorded!r:.80}.")
    return result


def _in_both(recipe: Mapping[str, Any], result: Result) -> Iterator[tuple[str, Any, Any]]:
    """What both say: its name, and the two values."""
    for name in SAME_IN_RECIPE:
        if name in recipe:
            yield name, recipe[name], getattr(result, name)
    if recipe.get("tasks") is not None:
        yield "tasks", recipe["tasks"], result.tasks
    for table, name in TABLES_IN_RECIPE.items():
        values = recipe.get(table, {})
        for key, recorded in getattr(result, name).items():
            if isinstance(values, dict) and key in values:
                yield f"{table}.{key}", values[key], recorded


def read_log(path: Path) -> tuple[list[Event], str]:
    """The events in the run directory ``path`` up to the first damaged line, and what is wrong with it, or empty."""
    try:
        return parse_log(read_bytes(path / LOG, LOG_LIMIT))
    except (FileNotFoundError, NotADirectoryError):
        return [], ""
    except OSError as error:
        return [], f"it cannot be read: {error.strerror}."
    except ValueError as error:
        return [], str(error)

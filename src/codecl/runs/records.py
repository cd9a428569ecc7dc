"""What a run directory records, as typed values: the result, the events of the log, and the record of a whole run.

What a file says that cannot be is one ``ValueError`` in a sentence, so whoever has a record can use every field.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from codecl.runs.events import EpochEvent, Event, TaskEvent, parse_log
from codecl.runs.plugins import title
from codecl.runs.recipe import RECIPE_LIMIT, flatten
from codecl.runs.typed import Amount, Checked, Percent, Whole, check, field_hints, is_number, keys
from codecl.runs.untrusted import MEGABYTE, parse_json, parse_toml, read_bytes, read_text
from codecl.training import metrics

RECIPE, LOG, RESULT = "recipe.toml", "log.jsonl", "result.json"
RESULT_LIMIT, LOG_LIMIT = 64 * MEGABYTE, 1024 * MEGABYTE
Inference = Annotated[
    dict[str, Any],
    keys(
        tasks_right=Percent, tasks_right_together=Percent, inferred=Percent, inferred_together=Percent, together=Whole,
        confusion=list[list[Percent]], evidence=str, tasks_right_by_heads=Percent | None,
    ),
]  # fmt: skip
"""What was measured without telling the task: see ``codecl.training.task_inference``."""
Seconds = Annotated[dict[str, Amount], keys(train=Amount, between_tasks=Amount, evaluate=Amount)]


@dataclass(frozen=True)
class Result(Checked):
    """The content of ``result.json``: what was run, and what came of it.

    ``accuracy[i][j]`` is the accuracy in percent on task ``j`` after learning task ``i``, None where not measured.
    """

    method: str
    benchmark: str
    preset: str
    seed: int
    data: str
    switches: dict[str, str]
    tasks: int
    accuracy: list[list[float | None]]
    epochs: list[Whole]
    seconds: Seconds
    bytes: Annotated[dict[str, Whole], keys(memory=Whole, per_task=Whole)]
    threads: int
    device: str
    training: Annotated[dict[str, Any], keys(epochs=Amount, lr=Amount)]
    settings: dict[str, Any]
    versions: dict[str, str]
    inference: Inference | None = None
    method_name: str | None = None
    """What a method of the user's own calls itself."""
    validation: list[Percent] | None = None
    """The accuracy on the validation part of each task in the end, in percent: what a choice may be made by."""
    moved: list[list[Amount | None]] | None = None
    """How far learning task ``i`` moved the outputs of task ``j`` on its validation inputs, relative to them."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.validation is not None and len(self.validation) != self.tasks:
            raise ValueError(f"validation must have {self.tasks} numbers; got {self.validation!r:.80}.")
        if len(metrics.final(self.accuracy)) != self.tasks:
            raise ValueError(f"the accuracy matrix has {len(self.accuracy[0])} tasks; tasks = {self.tasks}.")

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
    def validation_acc(self) -> float | None:
        """Mean validation accuracy over all tasks in the end, in percent; None in records that do not have it."""
        return None if self.validation is None else sum(self.validation) / len(self.validation)

    @property
    def mean_moved(self) -> float | None:
        """How far learning a task moved the outputs of an earlier one, on average; None where it was not measured."""
        measured = [value for row in self.moved or () for value in row if value is not None]
        return sum(measured) / len(measured) if measured else None

    @property
    def title(self) -> str:
        """What tables call the method."""
        return self.method_name or title(self.method)

    @property
    def total_seconds(self) -> float:
        return float(sum(self.seconds.values()))

    @classmethod
    def from_json(cls, text: str) -> Result:
        """The result that ``text`` states; ``ValueError`` if it is none, or its ACC and BWT are not its matrix's."""
        stated = parse_json(text)
        check("it", stated, dict)
        result = cls(**{name: stated.get(name) for name in field_hints(cls)})
        for name in ("acc", "bwt"):
            given, computed = stated.get(name), getattr(result, name)
            close = is_number(given) and is_number(computed) and math.isclose(given, computed, abs_tol=1e-6)
            if given != computed and not close:
                raise ValueError(f"{name} is {given!r:.80}, but the accuracy matrix gives {computed!r}.")
        return result

    def to_fields(self) -> dict[str, Any]:
        """The fields of ``result.json``, with ACC and BWT after the accuracy matrix."""
        fields: dict[str, Any] = {}
        for name in field_hints(type(self)):
            if getattr(self, name) is None:
                continue
            fields[name] = getattr(self, name)
            if name == "accuracy":
                fields |= {"acc": self.acc, "bwt": self.bwt}
        return fields

    def to_json(self) -> str:
        return json.dumps(self.to_fields(), indent=1) + "\n"


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


class AnotherRun(ValueError):
    """A sound result that is not of the recipe beside it."""


def read_run(path: Path) -> RunRecord:
    """Everything that the run directory ``path`` records. It raises nothing about what it finds: see ``damage``."""
    damage: dict[str, str] = {}
    text, recipe, result = "", {}, None
    events: list[Event] = []

    @contextmanager
    def reading(name: str, fault: str) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError:
            if (path / name).is_symlink():
                damage[name] = "is a link to nothing."
            elif name == RECIPE:
                damage[name] = "is missing."
        except AnotherRun as error:
            damage[name] = f"is of another run: {error}"
        except OSError as error:
            damage[name] = f"cannot be read: {error.strerror}."
        except ValueError as error:
            damage[name] = f"{fault}: {error}"

    with reading(RECIPE, "is not a recipe"):
        text = read_text(path / RECIPE, RECIPE_LIMIT)
        recipe = parse_toml(text)
    with reading(RESULT, "is damaged"):
        result = read_result(path, recipe)
    with reading(LOG, "is damaged"):
        events, fault = parse_log(read_bytes(path / LOG, LOG_LIMIT))
        if fault:
            raise ValueError(fault)
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
    recorded = flatten(vars(result) | {"data": result.switches})
    for name, asked in flatten(recipe).items():
        here = recorded.get(name, asked)
        if asked != here and (name, asked) != ("tasks", None) and name not in ("device", "threads"):
            raise AnotherRun(f"{name} is {here!r:.80} in it and {asked!r:.80} in {RECIPE}.")
    return result

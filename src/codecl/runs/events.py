"""The events of a run, as the engine emits them and ``log.jsonl`` keeps them, one a line.

An event is validated when it is made: a field that cannot be is one ``ValueError`` in a sentence.
"""

from __future__ import annotations

import dataclasses
import json
import math
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from codecl.runs.fields import check_amount, check_amounts, check_number, check_text, check_whole, is_number
from codecl.runs.untrusted import decode, parse_json

NUMBERS = ("capacity", "rank", "overlap", "shared", "freed")
"""What the methods here describe of a layer; None where there is none."""
CHECKSUM = ', "crc": "'


@dataclass(frozen=True)
class Event:
    """A line of ``log.jsonl``."""

    kind: ClassVar[str]
    keys: ClassVar[Mapping[str, str]] = {}
    """What the log calls a field, where it has another name."""

    def to_fields(self) -> dict[str, Any]:
        """The event as the log has it; what is None is left out."""
        values = {self.key(f.name): getattr(self, f.name) for f in dataclasses.fields(self)}
        return {"event": self.kind} | {key: value for key, value in values.items() if value is not None}

    def to_line(self) -> str:
        """A line of the log, with a checksum of the rest of it."""
        text = json.dumps(self.to_fields())
        return f'{text[:-1]}{CHECKSUM}{_checksum(text)}"}}\n'

    @classmethod
    def key(cls, name: str) -> str:
        return cls.keys.get(name, name)


@dataclass(frozen=True)
class EpochEvent(Event):
    """An epoch has ended. ``together`` is how many tasks are learned at once, if they are."""

    kind: ClassVar[str] = "epoch"
    keys: ClassVar[Mapping[str, str]] = {"max_epochs": "of"}
    task: int
    epoch: int
    max_epochs: int
    loss: float
    validation_loss: float
    validation_accuracy: float
    lr: float
    seconds: float
    together: int | None = None

    def __post_init__(self) -> None:
        for name in ("task", "epoch", "max_epochs"):
            check_whole(self.key(name), getattr(self, name))
        for name in ("loss", "validation_loss"):
            check_number(name, getattr(self, name))
        for name in ("validation_accuracy", "lr", "seconds"):
            check_amount(name, getattr(self, name))
        _check_together(self.together)


@dataclass(frozen=True)
class TaskEvent(Event):
    """A task was learned: its row of the accuracy matrix, what is stored, and what every layer remembers, by name.

    A layer has its ``shape``, three sizes, its ``bytes``, and what the method describes.
    """

    kind: ClassVar[str] = "task"
    task: int
    name: str
    accuracy: list[float | None]
    bytes: dict[str, int]
    layers: dict[str, dict[str, Any]]
    together: int | None = None

    def __post_init__(self) -> None:
        check_whole("task", self.task)
        check_text("name", self.name)
        row, t = self.accuracy, self.task
        if not (isinstance(row, list) and t < len(row) and all(value is None or is_number(value) for value in row)):
            raise ValueError(f"accuracy must be numbers, those of {t + 1} tasks or more; got {row!r:.80}.")
        if row[t] is None:
            raise ValueError(f"accuracy must have a number for the task itself; got {row!r:.80}.")
        if not all(value is None or 0 <= value <= 100 for value in row):
            raise ValueError(f"accuracy must be percent from 0 to 100; got {row!r:.80}.")
        if not isinstance(self.bytes, dict):
            raise ValueError(f"bytes must be a table; got {self.bytes!r:.80}.")
        check_amounts("bytes", self.bytes, ("memory",))
        _check_layers(self.layers)
        _check_together(self.together)

    @property
    def measured(self) -> list[float]:
        """The accuracies of the tasks that were learned so far."""
        return [value for value in self.accuracy if value is not None]


@dataclass(frozen=True)
class ResumeEvent(Event):
    """A run goes on within ``task`` after ``epoch``; ``epochs`` are those of the tasks before it."""

    kind: ClassVar[str] = "resume"
    task: int
    epoch: int
    epochs: list[int]
    together: int | None = None

    def __post_init__(self) -> None:
        check_whole("task", self.task)
        check_whole("epoch", self.epoch)
        if not isinstance(self.epochs, list):
            raise ValueError(f"epochs must be a list; got {self.epochs!r:.80}.")
        for i, count in enumerate(self.epochs):
            check_whole(f"epochs[{i}]", count)
        _check_together(self.together)


@dataclass(frozen=True)
class NoticeEvent(Event):
    """Something that a person should know."""

    kind: ClassVar[str] = "notice"
    text: str

    def __post_init__(self) -> None:
        check_text("text", self.text)


class EpochCount:
    """How many epochs every task took so far, by its number; an epoch that is run again counts once."""

    def __init__(self) -> None:
        self.by_task: dict[int, int] = {}

    def see(self, event: Event) -> None:
        if isinstance(event, EpochEvent):
            self.by_task[event.task] = event.epoch
        elif isinstance(event, ResumeEvent):
            self.by_task = {**dict(enumerate(event.epochs)), event.task: event.epoch}

    def up_to(self, task: int) -> int:
        """The epochs of ``task`` and those before it."""
        return sum(epochs for t, epochs in self.by_task.items() if t <= task)


EVENTS: dict[str, type[Event]] = {event.kind: event for event in (EpochEvent, TaskEvent, ResumeEvent, NoticeEvent)}


def make_event(fields: object) -> Event:
    """The event with these fields, as the engine emits them and the log has them."""
    if not isinstance(fields, dict) or not isinstance(kind := fields.get("event"), str):
        raise ValueError(f"it must be an event; got {fields!r:.80}.")
    if kind not in EVENTS:
        raise ValueError(f"event must be one of {', '.join(EVENTS)}; got {kind!r:.80}.")
    event = EVENTS[kind]
    return event(**{f.name: fields.get(event.key(f.name)) for f in dataclasses.fields(event)})


def from_engine(fields: dict[str, Any]) -> Event:
    """An event of the engine. What a method describes of a layer may not be finite, which JSON cannot say."""
    return make_event(fields | {"layers": _finite(fields["layers"])} if "layers" in fields else fields)


def _finite(value: Any) -> Any:
    """``value`` without numbers that are not finite: None in their place, and nothing in a list."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [item for item in map(_finite, value) if item is not None]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def parse_log(data: bytes) -> tuple[list[Event], str]:
    """The events up to the first line that is none, and what is wrong with that line; a torn last line is no fault."""
    events: list[Event] = []
    for number, line in enumerate(data.split(b"\n")[:-1], start=1):
        try:
            events.append(_parse_line(decode(line)))
        except ValueError as error:
            return events, f"line {number}: {error}"
    return events, ""


def _parse_line(text: str) -> Event:
    fields = parse_json(text)
    if isinstance(fields, dict) and "crc" in fields:
        rest, _, _ = text.rpartition(CHECKSUM)
        if fields["crc"] != _checksum(f"{rest}}}"):
            raise ValueError(f"its checksum is not {fields['crc']!r:.80}.")
    return make_event(fields)


def _checksum(text: str) -> str:
    return f"{zlib.crc32(text.encode()):08x}"


def _check_layers(layers: Any) -> None:
    if not isinstance(layers, dict):
        raise ValueError(f"layers must be a table by name; got {layers!r:.80}.")
    for name, layer in layers.items():
        if not isinstance(layer, dict):
            raise ValueError(f"the layer {name!r} must be a table; got {layer!r:.80}.")
        shape = layer.get("shape")
        if not (isinstance(shape, list) and len(shape) == 3 and all(type(n) is int and n > 0 for n in shape)):
            raise ValueError(f"the shape of the layer {name!r} must be 3 sizes; got {shape!r:.80}.")
        for key, what, is_item in (("trusted", "tasks", _is_whole), ("spectrum", "numbers", is_number)):
            values = layer.get(key, [])
            if not (isinstance(values, list) and all(map(is_item, values))):
                raise ValueError(f"{key} of the layer {name!r} must be {what}; got {values!r:.80}.")
        check_amount(f"bytes of the layer {name!r}", layer.get("bytes"))
        for key in NUMBERS:
            if layer.get(key) is not None:
                check_number(f"{key} of the layer {name!r}", layer[key])


def _check_together(together: Any) -> None:
    if together is not None:
        check_whole("together", together)


def _is_whole(value: Any) -> bool:
    return type(value) is int

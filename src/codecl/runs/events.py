"""The events of a run, as the engine emits them and ``log.jsonl`` keeps them, one a line."""

from __future__ import annotations

import json
import math
import zlib
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from codecl.runs.typed import Amount, Checked, Percent, Whole, between, field_hints, keys
from codecl.runs.untrusted import decode, parse_json

CHECKSUM = ', "crc": "'


@dataclass(frozen=True)
class Event(Checked):
    """A line of ``log.jsonl``. One that cannot be is a ``ValueError`` when it is made."""

    kind: ClassVar[str]

    def to_fields(self) -> dict[str, Any]:
        """The event as the log has it; what is None is left out."""
        values = {self.key(name): getattr(self, name) for name in field_hints(type(self))}
        return {"event": self.kind} | {key: value for key, value in values.items() if value is not None}

    def to_line(self) -> str:
        """A line of the log, with a checksum of the rest of it."""
        text = json.dumps(self.to_fields())
        return f'{text[:-1]}{CHECKSUM}{_checksum(text)}"}}\n'

    @classmethod
    def key(cls, name: str) -> str:
        return "of" if name == "max_epochs" else name


@dataclass(frozen=True)
class EpochEvent(Event):
    """An epoch has ended. ``together`` is how many tasks are learned at once, if they are."""

    kind = "epoch"
    task: Whole
    epoch: Whole
    max_epochs: Whole
    loss: float
    validation_loss: float
    validation_accuracy: Amount
    lr: Amount
    seconds: Amount
    together: Whole | None = None


Size = Annotated[int, between(1)]


def _three(name: str, values: Any) -> None:
    if len(values) != 3:
        raise ValueError(f"{name} must be 3 sizes; got {values!r:.80}.")


Layer = Annotated[
    dict[str, Any],
    keys(shape=Annotated[list[Size], _three], bytes=Amount, trusted=list[int] | None, spectrum=list[float] | None),
    keys(**dict.fromkeys(("capacity", "rank", "overlap", "shared", "freed"), float | None)),
]
"""What a method describes of a layer; it may add its own."""


@dataclass(frozen=True)
class TaskEvent(Event):
    """A task was learned: its row of the accuracy matrix, what is stored, and what every layer remembers, by name."""

    kind = "task"
    task: Whole
    name: str
    accuracy: list[Percent | None]
    bytes: Annotated[dict[str, Whole], keys(memory=Whole)]
    layers: dict[str, Layer]
    together: Whole | None = None
    moved: list[Amount | None] | None = None
    """How far the outputs of each earlier task moved on its validation inputs, relative to them."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.task >= len(self.accuracy) or self.accuracy[self.task] is None:
            raise ValueError(f"accuracy must have a number for the task itself; got {self.accuracy!r:.80}.")

    @property
    def measured(self) -> list[float]:
        """The accuracies of the tasks that were learned so far."""
        return [value for value in self.accuracy if value is not None]

    @property
    def mean(self) -> float:
        """Their mean, in percent."""
        return sum(self.measured) / len(self.measured)


@dataclass(frozen=True)
class ResumeEvent(Event):
    """A run goes on within ``task`` after ``epoch``; ``epochs`` are those of the tasks before it."""

    kind = "resume"
    task: Whole
    epoch: Whole
    epochs: list[Whole]
    together: Whole | None = None


@dataclass(frozen=True)
class NoticeEvent(Event):
    """Something that a person should know."""

    kind = "notice"
    text: str


class EpochCount:
    """How many epochs every task took so far, by its number; an epoch that is run again counts once."""

    def __init__(self) -> None:
        self.by_task: dict[int, int] = {}

    def see(self, event: Event) -> None:
        if isinstance(event, EpochEvent):
            self.by_task[event.task] = event.epoch
        elif isinstance(event, ResumeEvent):
            self.by_task = {**dict(enumerate(event.epochs)), event.task: event.epoch}

    @property
    def total(self) -> int:
        return sum(self.by_task.values())


EVENTS: dict[str, type[Event]] = {event.kind: event for event in (EpochEvent, TaskEvent, ResumeEvent, NoticeEvent)}


def make_event(fields: object) -> Event:
    """The event with these fields, as the engine emits them and the log has them."""
    if not isinstance(fields, dict) or not isinstance(kind := fields.get("event"), str):
        raise ValueError(f"it must be an event; got {fields!r:.80}.")
    if kind not in EVENTS:
        raise ValueError(f"event must be one of {', '.join(EVENTS)}; got {kind!r:.80}.")
    event = EVENTS[kind]
    return event(**{name: fields.get(event.key(name)) for name in field_hints(event)})


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

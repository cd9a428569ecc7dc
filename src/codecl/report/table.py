"""A table as a value: sections of rows, cells that know their number, spread, runs and rank.

What is best is decided here, once, for every way to print it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from codecl.training import metrics

BEST, SECOND = 1, 2
DEVIATION = "± is the standard deviation over seeds (ddof = 1)."


def two_digits(value: float) -> str:
    return f"{value:z.2f}"


@dataclass(frozen=True)
class Cell:
    """A text, or a number with its standard deviation over ``runs`` runs; ``rank`` is 1, 2, or 0 for all others."""

    value: str | float | None = None
    spread: float | None = None
    runs: int = 0
    rank: int = 0
    outside: bool = False
    """Takes no rank: a baseline's distance from itself."""

    @classmethod
    def mean(cls, values: Sequence[float]) -> Cell:
        """Mean and deviation (ddof = 1) of as many runs as there are values; nothing of none."""
        if not values:
            return cls()
        of = metrics.mean_std(values)
        return cls(of.mean, of.std, of.n)


@dataclass(frozen=True)
class Column:
    """``show`` prints a number; ``best`` says which one is to be marked, if any."""

    name: str
    show: Callable[[float], str] = two_digits
    best: Literal["highest", "lowest"] | None = None

    def text(self, cell: Cell, between: str = " ± ") -> str:
        if cell.value is None:
            return "–"
        if isinstance(cell.value, str):
            return cell.value
        return self.show(cell.value) + (between + self.show(cell.spread) if cell.spread is not None else "")


@dataclass(frozen=True)
class Row:
    """``runs`` are the directories that the numbers come from; one ``hors_concours`` takes no rank."""

    cells: tuple[Cell, ...]
    runs: tuple[str, ...] = ()
    hors_concours: bool = False


@dataclass(frozen=True)
class Section:
    """Rows that may be compared, and under which ``words`` they were measured."""

    title: str
    rows: tuple[Row, ...]
    words: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Table:
    """``name`` is that of its files."""

    name: str
    title: str
    columns: tuple[Column, ...]
    sections: tuple[Section, ...]
    notes: tuple[str, ...] = ()

    @property
    def numeric(self) -> list[bool]:
        """Which columns hold numbers."""
        return [
            any(isinstance(row.cells[i].value, int | float) for section in self.sections for row in section.rows)
            for i in range(len(self.columns))
        ]


def make_table(
    name: str, title: str, columns: Sequence[Column], sections: Sequence[Section], notes: Sequence[str] = ()
) -> Table:
    """The table with its ranks, without columns that nobody has anything in."""
    rows = [row for section in sections for row in section.rows]
    kept = [i for i in range(len(columns)) if any(row.cells[i].value is not None for row in rows)]
    ranked = [replace(s, rows=_pick(_ranked(s.rows, columns), kept)) for s in sections]
    return Table(name, title, tuple(columns[i] for i in kept), tuple(ranked), tuple(notes))


def _pick(rows: Sequence[Row], kept: Sequence[int]) -> tuple[Row, ...]:
    return tuple(replace(row, cells=tuple(row.cells[i] for i in kept)) for row in rows)


def _ranked(rows: Sequence[Row], columns: Sequence[Column]) -> list[Row]:
    cells = [list(row.cells) for row in rows]
    for i, column in enumerate(columns):
        if column.best:
            ranks = _ranks(column, [_competing(row, row.cells[i]) for row in rows])
            for line, rank in zip(cells, ranks, strict=True):
                line[i] = replace(line[i], rank=rank)
    return [replace(row, cells=tuple(line)) for row, line in zip(rows, cells, strict=True)]


def _competing(row: Row, cell: Cell) -> str | float | None:
    return None if row.hors_concours or cell.outside else cell.value


def _ranks(column: Column, values: Sequence[str | float | None]) -> list[int]:
    """The best, the second best, 0 for the rest. What prints the same is the same; if all do, none is the best."""
    numbers = sorted({v for v in values if isinstance(v, int | float)}, reverse=column.best == "highest")
    printed = list(dict.fromkeys(column.show(number) for number in numbers))
    places = dict(zip(printed, (BEST, SECOND), strict=False)) if len(printed) > 1 else {}
    return [places.get(column.show(v), 0) if isinstance(v, int | float) else 0 for v in values]

"""A table as a value: sections of rows, cells that know their number, spread, runs and rank.

What is best is decided here, once, for every format.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from codecl.training import metrics

BEST, SECOND = 1, 2
DEVIATION = "± is the standard deviation over seeds (ddof = 1)."


@dataclass(frozen=True)
class Cell:
    """A text, or a number with its standard deviation over ``runs`` runs.

    ``rank`` is 1, 2, or 0 for all others. An ``unranked`` cell takes none, such as a baseline's distance from itself.
    """

    value: str | float | None = None
    spread: float | None = None
    runs: int = 0
    rank: int = 0
    unranked: bool = False

    @classmethod
    def mean(cls, values: Sequence[float]) -> Cell:
        """Mean and deviation (ddof = 1) of as many runs as there are values; an empty cell for none."""
        if not values:
            return cls()
        over_runs = metrics.mean_std(values)
        return cls(over_runs.mean, over_runs.std, over_runs.n)


@dataclass(frozen=True)
class Column:
    """``show`` prints a number; ``best`` says which one is to be marked, if any."""

    name: str
    show: Callable[[float], str] = "{:z.2f}".format
    best: Literal["highest", "lowest"] | None = None

    def text(self, cell: Cell) -> str:
        if cell.value is None:
            return "–"
        if isinstance(cell.value, str):
            return cell.value
        return self.show(cell.value) + (f" ± {self.show(cell.spread)}" if cell.spread is not None else "")


@dataclass(frozen=True)
class Row:
    """``runs`` are the directories that the numbers come from."""

    cells: tuple[Cell, ...]
    runs: tuple[str, ...] = ()

    def renamed(self, names: Mapping[str, str]) -> Row:
        """The row with other names for its runs."""
        return replace(self, runs=tuple(names[name] for name in self.runs))


@dataclass(frozen=True)
class Section:
    """Rows that may be compared, and the ``condition`` they were measured under, field by field."""

    title: str
    rows: tuple[Row, ...]
    condition: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Table:
    """``name`` is that of its files."""

    name: str
    title: str
    columns: tuple[Column, ...]
    sections: tuple[Section, ...]
    notes: tuple[str, ...] = ()

    @property
    def rows(self) -> list[Row]:
        return [row for section in self.sections for row in section.rows]

    @property
    def numeric(self) -> list[bool]:
        """Which columns hold numbers."""
        columns = zip(*(row.cells for row in self.rows), strict=True)
        return [any(isinstance(cell.value, int | float) for cell in column) for column in columns]

    def with_rows(self, change: Callable[[Row], Row]) -> Table:
        return replace(self, sections=tuple(replace(s, rows=tuple(map(change, s.rows))) for s in self.sections))

    def with_columns(self, keep: Callable[[int], bool]) -> Table:
        """The table with the columns whose numbers are to be kept."""
        kept = [i for i in range(len(self.columns)) if keep(i)]
        table = self.with_rows(lambda row: replace(row, cells=tuple(row.cells[i] for i in kept)))
        return replace(table, columns=tuple(self.columns[i] for i in kept))


def make_table(
    name: str, title: str, columns: Sequence[Column], sections: Sequence[Section], notes: Sequence[str] = ()
) -> Table:
    """The table with its ranks, without empty columns."""
    ranked = tuple(replace(section, rows=_ranked(section.rows, columns)) for section in sections)
    table = Table(name, title, tuple(columns), ranked, tuple(notes))
    return table.with_columns(lambda i: any(row.cells[i].value is not None for row in table.rows))


def _ranked(rows: Sequence[Row], columns: Sequence[Column]) -> tuple[Row, ...]:
    ranked = [_rank(column, [row.cells[i] for row in rows]) for i, column in enumerate(columns)]
    return tuple(replace(row, cells=cells) for row, cells in zip(rows, zip(*ranked, strict=True), strict=True))


def _rank(column: Column, cells: Sequence[Cell]) -> list[Cell]:
    """Mark the best and the second best. What prints the same is the same; if all do, none is the best."""
    numbers = [c.value for c in cells if column.best and isinstance(c.value, int | float) and not c.unranked]
    printed = list(dict.fromkeys(map(column.show, sorted(numbers, reverse=column.best == "highest"))))
    ranks = dict(zip(printed, (BEST, SECOND), strict=False)) if len(printed) > 1 else {}
    return [
        replace(c, rank=ranks.get(column.show(c.value), 0))
        if ranks and isinstance(c.value, int | float) and not c.unranked
        else c
        for c in cells
    ]

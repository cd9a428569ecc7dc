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
    ``interval`` is where the mean lies with 95 %.
    """

    value: str | float | None = None
    spread: float | None = None
    runs: int = 0
    rank: int = 0
    unranked: bool = False
    interval: tuple[float, float] | None = None

    @classmethod
    def mean(cls, values: Sequence[float]) -> Cell:
        """Mean and deviation (ddof = 1) of as many runs as there are values; an empty cell for none."""
        if not values:
            return cls()
        over_runs = metrics.mean_std(values)
        return cls(over_runs.mean, over_runs.std, over_runs.n)

    @property
    def number(self) -> float | None:
        return self.value if isinstance(self.value, int | float) else None


@dataclass(frozen=True)
class Column:
    """``show`` prints a number; ``best`` says which one is to be marked, if any."""

    name: str
    show: Callable[[float], str] = "{:z.2f}".format
    best: Literal["highest", "lowest"] | None = None

    def text(self, cell: Cell) -> str:
        if cell.number is None:
            return cell.value if isinstance(cell.value, str) else "–"
        interval = f" [{', '.join(map(self.show, cell.interval))}]" if cell.interval is not None else ""
        return self.show(cell.number) + (f" ± {self.show(cell.spread)}" if cell.spread is not None else "") + interval

    def ranked(self, cells: Sequence[Cell]) -> list[Cell]:
        """Mark the best and the second best. What prints the same is the same; if all do, none is the best.

        Where one of them has a single run, none is marked: which is best may be noise.
        """
        numbers = [None if cell.unranked or not self.best else cell.number for cell in cells]
        if any(cell.runs == 1 for cell, number in zip(cells, numbers, strict=True) if number is not None):
            return list(cells)
        printed = {self.show(number): number for number in numbers if number is not None}
        in_order = sorted(printed, key=printed.__getitem__, reverse=self.best == "highest")
        ranks = dict(zip(in_order, (BEST, SECOND), strict=False)) if len(printed) > 1 else {}
        return [
            cell if number is None else replace(cell, rank=ranks.get(self.show(number), 0))
            for cell, number in zip(cells, numbers, strict=True)
        ]


@dataclass(frozen=True)
class Row:
    """``runs`` are the directories that the numbers come from."""

    cells: tuple[Cell, ...]
    runs: tuple[str, ...] = ()


@dataclass(frozen=True)
class Section:
    """Rows that may be compared, and the ``condition`` they were measured under, field by field."""

    title: str
    rows: tuple[Row, ...]
    condition: Mapping[str, str] = field(default_factory=dict)

    def with_columns(self, columns: Sequence[Sequence[Cell]]) -> Section:
        """The section with other cells, given column by column."""
        rows = zip(self.rows, zip(*columns, strict=True), strict=True)
        return replace(self, rows=tuple(replace(row, cells=cells) for row, cells in rows))


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
        return [any(cell.number is not None for cell in column) for column in columns]

    def only(self, *sections: Section) -> Table:
        """The table with these sections, without empty columns."""
        return replace(self, sections=sections).without_empty_columns()

    def without_empty_columns(self) -> Table:
        filled = (any(row.cells[i].value is not None for row in self.rows) for i in range(len(self.columns)))
        kept = [i for i, is_filled in enumerate(filled) if is_filled]
        sections = [s.with_columns([[row.cells[i] for row in s.rows] for i in kept]) for s in self.sections]
        return replace(self, columns=tuple(self.columns[i] for i in kept), sections=tuple(sections))


def make_table(
    name: str, title: str, columns: Sequence[Column], sections: Sequence[Section], notes: Sequence[str] = ()
) -> Table:
    """The table with its ranks, without empty columns."""
    ranked = [
        section.with_columns([c.ranked([row.cells[i] for row in section.rows]) for i, c in enumerate(columns)])
        for section in sections
    ]
    return Table(name, title, tuple(columns), tuple(ranked), tuple(notes)).without_empty_columns()

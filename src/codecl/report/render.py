"""One table as text for a terminal, Markdown, LaTeX (booktabs) and CSV."""

from __future__ import annotations

import csv
import io
import itertools
import re
from collections.abc import Callable, Sequence

from codecl.report.table import BEST, SECOND, Cell, Column, Row, Table

MARKS = {BEST: "*", SECOND: "+"}
DIGITS = "0123456789"
LEGEND = "* best, + second best"
LATEX = str.maketrans(
    {
        "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
        "–": "--", "−": "$-$", "±": r"$\pm$", "²": "$^2$", "×": r"$\times$", "·": r"$\cdot$", "…": r"\dots{}",
        "α": r"$\alpha$", "ε": r"$\varepsilon$", "<": "$<$", ">": "$>$", "|": "$|$",
        **{character: f"\\{character}" for character in "&%$#_"},
    }
)  # fmt: skip
MARKDOWN = str.maketrans({"\\": "\\\\", "|": "\\|", "<": "&lt;", "*": "\\*", "`": "\\`"})


def text(table: Table) -> str:
    """Aligned columns, numbers to the right, the runs at the end of each row."""
    marked = any(cell.rank for section in table.sections for row in section.rows for cell in row.cells)

    def cells(row: Row) -> list[str]:
        return [
            _line(column.text(cell)) + (f" {MARKS.get(cell.rank, ' ')}" if column.best and marked else "")
            for column, cell in zip(table.columns, row.cells, strict=True)
        ]

    head = [column.name + "  " * bool(column.best and marked) for column in table.columns]
    bodies = [[cells(row) for row in section.rows] for section in table.sections]
    widths = [
        max(len(line[i]) for line in [head, *(line for body in bodies for line in body)]) for i in range(len(head))
    ]
    sides = [str.rjust if number else str.ljust for number in table.numeric]

    def aligned(line: Sequence[str], runs: str) -> str:
        placed = [side(cell, width) for side, cell, width in zip(sides, line, widths, strict=True)]
        return "  ".join([*placed, runs]).rstrip()

    lines = [table.title]
    for section, body in zip(table.sections, bodies, strict=True):
        lines += ["", section.title, aligned(head, "runs"), "  ".join("-" * width for width in [*widths, 4])]
        lines += [aligned(line, braces(row.runs)) for line, row in zip(body, section.rows, strict=True)]
    notes = [LEGEND, *table.notes] if marked else table.notes
    return "\n".join([*lines, *([""] if notes else []), *notes]) + "\n"


def markdown(table: Table) -> str:
    """A table for each section, the runs in its last column."""
    lines = [f"# {_markdown(table.title)}"]
    for section in table.sections:
        rows = [
            [*_marked(table, row, _markdown, "**{}**", "<u>{}</u>"), _code(braces(row.runs))] for row in section.rows
        ]
        head = [*(_markdown(column.name) for column in table.columns), "runs"]
        lines += ["", f"## {_markdown(section.title)}", "", *markdown_lines(head, rows)]
    return "\n".join([*lines, *(f"\n{_markdown(note)}" for note in table.notes)]) + "\n"


def markdown_lines(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}", *(f"| {' | '.join(row)} |" for row in rows)]


def latex(table: Table) -> str:
    """A ``tabular`` for ``\\input``; every row ends with its runs in a comment."""
    width = len(table.columns)
    lines = [
        f"% {_line(table.title)}",
        "% \\usepackage{booktabs}",
        f"\\begin{{tabular}}{{{''.join('r' if number else 'l' for number in table.numeric)}}}",
        "\\toprule",
        " & ".join(_latex(column.name) for column in table.columns) + r" \\",
    ]
    for section in table.sections:
        lines += ["\\midrule", f"\\multicolumn{{{width}}}{{l}}{{\\emph{{{_latex(section.title)}}}}} \\\\"]
        for row in section.rows:
            cells = _marked(table, row, _latex, r"\textbf{{{}}}", r"\underline{{{}}}")
            lines.append(f"{' & '.join(cells)} \\\\ % {_line(braces(row.runs))}")
    lines += ["\\bottomrule", "\\end{tabular}", *(f"% {_line(note)}" for note in table.notes)]
    return "\n".join(lines) + "\n"


def csv_text(table: Table) -> str:
    """One line a row: its condition, then value, deviation, number of runs and rank apart, then its runs."""
    words = list(dict.fromkeys(name for section in table.sections for name in section.words))
    rows = [row for section in table.sections for row in section.rows]
    parts = [_parts(column, [row.cells[i] for row in rows]) for i, column in enumerate(table.columns)]
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(
        [*words, *(f"{c.name} {part}".strip() for c, p in zip(table.columns, parts, strict=True) for part in p), "runs"]
    )
    for section in table.sections:
        for row in section.rows:
            known = [
                {"": cell.value, "std": cell.spread, "runs": cell.runs or None, "rank": cell.rank or None}
                for cell in row.cells
            ]
            values = [_raw(of[part]) for of, p in zip(known, parts, strict=True) for part in p]
            writer.writerow([*(section.words.get(name, "") for name in words), *values, " ".join(row.runs)])
    return out.getvalue()


def _parts(column: Column, cells: Sequence[Cell]) -> list[str]:
    """What of a column's cells has a column of its own."""
    measured = any(cell.runs for cell in cells)
    there = {
        "": True,
        "std": measured or any(cell.spread is not None for cell in cells),
        "runs": measured,
        "rank": column.best is not None,
    }
    return [name for name, has in there.items() if has]


FORMATS: dict[str, Callable[[Table], str]] = {"txt": text, "md": markdown, "tex": latex, "csv": csv_text}


def braces(names: Sequence[str]) -> str:
    """Several names in short, as a shell would take them: ``runs/gpm-seed{0,1,2}``."""
    if len(names) < 2:
        return "".join(names)
    start = _shared(names).rstrip(DIGITS)
    rest = [name[len(start) :] for name in names]
    end = _shared([name[::-1] for name in rest])[::-1].lstrip(DIGITS)
    return f"{start}{{{','.join(name.removesuffix(end) for name in rest)}}}{end}"


def _shared(names: Sequence[str]) -> str:
    """The longest beginning of all ``names``."""
    return "".join(
        letters[0] for letters in itertools.takewhile(lambda some: len(set(some)) == 1, zip(*names, strict=False))
    )


def _marked(table: Table, row: Row, escape: Callable[[str], str], best: str, second: str) -> list[str]:
    def one(column: Column, cell: Cell) -> str:
        printed = escape(column.text(cell))
        return {BEST: best, SECOND: second}.get(cell.rank, "{}").format(printed)

    return [one(column, cell) for column, cell in zip(table.columns, row.cells, strict=True)]


def _line(text: str) -> str:
    """Without what would end a line, or a comment."""
    return re.sub(r"[\x00-\x1f\x7f\x85\u2028\u2029]", "?", text)


def _markdown(text: str) -> str:
    return _line(text).translate(MARKDOWN)


def _code(text: str) -> str:
    fence = "`" * (max((len(ticks) for ticks in re.findall("`+", text)), default=0) + 1)
    return f"{fence}{_line(text)}{fence}".replace("|", "\\|")


def _latex(text: str) -> str:
    minus = re.sub(r"(?<![\w.-])-(?=\d)", "−", _line(text))
    return minus.translate(LATEX)


def _raw(value: str | float | None) -> str:
    return "" if value is None else value if isinstance(value, str) else repr(value)

"""One table as text for a terminal, Markdown, LaTeX (booktabs) and CSV."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Sequence

from codecl.report.names import braces
from codecl.report.table import Cell, Column, Row, Table
from codecl.text import markdown_text, one_line, pad, printable

PLAIN = ("{}", "{}", "{}")
TEXT = ("{}  ", "{} *", "{} +")
MARKDOWN = ("{}", "**{}**", "<u>{}</u>")
LATEX = ("{}", r"\textbf{{{}}}", r"\underline{{{}}}")
"""How cells are shown by their rank: none, best, second best."""
LEGEND = "* best, + second best"
LATEX_ESCAPES = str.maketrans(
    {
        "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
        "–": "--", "−": "$-$", "±": r"$\pm$", "²": "$^2$", "×": r"$\times$", "·": r"$\cdot$", "…": r"\dots{}",
        "α": r"$\alpha$", "ε": r"$\varepsilon$", "<": "$<$", ">": "$>$", "|": "$|$",
        **{character: f"\\{character}" for character in "&%$#_"},
    }
)  # fmt: skip
FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""What a spreadsheet takes for the beginning of a formula."""


def text(table: Table) -> str:
    """Aligned columns, numbers to the right, the runs at the end of each row."""
    has_ranks = any(cell.rank for row in table.rows for cell in row.cells)
    forms = TEXT if has_ranks else PLAIN
    head = [one_line(column.name) + ("  " if column.best and has_ranks else "") for column in table.columns]
    head, *body = pad([head, *(_ranked(table, row, one_line, forms) for row in table.rows)], table.numeric)
    rule = ["-" * len(cell) for cell in head]
    lines, rows = [table.title], iter(body)
    for section in table.sections:
        lines += ["", section.title, "  ".join([*head, "runs"]), "  ".join([*rule, "----"])]
        lines += ["  ".join([*next(rows), braces(row.runs)]).rstrip() for row in section.rows]
    notes = [LEGEND, *table.notes] if has_ranks else table.notes
    return printable("\n".join([*lines, *([""] if notes else []), *notes])) + "\n"


def markdown(table: Table) -> str:
    """A table for each section, the runs in its last column."""
    lines = [f"# {markdown_text(table.title)}"]
    head = [*(markdown_text(column.name) for column in table.columns), "runs"]
    for section in table.sections:
        rows = [[*_ranked(table, row, markdown_text, MARKDOWN), _code(row.runs)] for row in section.rows]
        lines += ["", f"## {markdown_text(section.title)}", "", *markdown_lines(head, rows)]
    return "\n".join([*lines, *(f"\n{markdown_text(note)}" for note in table.notes)]) + "\n"


def markdown_lines(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}", *(f"| {' | '.join(row)} |" for row in rows)]


def latex(table: Table) -> str:
    """A ``tabular`` for ``\\input``; every row ends with its runs in a comment."""
    lines = [
        f"% {one_line(table.title)}",
        "% \\usepackage{booktabs}",
        f"\\begin{{tabular}}{{{''.join('r' if is_number else 'l' for is_number in table.numeric)}}}",
        "\\toprule",
        " & ".join(_latex(column.name) for column in table.columns) + r" \\",
    ]
    for section in table.sections:
        heading = f"\\multicolumn{{{len(table.columns)}}}{{l}}{{\\emph{{{_latex(section.title)}}}}} \\\\"
        lines += ["\\midrule", heading]
        for row in section.rows:
            cells = " & ".join(_ranked(table, row, _latex, LATEX))
            lines.append(f"{cells} \\\\ % {one_line(braces(row.runs))}")
    return (
        "\n".join([*lines, "\\bottomrule", "\\end{tabular}", *(f"% {one_line(note)}" for note in table.notes)]) + "\n"
    )


def csv_text(table: Table) -> str:
    """One line a row: its condition, then every number with its deviation, number of runs and rank, then its runs."""
    conditions = list(dict.fromkeys(name for section in table.sections for name in section.condition))
    fields = [
        (i, field)
        for i, c in enumerate(table.columns)
        for field in _csv_fields(c, [row.cells[i] for row in table.rows])
    ]
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(
        [*conditions, *(_csv_text(f"{table.columns[i].name} {field}".strip()) for i, field in fields), "runs"]
    )
    for section in table.sections:
        condition = [_csv_text(section.condition.get(name, "")) for name in conditions]
        for row in section.rows:
            cells = [_csv_cell(row.cells[i], field) for i, field in fields]
            writer.writerow([*condition, *cells, _csv_text(" ".join(row.runs))])
    return out.getvalue()


def _csv_fields(column: Column, cells: Sequence[Cell]) -> list[str]:
    """The columns for one column's cells: the value, and its spread, runs, interval and rank where they apply."""
    measured = any(cell.runs for cell in cells)
    has_spread = measured or any(cell.spread is not None for cell in cells)
    has_interval = any(cell.interval is not None for cell in cells)
    kept = {"": True, "std": has_spread, "runs": measured, "low": has_interval, "high": has_interval}
    return [field for field, keep in (kept | {"rank": column.best is not None}).items() if keep]


def _csv_cell(cell: Cell, field: str) -> str:
    low, high = cell.interval or (None, None)
    values = {"": cell.value, "std": cell.spread, "runs": cell.runs or None, "rank": cell.rank or None}
    value = (values | {"low": low, "high": high})[field]
    return "" if value is None else _csv_text(value) if isinstance(value, str) else repr(value)


def _csv_text(text: str) -> str:
    """``text`` that no spreadsheet takes for a formula."""
    return f"'{text}" if text.startswith(FORMULA) else text


FORMATS: dict[str, Callable[[Table], str]] = {"txt": text, "md": markdown, "tex": latex, "csv": csv_text}


def _ranked(table: Table, row: Row, escape: Callable[[str], str], forms: Sequence[str]) -> list[str]:
    """The cells of a row, in the form that belongs to their rank."""
    cells = [(column, cell, escape(column.text(cell))) for column, cell in zip(table.columns, row.cells, strict=True)]
    return [forms[cell.rank].format(text) if column.best else text for column, cell, text in cells]


def _code(runs: Sequence[str]) -> str:
    """The runs as code, between more backticks than there are in their names."""
    text = one_line(braces(runs))
    fence = "`" * (max(map(len, re.findall("`+", text)), default=0) + 1)
    return f"{fence}{text}{fence}".replace("|", "\\|")


def _latex(text: str) -> str:
    minus = re.sub(r"(?<![\w.-])-(?=\d)", "−", one_line(text))
    return minus.translate(LATEX_ESCAPES)

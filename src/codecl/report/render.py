"""One table as text for a terminal, Markdown, LaTeX (booktabs) and CSV."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterator, Sequence

from codecl.report.names import braces
from codecl.report.table import BEST, SECOND, Cell, Column, Row, Table
from codecl.text import pad

MARKS = {BEST: " *", SECOND: " +"}
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
    has_ranks = any(cell.rank for row in table.rows for cell in row.cells)

    def marked(words: str, column: Column, rank: int = 0) -> str:
        return _line(words) + (MARKS.get(rank, "  ") if column.best and has_ranks else "")

    head = [marked(column.name, column) for column in table.columns]
    body = [[marked(c.text(cell), c, cell.rank) for c, cell in _cells(table, row)] for row in table.rows]
    head, *body = pad([head, *body], table.numeric)
    rule = ["-" * len(cell) for cell in head]
    lines, rows = [table.title], iter(body)
    for section in table.sections:
        lines += ["", section.title, "  ".join([*head, "runs"]), "  ".join([*rule, "----"])]
        lines += ["  ".join([*next(rows), braces(row.runs)]).rstrip() for row in section.rows]
    notes = [LEGEND, *table.notes] if has_ranks else table.notes
    return "\n".join([*lines, *([""] if notes else []), *notes]) + "\n"


def markdown(table: Table) -> str:
    """A table for each section, the runs in its last column."""
    lines = [f"# {_markdown(table.title)}"]
    head = [*(_markdown(column.name) for column in table.columns), "runs"]
    for section in table.sections:
        rows = [[*_ranked(table, row, _markdown, "**{}**", "<u>{}</u>"), _code(row.runs)] for row in section.rows]
        lines += ["", f"## {_markdown(section.title)}", "", *markdown_lines(head, rows)]
    return "\n".join([*lines, *(f"\n{_markdown(note)}" for note in table.notes)]) + "\n"


def markdown_lines(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}", *(f"| {' | '.join(row)} |" for row in rows)]


def latex(table: Table) -> str:
    """A ``tabular`` for ``\\input``; every row ends with its runs in a comment."""
    lines = [
        f"% {_line(table.title)}",
        "% \\usepackage{booktabs}",
        f"\\begin{{tabular}}{{{''.join('r' if is_number else 'l' for is_number in table.numeric)}}}",
        "\\toprule",
        " & ".join(_latex(column.name) for column in table.columns) + r" \\",
    ]
    for section in table.sections:
        heading = f"\\multicolumn{{{len(table.columns)}}}{{l}}{{\\emph{{{_latex(section.title)}}}}} \\\\"
        lines += ["\\midrule", heading]
        for row in section.rows:
            cells = _ranked(table, row, _latex, r"\textbf{{{}}}", r"\underline{{{}}}")
            lines.append(f"{' & '.join(cells)} \\\\ % {_line(braces(row.runs))}")
    return "\n".join([*lines, "\\bottomrule", "\\end{tabular}", *(f"% {_line(note)}" for note in table.notes)]) + "\n"


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
    writer.writerow([*conditions, *(f"{table.columns[i].name} {field}".strip() for i, field in fields), "runs"])
    for section in table.sections:
        condition = [section.condition.get(name, "") for name in conditions]
        for row in section.rows:
            cells = [_csv_cell(row.cells[i], field) for i, field in fields]
            writer.writerow([*condition, *cells, " ".join(row.runs)])
    return out.getvalue()


def _csv_fields(column: Column, cells: Sequence[Cell]) -> list[str]:
    """The columns for one column's cells: the value, and ``std``, ``runs`` and ``rank`` where they apply."""
    measured = any(cell.runs for cell in cells)
    has_spread = measured or any(cell.spread is not None for cell in cells)
    return ["", *["std"] * has_spread, *["runs"] * measured, *["rank"] * (column.best is not None)]


def _csv_cell(cell: Cell, field: str) -> str:
    value = {"": cell.value, "std": cell.spread, "runs": cell.runs or None, "rank": cell.rank or None}[field]
    return "" if value is None else value if isinstance(value, str) else repr(value)


FORMATS: dict[str, Callable[[Table], str]] = {"txt": text, "md": markdown, "tex": latex, "csv": csv_text}


def _cells(table: Table, row: Row) -> Iterator[tuple[Column, Cell]]:
    return zip(table.columns, row.cells, strict=True)


def _ranked(table: Table, row: Row, escape: Callable[[str], str], best: str, second: str) -> list[str]:
    """The cells of a row, in the format ``best`` or ``second`` where they are."""
    formats = {BEST: best, SECOND: second}
    return [formats.get(cell.rank, "{}").format(escape(column.text(cell))) for column, cell in _cells(table, row)]


def _line(text: str) -> str:
    """Without what would end a line, or a comment."""
    return re.sub(r"[\x00-\x1f\x7f\x85\u2028\u2029]", "?", text)


def _markdown(text: str) -> str:
    return _line(text).translate(MARKDOWN)


def _code(runs: Sequence[str]) -> str:
    """The runs as code, between more backticks than there are in their names."""
    text = _line(braces(runs))
    fence = "`" * (max(map(len, re.findall("`+", text)), default=0) + 1)
    return f"{fence}{text}{fence}".replace("|", "\\|")


def _latex(text: str) -> str:
    minus = re.sub(r"(?<![\w.-])-(?=\d)", "−", _line(text))
    return minus.translate(LATEX)

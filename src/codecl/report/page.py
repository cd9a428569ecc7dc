"""The page of a report: everything in one file that needs nothing else, every text escaped."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from html import escape
from importlib import resources
from typing import Any

from codecl.report.drawing import INK, PAPER, Drawn
from codecl.report.records import Run
from codecl.report.table import BEST, SECOND, Cell, Column, Table
from codecl.runs.plugins import title
from codecl.text import duration, size

RANKS = {BEST: "best", SECOND: "second"}


@dataclass(frozen=True)
class Contents:
    """All that a page shows. ``short`` has a short name for each run, ``of_run`` its figures, ``left_out`` the rest."""

    runs: Sequence[Run]
    short: Mapping[str, str]
    tables: Sequence[Table]
    figures: Sequence[Drawn]
    of_run: Mapping[str, Sequence[Drawn]]
    left_out: Sequence[tuple[str, str]]
    remarks: Sequence[str]
    files: Sequence[str]
    warnings: Sequence[str] = ()

    @cached_property
    def anchors(self) -> dict[str, str]:
        return {run.name: f"run-{i + 1}" for i, run in enumerate(self.runs)}


def page(contents: Contents) -> str:
    """The page as HTML."""
    heading = _heading(contents.runs)
    parts = [
        *(_table(table, contents) for table in contents.tables),
        _figures("figures", "Figures", contents.figures),
        _runs(contents),
        _left_out(contents.left_out),
    ]
    links = {f"table-{table.name}": table.title for table in contents.tables}
    links |= {"figures": "Figures"} if contents.figures else {}
    links |= {"runs": "Runs"} | ({"left-out": "Left out"} if contents.left_out else {})
    items = "".join(f'<li><a href="#{escape(to)}">{escape(text)}</a></li>' for to, text in links.items())
    files = "".join(f'<li data-file="{escape(file)}"><code>{escape(file)}</code></li>' for file in contents.files)
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(heading)}</title>
<link rel="icon" href="data:,">
<style>
{_resource("page.css")}</style>
</head>
<body>
<header>
<h1>{escape(heading)}</h1>
{"".join(f'<p role="alert"><strong>{escape(warning)}</strong></p>' for warning in contents.warnings)}
{"".join(f'<p class="soft">{escape(remark)}</p>' for remark in contents.remarks)}
<nav aria-label="Contents"><ul>{items}</ul></nav>
</header>
<main>
{"".join(parts)}</main>
<footer>
<h2>Files beside this page</h2>
<ul>{files}</ul>
</footer>
<script>
{_resource("page.js")}</script>
</body>
</html>
"""


def files_of(text: str) -> list[str]:
    """The files that a page says are its own."""
    return re.findall(r'<li data-file="((?:tables|figures)/[\w.=+-]+\.(?:txt|md|tex|csv|svg|png))">', text, re.ASCII)


def _heading(runs: Sequence[Run]) -> str:
    benchmarks = list(dict.fromkeys(run.result["benchmark"] for run in runs))
    named = ", ".join(benchmarks) if len(benchmarks) <= 3 else f"{len(benchmarks)} benchmarks"
    return f"{len(runs)} run{'s' * (len(runs) != 1)} on {named}"


def _table(table: Table, contents: Contents) -> str:
    names = [*(column.name for column in table.columns), "runs"]
    heads = "".join(
        f'<th scope="col" aria-sort="none"{_class(kind)}><button type="button">{escape(name)}</button></th>'
        for name, kind in zip(names, [*("number" if n else "" for n in table.numeric), ""], strict=True)
    )
    bodies = []
    for section in table.sections:
        spread = f'<th scope="rowgroup" colspan="{len(names)}">{escape(section.title)}</th>'
        rows = [f'<tr class="section">{spread}</tr>']
        for row in section.rows:
            cells = [
                _cell(column, cell, number, first=i == 0)
                for i, (column, cell, number) in enumerate(zip(table.columns, row.cells, table.numeric, strict=True))
            ]
            rows.append(f"<tr>{''.join(cells)}<td>{_links(row.runs, contents)}</td></tr>")
        bodies.append(f"<tbody>{''.join(rows)}</tbody>")
    notes = "".join(f'<p class="note">{escape(note)}</p>' for note in table.notes)
    return f"""<section id="table-{escape(table.name)}">
<h2>{escape(table.title)}</h2>
<div class="scroll" tabindex="0" role="region" aria-label="{escape(table.title)}">
<table class="sortable"><thead><tr>{heads}</tr></thead>{"".join(bodies)}</table>
</div>
{notes}</section>
"""


def _cell(column: Column, cell: Cell, number: bool, first: bool) -> str:
    value = f' data-value="{cell.value!r}"' if isinstance(cell.value, int | float) else ""
    classes = " ".join(filter(None, ["number" if number else "", RANKS.get(cell.rank, "")]))
    spoken = {BEST: ' title="best"', SECOND: ' title="second best"'}.get(cell.rank, "")
    tag, scope = ("th", ' scope="row"') if first else ("td", "")
    return f"<{tag}{scope}{_class(classes)}{value}{spoken}>{escape(column.text(cell))}</{tag}>"


def _links(runs: Iterable[str], contents: Contents) -> str:
    return ", ".join(
        f'<a href="#{contents.anchors[name]}" title="{escape(name)}">{escape(contents.short[name])}</a>'
        for name in runs
    )


def _figures(anchor: str, heading: str, figures: Sequence[Drawn]) -> str:
    if not figures:
        return ""
    return f'<section id="{anchor}">\n<h2>{escape(heading)}</h2>\n{_grid(figures)}</section>\n'


def _grid(figures: Sequence[Drawn]) -> str:
    shown = "".join(
        f"<figure>{inline(figure)}<figcaption>{escape(figure.caption)}</figcaption></figure>\n" for figure in figures
    )
    return f'<div class="figures">\n{shown}</div>\n' if figures else ""


def inline(figure: Drawn) -> str:
    """A figure as part of a page: in the colours of the page, with names that no other figure has."""
    svg = figure.svg[figure.svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>", "", svg, flags=re.DOTALL)
    name = escape(figure.name)
    svg = re.sub(r'(\bid="|url\(#|href="#)', lambda found: f"{found[1]}{name}-", svg)
    svg = svg.replace(INK, "var(--ink)").replace(PAPER, "var(--paper)")
    return svg.replace("<svg", f'<svg role="img" aria-label="{escape(figure.caption)}"', 1).rstrip()


def _runs(contents: Contents) -> str:
    every = "".join(_run(run, contents) for run in contents.runs)
    return f'<section id="runs">\n<h2>Runs</h2>\n{every}</section>\n'


def _run(run: Run, contents: Contents) -> str:
    r = run.result
    bwt = "–" if run.bwt is None else f"{run.bwt:+.2f}"
    summary = f"{contents.short[run.name]}: {title(r['method'])} on {r['benchmark']}, seed {run.seed}"
    facts = {
        "directory": run.name,
        "preset": r["preset"] + (" (quick)" if r["quick"] else ""),
        "data": ", ".join([r["data"], *(f"{name} = {choice}" for name, choice in r["switches"].items())]),
        "tasks": r["tasks"],
        "epochs of each task": ", ".join(str(count) for count in r["epochs"]),
        "seed": run.seed,
        "time": ", ".join(f"{name.replace('_', ' ')} {duration(value)}" for name, value in r["seconds"].items()),
        "memory": f"{size(r['bytes']['memory'])}, {size(r['bytes']['per_task'])} of it for each task",
        "computed on": f"{r['device']}, {r['threads']} thread{'s' * (r['threads'] != 1)}",
        "versions": ", ".join(f"{name} {version}" for name, version in r["versions"].items()),
    }
    return f"""<details id="{contents.anchors[run.name]}">
<summary>{escape(summary)} <span class="soft">ACC {run.acc:.2f} %, BWT {bwt} %</span></summary>
<div>
{_facts(facts)}{_grid(contents.of_run.get(run.name, ()))}<h3>Recipe</h3>
<pre tabindex="0">{escape(run.recipe)}</pre>
</div>
</details>
"""


def _facts(facts: Mapping[str, Any]) -> str:
    return "<dl>" + "".join(f"<dt>{escape(k)}</dt><dd>{escape(str(v))}</dd>" for k, v in facts.items()) + "</dl>\n"


def _left_out(left_out: Sequence[tuple[str, str]]) -> str:
    if not left_out:
        return ""
    items = "".join(f"<li><code>{escape(name)}</code>: {escape(words)}</li>" for name, words in left_out)
    return f'<section id="left-out">\n<h2>Left out</h2>\n<ul>{items}</ul></section>\n'


def _class(names: str) -> str:
    return f' class="{names}"' if names else ""


def _resource(name: str) -> str:
    return (resources.files("codecl.report") / name).read_text(encoding="utf-8")

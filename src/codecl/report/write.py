"""A report on disk: ``report.html``, ``tables/`` and ``figures/``. The same runs give the same bytes."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path, PurePath

from codecl.errors import UsageError
from codecl.files import write_atomically
from codecl.report import figures as pictures
from codecl.report import run_figures
from codecl.report.drawing import Drawn, check_there, slug, styled
from codecl.report.experiments import (
    Ablation,
    Condition,
    Experiment,
    ablations_of,
    conditions_of,
    experiments_of,
)
from codecl.report.notes import (
    Transfer,
    about_logs,
    about_transfer,
    check_baseline,
    origin,
    repeats_of,
    sentence,
)
from codecl.report.page import Contents, files_of, page
from codecl.report.records import Found, Run, find
from codecl.report.render import FORMATS
from codecl.report.table import Table
from codecl.report.tables import all_tables, unvaried

PAGE = "report.html"
USUAL_BASELINE = "gpm"
FULL = (errno.ENOSPC, errno.EDQUOT)
CELL = re.compile(r"seed\d+")
"""What ``codecl sweep`` calls a run below the directory of its cell."""
OF_A_RUN = ("matrix", "curves", "fullness", "spectra")


@dataclass(frozen=True)
class Report:
    """What was written, what there is to say about it, and what is not in it; ``damaged`` is apart from ``left_out``.

    For the one who asked: directories have the names that they were given, in files those seen from the report.
    """

    tables: tuple[Table, ...]
    files: tuple[str, ...]
    remarks: tuple[str, ...]
    warnings: tuple[str, ...]
    left_out: tuple[tuple[str, str], ...]
    damaged: tuple[tuple[str, str], ...]


def write_report(
    directories: Sequence[Path],
    out: Path,
    baseline: str | None = None,
    with_figures: bool = True,
    of_runs: bool = True,
) -> Report:
    """Report on all runs below ``directories``; nothing is written if something cannot be.

    ``of_runs`` says whether single runs have figures too.
    """
    found = find(directories, out)
    if not found.runs:
        others = [f"{given} is {words}" for given, words in _asked(found, "unfinished")]
        others += [words.rstrip(".") for _, words in _asked(found, "damaged")]
        raise UsageError(sentence(f"no finished run in {', '.join(map(str, directories))}", others))
    if with_figures:
        check_there()
    _check_place(out, ["tables", "figures"] if with_figures else ["tables"])
    _check_own(out, [PAGE])
    experiments = experiments_of(found.runs)
    ablations, base = ablations_of(experiments), baseline or USUAL_BASELINE
    transfers = [Transfer.of(of, base) for of in conditions_of(unvaried(experiments, ablations))]
    if baseline is not None:
        check_baseline(baseline, experiments, transfers)
    tables = all_tables(experiments, ablations, base)
    short = short_names(found.runs)
    general = _summary(experiments, ablations) if with_figures else []
    of_run = _of_each(found.runs, short) if with_figures and of_runs else {}
    every = [*general, *(figure for several in of_run.values() for figure in several)]
    contents: dict[str, bytes] = {}
    for table in tables:
        contents |= {f"tables/{slug(table.name)}.{e}": _bytes(make(table)) for e, make in FORMATS.items()}
    for figure in every:
        contents |= {f"figures/{figure.name}.svg": _bytes(figure.svg), f"figures/{figure.name}.png": figure.png}
    remarks = [origin(found.runs), *about_transfer(transfers, base)]
    if with_figures and of_runs:
        remarks += about_logs(found.runs, short)
    else:
        remarks.append("Figures of single runs were left out." if with_figures else "Figures were left out.")
    repeats, warnings = repeats_of(experiments, lambda run: run.name)
    left_out = [*(one.seen for one in found.apart if one.kind != "damaged"), *repeats, *found.damaged]
    shown = Contents(found.runs, short, tables, general, of_run, left_out, remarks, sorted(contents), warnings)
    _write_all(out, {PAGE: _bytes(page(shown)), **contents})
    given = {run.name: run.given for run in found.runs}
    repeats, warnings = repeats_of(experiments, lambda run: run.given)
    left_out = [*_asked(found, "unfinished"), *_asked(found, "empty"), *repeats]
    return Report(
        tuple(_named(table, given) for table in tables), (PAGE, *sorted(contents)), tuple(remarks), tuple(warnings),
        tuple(left_out), tuple(_asked(found, "damaged")),
    )  # fmt: skip


def short_names(runs: Sequence[Run]) -> dict[str, str]:
    """The directory of each run, below the one that all have in common; a cell of a sweep with what is varied."""
    paths = {run.name: PurePath(run.path or run.name) for run in runs}
    common = PurePath(os.path.commonpath([path.parent for path in paths.values()]))
    if any(path.parent == common and CELL.fullmatch(path.name) for path in paths.values()):
        common = common.parent
    return {name: _bytes(path.relative_to(common).as_posix()).decode() for name, path in paths.items()}


def _summary(experiments: Sequence[Experiment], ablations: Sequence[Ablation]) -> list[Drawn]:
    """The figures of the whole report."""
    taken: set[str] = set()
    with styled():
        general = []
        for of in conditions_of(unvaried(experiments, ablations)):
            where = _condition_slug(of[0].condition)
            general.append(pictures.tasks(of, _free(f"tasks-{where}", taken)))
            if len(of) > 1:
                general.append(pictures.cost(of, _free(f"cost-{where}", taken)))
        families: dict[tuple[str, str], list[Ablation]] = {}
        for a in ablations:
            first = a.points[0][1]
            name = slug(f"ablation-{a.name}-{first.method}-{first.condition.benchmark}")
            families.setdefault((name, a.condition), []).append(a)
        for (name, _), several in families.items():
            general.append(pictures.swept(several, _free(name, taken)))
    return general


def _of_each(runs: Sequence[Run], short: dict[str, str]) -> dict[str, list[Drawn]]:
    """The figures of each run."""
    taken: set[str] = set()
    with styled():
        limits, of_run = pictures.limits_of(runs), {}
        for run in runs:
            names = {what: _free(slug(f"{what}-{short[run.name]}"), taken) for what in OF_A_RUN}
            matrix = pictures.matrix(run, names["matrix"], limits[run.name])
            views = (run_figures.curves, run_figures.fullness, run_figures.spectra)
            inside = [draw(run, names[draw.__name__]) for draw in views]
            of_run[run.name] = [matrix, *(figure for figure in inside if figure is not None)]
    return of_run


def _condition_slug(condition: Condition) -> str:
    epochs = "whole" if condition.epochs is None else f"{condition.epochs}-epochs"
    budget = f"{condition.tasks}-tasks-{epochs}{'-quick' * condition.quick}"
    return slug(f"{condition.benchmark}-{condition.preset}-{budget}")


def _free(name: str, taken: set[str]) -> str:
    """``name``, with a number if another has it; also where a file system does not tell a from A."""
    number, free = 1, name
    while free.lower() in taken:
        number += 1
        free = f"{name}-{number}"
    taken.add(free.lower())
    return free


def _asked(found: Found, kind: str) -> list[tuple[str, str]]:
    return [one.asked for one in found.apart if one.kind == kind]


def _named(table: Table, names: Mapping[str, str]) -> Table:
    """``table`` with other names for its runs."""
    sections = [
        replace(s, rows=tuple(replace(row, runs=tuple(names[name] for name in row.runs)) for row in s.rows))
        for s in table.sections
    ]
    return replace(table, sections=tuple(sections))


# On disk.


def _check_place(out: Path, parts: Sequence[str]) -> None:
    """``out`` and its ``parts`` are directories, or can become such."""
    for folder in (out, *(out / part for part in parts)):
        there = next(path for path in (folder, *folder.parents) if os.path.lexists(path))
        if not there.is_dir():
            raise UsageError(f"{there} is no directory, so there can be no report in {out}: choose another --out.")


def _check_own(out: Path, names: Iterable[str]) -> None:
    """What is there under these names must have been written by an earlier report."""
    own = _earlier(out)
    others = [
        out / name for name in names if os.path.lexists(out / name) and (name not in own or (out / name).is_dir())
    ]
    if others:
        raise UsageError(
            f"{others[0]}{f' and {len(others) - 1} more' * (len(others) > 1)} would be overwritten, and no earlier "
            "report has written it: move it, or choose another --out."
        )


def _earlier(out: Path) -> set[str]:
    """The files of the report that is there; its page tells."""
    try:
        files = files_of((out / PAGE).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError):
        return set()
    return {PAGE, *files} if files else set()


def _write_all(out: Path, contents: Mapping[str, bytes]) -> None:
    """The page first: whatever happens then, the next report knows what is its own. What is out of date goes."""
    _check_own(out, contents)
    for name in _earlier(out) - contents.keys():
        with suppress(OSError):
            (out / name).unlink()
    for name, data in contents.items():
        try:
            (out / name).parent.mkdir(parents=True, exist_ok=True)
            write_atomically(out / name, data)
        except OSError as error:
            if error.errno in FULL:
                raise
            raise UsageError(f"{out / name} cannot be written: {error.strerror}. Choose another --out.") from None


def _bytes(text: str) -> bytes:
    return text.encode(errors="replace")  # a record may hold half a character

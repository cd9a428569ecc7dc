"""A report on disk: ``report.html``, ``tables/`` and ``figures/``. The same runs give the same bytes."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from codecl.errors import UsageError
from codecl.files import FULL, write_atomically
from codecl.report import page
from codecl.report.drawing import Drawing, require_matplotlib
from codecl.report.experiments import Experiment
from codecl.report.figures import summary_figures
from codecl.report.headline import headlines
from codecl.report.names import few, short_names, slug
from codecl.report.records import Found, find_runs
from codecl.report.render import FORMATS
from codecl.report.run_figures import figures_of_runs
from codecl.report.table import Table
from codecl.report.tables import analyse
from codecl.report.transfer import check_baseline, transfer_notes

PAGE = "report.html"
USUAL_BASELINE = "gpm"


@dataclass(frozen=True)
class Report:
    """What was written, what there is to say about it, and what is not in it, as pairs of a directory and a reason.

    ``headlines`` are a sentence for each condition, by its title. Directories have the names that the user gave; in
    the files they have those seen from the report.
    """

    headlines: Mapping[str, str]
    tables: Sequence[Table]
    files: Sequence[str]
    notes: Sequence[str]
    warnings: Sequence[str]
    left_out: Sequence[tuple[str, str]]
    damaged: Sequence[tuple[str, str]]


def write_report(
    directories: Sequence[Path],
    out: Path,
    baseline: str | None = None,
    figures: bool = True,
    run_figures: bool = True,
) -> Report:
    """Report on all runs below ``directories``; nothing is written if something cannot be.

    Args:
        directories: Where to look for runs.
        out: Where to write. Nothing is overwritten but an earlier report.
        baseline: The method that forward transfer is measured against; GPM, if there is any, by default.
        figures: Whether to draw.
        run_figures: Whether single runs have figures too.
    """
    found = find_runs(directories, out)
    given = found.as_given()
    _check_found(given, directories)
    if figures:
        require_matplotlib()
    _check_place(out, ["tables", "figures"] if figures else ["tables"])
    _check_own(out, [PAGE])
    baseline, asked = baseline or USUAL_BASELINE, baseline is not None
    made = analyse(found.runs, baseline)
    if asked:
        check_baseline(baseline, made.experiments, made.transfers)
    short = short_names({run.name: run.record.path for run in found.runs})
    summary = summary_figures(made) if figures else []
    of_runs = figures_of_runs(found.runs, short) if figures and run_figures else {}
    files = _files(made.tables, [*summary, *itertools.chain(*of_runs.values())])
    notes = [page.origin_note(found.runs), *transfer_notes(made.transfers)]
    if figures and run_figures:
        notes += page.log_notes(found.runs, short)
    else:
        notes.append("Figures of single runs were left out." if figures else "Figures were left out.")
    left_out, warnings = _left_out(found, made.experiments)
    left_out += found.skipped_as("damaged")
    said = headlines(made.main, made.transfers)
    contents = page.Contents(
        found.runs, short, said, made.tables, summary, of_runs, left_out, notes, warnings, sorted(files)
    )
    _write_all(out, {PAGE: page.make_page(contents), **files})
    made = analyse(given.runs, baseline)
    left_out, warnings = _left_out(given, made.experiments)
    return Report(said, made.tables, [PAGE, *sorted(files)], notes, warnings, left_out, given.skipped_as("damaged"))


def _files(tables: Sequence[Table], drawings: Sequence[Drawing]) -> dict[str, str | bytes]:
    """The files beside the page, by name."""
    files: dict[str, str | bytes] = {
        f"tables/{slug(table.name)}.{ending}": form(table) for table in tables for ending, form in FORMATS.items()
    }
    for drawing in drawings:
        files |= {f"figures/{drawing.name}.svg": drawing.svg, f"figures/{drawing.name}.png": drawing.png}
    return files


def _left_out(found: Found, experiments: Sequence[Experiment]) -> tuple[list[tuple[str, str]], list[str]]:
    """The runs that are not in the report and why, but for damaged ones; and warnings about them."""
    repeats, warnings = page.repeat_notes(experiments)
    return [*found.skipped_as("unfinished", "empty"), *repeats], warnings


def _check_found(found: Found, directories: Sequence[Path]) -> None:
    if not found.runs:
        reasons = [f"{name} is {reason}" for name, reason in found.skipped_as("unfinished")]
        reasons += [reason.rstrip(".") for _, reason in found.skipped_as("damaged")]
        where = ", ".join(map(str, directories))
        raise UsageError(f"no finished run in {where}{'; ' * bool(reasons)}{few(reasons)}.")


def _check_place(out: Path, folders: Sequence[str]) -> None:
    """``out`` and the ``folders`` in it are directories, or can become such."""
    for folder in (out, *(out / name for name in folders)):
        there = next(path for path in (folder, *folder.parents) if os.path.lexists(path))
        if not there.is_dir():
            raise UsageError(f"{there} is no directory, so there can be no report in {out}: choose another --out.")


def _check_own(out: Path, names: Iterable[str]) -> set[str]:
    """What is there under these names must be of the earlier report, whose files are returned; its page lists them."""
    own: set[str] = set()
    with suppress(OSError, UnicodeDecodeError):
        files = page.files_of((out / PAGE).read_text(encoding="utf-8"))
        own = {PAGE, *files} if files else set()
    others = [
        out / name for name in names if os.path.lexists(out / name) and (name not in own or (out / name).is_dir())
    ]
    if others:
        raise UsageError(
            f"{others[0]}{f' and {len(others) - 1} more' * (len(others) > 1)} would be overwritten, and no earlier "
            "report has written it: move it, or choose another --out."
        )
    return own


def _write_all(out: Path, files: Mapping[str, str | bytes]) -> None:
    """The page first: whatever happens then, the next report knows what is its own. Files out of date are removed."""
    for name in _check_own(out, files) - files.keys():
        with suppress(OSError):
            (out / name).unlink()
    for name, data in files.items():
        try:
            (out / name).parent.mkdir(parents=True, exist_ok=True)
            write_atomically(out / name, data)
        except OSError as error:
            if error.errno in FULL:
                raise
            raise UsageError(f"{out / name} cannot be written: {error.strerror}. Choose another --out.") from None

"""A report on disk: ``report.html``, ``tables/`` and ``figures/``. The same runs give the same bytes."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from codecl.experiments.report import figures as pictures
from codecl.experiments.report import insides
from codecl.experiments.report.drawing import Drawn, check_there, slug, styled
from codecl.experiments.report.experiments import (
    Ablation,
    Condition,
    Experiment,
    ablations_of,
    conditions_of,
    experiments_of,
)
from codecl.experiments.report.page import Contents, files_of, page
from codecl.experiments.report.records import Found, Run, find
from codecl.experiments.report.render import FORMATS
from codecl.experiments.report.table import Table
from codecl.experiments.report.tables import all_tables, baseline_of, unvaried
from codecl.experiments.usage import UsageError
from codecl.messages import unknown_name

PAGE = "report.html"
USUAL_BASELINE = "gpm"
OF_A_RUN = (pictures.matrix, insides.curves, insides.fullness, insides.spectra)


@dataclass(frozen=True)
class Report:
    """What was written, what there is to say about it, and what is not in it; ``damaged`` is part of ``left_out``."""

    tables: tuple[Table, ...]
    files: tuple[str, ...]
    remarks: tuple[str, ...]
    left_out: tuple[tuple[str, str], ...]
    damaged: tuple[tuple[str, str], ...]


def write_report(
    directories: Sequence[Path], out: Path, baseline: str | None = None, with_figures: bool = True
) -> Report:
    """Report on all runs below ``directories``; nothing is written if there is none, or nothing can be drawn."""
    found = find(directories, out)
    if not found.runs:
        others = [f"{name} is {words}" for name, words in found.unfinished]
        others += [words.rstrip(".") for _, words in found.damaged]
        raise UsageError(_sentence(f"no finished run in {', '.join(map(str, directories))}", others))
    if with_figures:
        check_there()
    experiments = experiments_of(found.runs)
    methods = list(dict.fromkeys(e.method for e in experiments))
    if baseline is not None and baseline not in methods:
        raise UsageError(unknown_name("run of the baseline", baseline, methods))
    ablations, base = ablations_of(experiments), baseline or USUAL_BASELINE
    tables = all_tables(experiments, ablations, base)
    short = short_names(found.runs)
    general, of_run = _drawn(experiments, ablations, found.runs, short) if with_figures else ([], {})
    every = [*general, *(figure for several in of_run.values() for figure in several)]
    contents: dict[str, bytes] = {}
    for table in tables:
        contents |= {f"tables/{slug(table.name)}.{e}": _bytes(make(table)) for e, make in FORMATS.items()}
    for figure in every:
        contents |= {f"figures/{figure.name}.svg": _bytes(figure.svg), f"figures/{figure.name}.png": figure.png}
    remarks = tuple(_remarks(found, experiments, base, with_figures))
    left_out = (*found.unfinished, *_repeats(experiments), *found.damaged)
    shown = Contents(found.runs, short, tables, general, of_run, left_out, remarks, sorted(contents))
    text = page(shown)
    _forget_earlier(out, contents)
    for name, data in {**contents, PAGE: _bytes(text)}.items():
        (out / name).parent.mkdir(parents=True, exist_ok=True)
        (out / name).write_bytes(data)
    return Report(tuple(tables), (PAGE, *sorted(contents)), remarks, left_out, found.damaged)


def short_names(runs: Sequence[Run]) -> dict[str, str]:
    """The directory of each run, below the one that all have in common."""
    parents = [str(PurePosixPath(run.name).parent) for run in runs]
    common = os.path.commonpath(parents)
    return {run.name: os.path.relpath(run.name, common).replace(os.sep, "/") for run in runs}


def _drawn(
    experiments: Sequence[Experiment], ablations: Sequence[Ablation], runs: Sequence[Run], short: dict[str, str]
) -> tuple[list[Drawn], dict[str, list[Drawn]]]:
    """The figures of the whole report, and those of each run."""
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
        of_run = {}
        for run in runs:
            names = [_free(slug(f"{draw.__name__}-{short[run.name]}"), taken) for draw in OF_A_RUN]
            drawn = [draw(run, name) for draw, name in zip(OF_A_RUN, names, strict=True)]
            of_run[run.name] = [figure for figure in drawn if figure is not None]
    return general, of_run


def _condition_slug(condition: Condition) -> str:
    budget = f"{condition.tasks}-tasks-{condition.epochs}-epochs{'-quick' * condition.quick}"
    return slug(f"{condition.benchmark}-{condition.preset}-{budget}")


def _free(name: str, taken: set[str]) -> str:
    """``name``, with a number if another has it; also where a file system does not tell a from A."""
    number, free = 1, name
    while free.lower() in taken:
        number += 1
        free = f"{name}-{number}"
    taken.add(free.lower())
    return free


def _remarks(found: Found, experiments: Sequence[Experiment], baseline: str, with_figures: bool) -> Iterable[str]:
    versions = sorted({f"codecl {run.result['versions'].get('codecl', '?')}" for run in found.runs})
    seeds = sorted({run.seed for run in found.runs})
    yield f"Recorded by {', '.join(versions)}; seeds {', '.join(map(str, seeds))}."
    groups = conditions_of(experiments)
    without = [of[0].condition.title() for of in groups if baseline_of(of, baseline) is None]
    if without:
        yield f"No forward transfer without one run of {baseline} to measure it against: {'; '.join(without)}."
    silent = sum(not insides.layers_of(run) for run in found.runs)
    if with_figures and silent:
        whose = "No log says" if silent == len(found.runs) else f"{silent} of {len(found.runs)} logs do not say"
        yield f"{whose} what the layers remember; older ones cannot. These runs have no spectra and capacities."
    if not with_figures:
        yield "Figures were left out (--no-figures)."


def _repeats(experiments: Sequence[Experiment]) -> list[tuple[str, str]]:
    return [
        (
            run.name,
            f"repeats seed {run.seed} of {next(other.name for other in e.runs if other.seed == run.seed)}; not counted",
        )
        for e in experiments
        for run in e.repeats
    ]


def _forget_earlier(out: Path, contents: Iterable[str]) -> None:
    """Remove what an earlier report wrote and this one does not; its page tells. Nothing else is touched."""
    try:
        earlier = files_of((out / PAGE).read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError, UnicodeDecodeError):
        return
    for name in set(earlier) - set(contents):
        (out / name).unlink(missing_ok=True)


def _bytes(text: str) -> bytes:
    return text.encode(errors="replace")  # a record may hold half a character


def _sentence(begin: str, others: Sequence[str]) -> str:
    return f"{begin}{'; ' * bool(others)}{'; '.join(others[:3])}{'; and more' * (len(others) > 3)}."

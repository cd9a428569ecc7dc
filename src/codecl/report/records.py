"""The runs below some directories: the finished ones, and those that are skipped and why."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Literal

from codecl.errors import UsageError
from codecl.report.names import readable
from codecl.runs.records import LOG, RECIPE, RESULT, Result, RunRecord, read_run


@dataclass(frozen=True, eq=False)
class Run:
    """A finished run. ``name`` is its directory as seen from the report, ``given`` as the user wrote it."""

    name: str
    record: RunRecord
    given: str = ""

    @property
    def result(self) -> Result:
        if self.record.result is None:
            raise ValueError(f"{self.name} has no result.")
        return self.record.result

    @property
    def seed(self) -> int:
        return self.result.seed


@dataclass(frozen=True)
class SkippedRun:
    """A directory that gives a report nothing. ``fault`` is about its ``file``, or about all of it."""

    kind: Literal["unfinished", "empty", "damaged"]
    name: str
    given: str
    fault: str
    file: str = ""

    @property
    def reason(self) -> str:
        return f"{PurePosixPath(self.name) / self.file} {self.fault}" if self.file else self.fault


@dataclass(frozen=True)
class Found:
    """All run directories below some directories."""

    runs: tuple[Run, ...]
    skipped: tuple[SkippedRun, ...] = ()

    def skipped_as(self, *kinds: str) -> list[tuple[str, str]]:
        """The names of what was skipped as one of ``kinds``, with the reasons."""
        return [(one.name, one.reason) for kind in kinds for one in self.skipped if one.kind == kind]

    def as_given(self) -> Found:
        """The same, with every name as the user wrote it."""
        return Found(
            tuple(replace(run, name=run.given) for run in self.runs),
            tuple(replace(one, name=one.given) for one in self.skipped),
        )


def find_runs(directories: Sequence[Path], out: Path) -> Found:
    """All runs in or below ``directories``, by name as seen from ``out``. A damaged one does not hide the others."""

    def seen(path: Path) -> str:
        return readable(Path(os.path.relpath(path, out.resolve())))

    skipped: list[SkippedRun] = []
    places: dict[Path, tuple[bool, str, Path, str]] = {}
    for top in directories:
        below = list(run_directories(top))
        if not below:
            skipped.append(SkippedRun("empty", seen(top.resolve()), readable(top), "no run in it or below it"))
        for directory in below:  # a run that is found twice is one run, named without links if possible
            path = top.resolve() / directory
            place = (path != path.resolve(), seen(path), path, readable(top / directory))
            places[path.resolve()] = min(place, places.get(path.resolve(), place))
    runs: list[Run] = []
    for _, name, path, given in sorted(places.values(), key=lambda place: place[1]):
        record = read_run(path)
        damaged = next((file for file in (RECIPE, RESULT) if file in record.damage), None)
        if damaged is not None:
            skipped.append(SkippedRun("damaged", name, given, record.damage[damaged], damaged))
        elif record.result is None:
            skipped.append(SkippedRun("unfinished", name, given, _how_far(record)))
        else:
            runs.append(Run(name, record, given))
    return Found(tuple(runs), tuple(skipped))


def _how_far(record: RunRecord) -> str:
    if LOG in record.damage:
        return "not finished; its log is damaged"
    learned = len(record.tasks)
    return f"not finished: {learned or 'no'} task{'s' * (learned > 1)} learned{' yet' * (not learned)}"


def run_directories(top: Path) -> Iterator[Path]:
    """The run directories in ``top``, seen from it, each once: without links, unless links lead out of it."""
    if not top.is_dir():
        raise UsageError(f"{top} is no directory." if top.exists() else f"there is no directory {top}.")
    seen: set[Path] = set()

    def refuse_top(error: OSError) -> None:
        if not seen:  # folders below it do not hide the others
            raise UsageError(f"{top} cannot be read: {error.strerror}.") from error

    for folder, inner, files in os.walk(top, onerror=refuse_top, followlinks=True):
        real = Path(folder).resolve()
        if real in seen:  # ends circles of links
            inner.clear()
            continue
        seen.add(real)
        inner.sort()
        if RECIPE in files:
            inside = real.is_relative_to(top.resolve())
            yield real.relative_to(top.resolve()) if inside else Path(folder).relative_to(top)

"""``codecl data check`` and ``codecl data get``."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TextIO

from codecl.benchmarks.data.download import DownloadFailed, Progress, fetch, unpack
from codecl.benchmarks.data.images import DamagedData, DataSet, MissingData
from codecl.benchmarks.data.sources import SOURCES, File, Source
from codecl.cli.options import Parser, add_command, data_option, data_root
from codecl.errors import FAILED, USAGE, UsageError
from codecl.text import size, table, unknown_name


def add(commands: Any) -> None:
    parser = add_command(
        commands, "data", check, "see which data sets are there, or download those that may be downloaded",
        """
  codecl data check
  codecl data get cifar100 mnist --data-dir DATA""",
    )  # fmt: skip
    data_option(parser)
    help = "check [NAME …]: what is there; get [NAME …]: download what is not (default all data sets)"
    actions = parser.add_subparsers(metavar="ACTION", required=True, parser_class=Parser, help=help)
    for name, function, summary in (
        ("check", check, "see which data sets are there, and whether they are complete"),
        ("get", get, "download the data sets that are not there"),
    ):
        action = add_command(actions, name, function, summary)
        action.add_argument("names", nargs="*", metavar="NAME", help="data sets (default all)")
        action.argument_default = argparse.SUPPRESS  # what stands before the action is kept
        data_option(action)


def check(options: argparse.Namespace) -> int:
    """Print the data sets as official, whole, subset, missing, damaged or unread, with their counts.

    Returns:
        ``USAGE`` where one is damaged or unread, or was named and is missing; otherwise 0.
    """
    root, sources = data_root(options), _find_sources(options.names)
    if not root.is_dir():
        raise UsageError(
            f"there is no folder {root}. Say where the data sets are with --data-dir or CODECL_DATA, or download those "
            "that may be downloaded with 'codecl data get'."
        )
    found = [(source, *look(source, root)) for source in sources]
    rows = [[source.name, status, counts, source.published] for source, status, counts, _ in found]
    print(table(["data set", "status", "images", "published"], rows))
    print(f"in {root}", *(f"{source.name}: {note}" for source, _, _, note in found if note), sep="\n")
    wrong = ("damaged", "unread", "missing") if options.names else ("damaged", "unread")
    return USAGE if any(status in wrong for _, status, _, _ in found) else 0


def get(options: argparse.Namespace) -> int:
    """Download the data sets named, or all that may be; ``FAILED`` if one of them is not there in the end."""
    root, progress = data_root(options), ProgressBar(sys.stderr)
    return max([_get(source, root, bool(options.names), progress) for source in _find_sources(options.names)])


def _find_sources(names: Sequence[str]) -> list[Source]:
    for name in names:
        if name not in SOURCES:
            raise UsageError(unknown_name("data set", name, SOURCES))
    return [SOURCES[name] for name in names or SOURCES]


def look(source: Source, root: Path) -> tuple[str, str, str]:
    """Status and counts of a data set below ``root``, and a note on what a person should know."""
    try:
        found = source.read(root)
    except MissingData as error:
        begun = any(folder.exists() for folder in error.path.parents if root in folder.parents)
        return "missing", "", f"{error.path} is not there, though its folder is." if begun else ""
    except ModuleNotFoundError as error:
        return "unread", "", str(error)
    except (DamagedData, OSError) as error:
        return "damaged", "", f"{error}{'.' * isinstance(error, OSError)}"
    counts = [found.train, found.test] if isinstance(found, DataSet) else [found]
    return found.status, " + ".join(f"{len(part):,}" for part in counts), "; ".join(found.notes)


def _get(source: Source, root: Path, named: bool, progress: Progress) -> int:
    status, counts, note = look(source, root)
    if status in ("official", "whole", "subset"):
        hint = f" Remove it from {root} to download the whole." if status == "subset" and source.files else ""
        print(f"{source.name}: {status}, {counts}, is there already.{hint}")
        return 0
    if not source.files:
        print(f"{source.name} cannot be downloaded: {source.how.format(root=root)}.")
        return FAILED if named else 0
    if status == "unread":
        raise ModuleNotFoundError(note)
    try:
        for file in source.files:
            _fetch_any(file, root, progress)
    except (DownloadFailed, DamagedData) as error:
        places = [f"{f.urls[0]} to {root / f.target}{', unpacked there' * bool(f.unpack)}" for f in source.files]
        print(f"{source.name}: {error}\n{source.name}: to get it by other means: {'; '.join(places)}")
        return FAILED
    status, counts, note = look(source, root)
    print(f"{source.name}: {status}{f', {counts}' if counts else ''}.{f' {note}' if note else ''}")
    return 0 if status in ("official", "whole") else FAILED


def _fetch_any(file: File, root: Path, progress: Progress) -> None:
    target = root / file.target
    for i, url in enumerate(file.urls):
        print(f"{url} → {target}")
        try:
            fetch(url, target, file.checksum, progress, size=file.size)
            break
        except DownloadFailed as error:
            if i == len(file.urls) - 1:
                raise
            print(f"{error} Trying the next address.")
    if file.unpack:
        unpack(target, root)
        target.unlink()


class ProgressBar:
    """The progress of downloads, on one line that is rewritten; silent where there is no terminal."""

    def __init__(self, out: TextIO) -> None:
        self.out, self._shown = out, 0.0

    def __call__(self, name: str, done: int, total: int | None) -> None:
        if not self.out.isatty() or (done != total and time.monotonic() < self._shown + 0.1):
            return
        self._shown = time.monotonic()
        self.out.write(f"\r\x1b[K{self.line(name, done, total)}" + ("\n" if done == total else ""))
        self.out.flush()

    @staticmethod
    def line(name: str, done: int, total: int | None) -> str:
        if not total:
            return f"{name} {size(done)}"
        full = 24 * done // total
        return f"{name} [{'█' * full}{'·' * (24 - full)}] {100 * done // total:3d} % of {size(total)}"

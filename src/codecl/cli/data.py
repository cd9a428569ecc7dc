"""``codecl data check`` and ``codecl data get``."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TextIO

from codecl.benchmarks.data.download import DownloadFailed, Progress, fetch
from codecl.benchmarks.data.images import DamagedData, DataSet, MissingData
from codecl.benchmarks.data.sources import SOURCES, File, Source
from codecl.benchmarks.data.unpack import unpack
from codecl.cli.options import add_command, data_option, data_root
from codecl.errors import FAILED, UsageError
from codecl.text import size, table, unknown_name


def add(commands: Any) -> None:
    parser = add_command(
        commands, "data", data, "see which data sets are there, or download those that may be downloaded",
        """
  codecl data check
  codecl data get cifar100 mnist --data-dir DATA""",
    )  # fmt: skip
    parser.add_argument("action", choices=["check", "get"], help="check what is there, or get what is not")
    parser.add_argument("names", nargs="*", metavar="NAME", help="data sets to get (default all)")
    data_option(parser)


def data(options: argparse.Namespace) -> int:
    root = data_root(options)
    if options.action == "check":
        return check(root)
    return get(root, options.names, ProgressBar(sys.stderr))


def check(root: Path, out: TextIO | None = None) -> int:
    """Print every data set as official, whole, subset, missing or damaged, with its counts; always 0."""
    out = out or sys.stdout
    rows, remarks = [], []
    for source in SOURCES.values():
        status, counts, remark = look(source, root)
        rows.append([source.name, status, counts, source.published])
        remarks += [f"{source.name}: {remark}"] if remark else []
    print(table(["data set", "status", "images", "published"], rows), file=out)
    print(f"in {root}", *remarks, sep="\n", file=out)
    return 0


def look(source: Source, root: Path) -> tuple[str, str, str]:
    """Status and counts of a data set below ``root``, and what there is to say about it."""
    try:
        found = source.read(root)
    except MissingData as error:
        begun = any(folder.exists() for folder in error.path.parents if root in folder.parents)
        return "missing", "", f"{error.path} is not there, though its folder is." if begun else ""
    except DamagedData as error:
        return "damaged", "", str(error)
    except ModuleNotFoundError as error:
        return "unread", "", str(error)
    except OSError as error:
        return "damaged", "", f"{error}."
    counts = [found.train, found.test] if isinstance(found, DataSet) else [found]
    return found.status, " + ".join(f"{len(part):,}" for part in counts), "; ".join(found.notes)


def get(root: Path, names: Sequence[str], progress: Progress | None = None, out: TextIO | None = None) -> int:
    """Download the data sets named, or all that may be; 1 if one of them is not there in the end."""
    out = out or sys.stdout
    for name in names:
        if name not in SOURCES:
            raise UsageError(unknown_name("data set", name, SOURCES))
    return max([_get(SOURCES[name], root, name in names, progress, out) for name in names or SOURCES], default=0)


def _get(source: Source, root: Path, named: bool, progress: Progress | None, out: TextIO) -> int:
    status, counts, remark = look(source, root)
    if status in ("official", "whole", "subset"):
        hint = f" Remove it from {root} to download the whole." if status == "subset" and source.files else ""
        print(f"{source.name}: {status}, {counts}, is there already.{hint}", file=out)
        return 0
    if not source.files:
        print(f"{source.name} cannot be downloaded: {source.how.format(root=root)}.", file=out)
        return FAILED if named else 0
    try:
        for file in source.files:
            _fetch_any(file, root, progress, out)
    except (DownloadFailed, DamagedData) as error:
        print(f"{source.name}: {error}", file=out)
        print(f"{source.name}: to get it by other means: {_by_hand(source, root)}", file=out)
        return FAILED
    status, counts, remark = look(source, root)
    print(f"{source.name}: {status}{f', {counts}' if counts else ''}.{f' {remark}' if remark else ''}", file=out)
    return 0 if status in ("official", "whole") else FAILED


def _fetch_any(file: File, root: Path, progress: Progress | None, out: TextIO) -> None:
    target = root / file.target
    for i, url in enumerate(file.urls):
        print(f"{url} → {target}", file=out)
        try:
            fetch(url, target, file.checksum, progress, size=file.size)
            break
        except DownloadFailed as error:
            if i == len(file.urls) - 1:
                raise
            print(f"{error} Trying the next address.", file=out)
    if file.unpack:
        unpack(target, root)
        target.unlink()


def _by_hand(source: Source, root: Path) -> str:
    return "; ".join(
        f"{file.urls[0]} to {root / file.target}{', unpacked there' if file.unpack else ''}" for file in source.files
    )


class ProgressBar:
    """The progress of downloads, on one line that is rewritten; silent where there is no terminal."""

    def __init__(self, out: TextIO | None = None) -> None:
        self.out = out or sys.stderr
        self._shown = 0.0

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

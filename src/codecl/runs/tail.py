"""Following runs that are carried out elsewhere: by their logs, on a file system that all machines see."""

from __future__ import annotations

from pathlib import Path

from codecl.runs.events import Event, parse_log
from codecl.runs.records import LOG_LIMIT
from codecl.runs.untrusted import read_bytes

LOOK = 0.5
"""Seconds between two looks at a log."""


class Tail:
    """The events that join a log. Where a run goes on from an earlier epoch, the log is cut and grows again."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._stamp: tuple[int, int] | None = None
        self._seen = 0
        self.new()

    def new(self) -> list[Event]:
        """What joined it since it was last asked, or made."""
        if not self.path.exists():
            return []
        status = self.path.stat()
        if self._stamp == (stamp := (status.st_size, status.st_mtime_ns)):
            return []
        events = parse_log(read_bytes(self.path, LOG_LIMIT))[0]
        found, self._seen, self._stamp = events[self._seen :], len(events), stamp
        return found

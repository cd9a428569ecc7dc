"""A trial: one run that is stopped by faults, again and again, and then left to end; what differs from a whole one."""

import os
import random
import shutil
import signal
from dataclasses import dataclass, field
from pathlib import Path

from codecl.methods import METHODS
from tests.runs.running import become, difference_of_runs, epochs_logged, log_of
from tests.soak.faults import KILLS, KINDS, Fault, install

RECIPE = ("--benchmark", "tests.soak.tiny:TINY", "--epochs", "2", "--set", "batch_size=24", "--quiet")
MOST_FAULTS = 16
KILLED = 0.75
"""The share of faults that are kills at least; the others are drawn from all kinds."""


@dataclass
class Outcome:
    """What became of a trial; ``fault`` is empty if all is well."""

    finished: int = 0
    met: list[tuple[str, str]] = field(default_factory=list)
    """The faults that happened, each with the call that it happened to."""
    fault: str = ""


class Soak:
    """All trials of a seed, in the directory ``place``. The first ones come to every call of every method once."""

    def __init__(self, seed, place, methods=tuple(METHODS)):
        self.seed, self.place, self.methods = seed, Path(place), methods
        self.calls = {}
        for method in methods:
            code, calls = self.attempt(method, self.whole(method))
            if code != 0:
                raise SystemExit(f"{method} does not run: {self.said()}")
            self.calls[method] = calls
        self.points = [(method, at) for method in methods for at in range(1, len(self.calls[method]) + 1)]
        random.Random(seed).shuffle(self.points)

    def whole(self, method):
        return self.place / "whole" / method

    def trial(self, number):
        """The trial of this number: always the same faults."""
        draw, outcome = random.Random(f"{self.seed}/{number}"), Outcome()
        method, first = self.points[number % len(self.points)]
        path = self.place / f"trial-{number}"
        for attempt in range(draw.randint(1, MOST_FAULTS)):
            kind = "kill" if draw.random() < KILLED else draw.choice(KINDS)
            at = first if attempt == 0 else draw.randint(1, len(self.calls[method]))
            fault = Fault(kind, at, lasting=draw.random() < 0.3)
            self.one(method, path, fault, draw.random() < 0.5, outcome)
            if outcome.fault:
                return outcome
        self.one(method, path, None, False, outcome)
        if not outcome.fault:
            outcome.finished += 1
            outcome.fault = difference_of_runs(path, self.whole(method))
        if not outcome.fault:
            shutil.rmtree(path)
        return outcome

    def one(self, method, path, fault, by_resume, outcome):
        """Begin the run, or go on with it, and see whether it ends as it should."""
        finished, before = (path / "result.json").exists(), epochs_logged(path)
        code, calls = self.attempt(method, path, fault, by_resume)
        said = self.said()
        met = fault is not None and len(calls) >= fault.at
        if met:
            outcome.met.append((fault.kind, f"{method} call {fault.at}: {calls[fault.at - 1]}"))
        killed = met and fault.kind in KILLS
        if code not in ({-signal.SIGKILL} if killed else {0, 1, 2, 130} if met else {0}):
            outcome.fault = f"exit code {code}: {said}"
        elif (code > 0 and not said) or not all(line.startswith("codecl: ") for line in said.splitlines()):
            outcome.fault = f"not lines for people: {said}"
        elif code == 0 and not finished:
            resumed = [e for e in log_of(path) if e["event"] == "resume"]
            kept = sum(resumed[-1]["epochs"]) + resumed[-1]["epoch"] if resumed else 0
            if kept < before - 1:
                outcome.fault = f"{before - kept} epochs lost"

    def attempt(self, method, path, fault=None, by_resume=False):
        """Exit code, or minus the signal, of the command in a process of its own; and the calls that it made."""
        again = by_resume and (path / "recipe.toml").exists()
        asked = ("--resume", path, "--trust", "--quiet") if again else ("--method", method, *RECIPE, "--out", path)
        trace, out, err = (self.place / name for name in ("trace", "out", "err"))
        for file in (out, err):
            file.unlink(missing_ok=True)
        with open(trace, "wb") as file:
            if (child := os.fork()) == 0:
                install(path, fault, file.fileno())
                become({"run": ["run", *map(str, asked)], "out": str(out), "err": str(err), "die": None})
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        return code, trace.read_text().splitlines()

    def said(self):
        return (self.place / "err").read_text()

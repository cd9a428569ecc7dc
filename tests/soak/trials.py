"""A trial: one run that is stopped by faults, again and again, and then left to end; what differs from a whole one."""

import random
import shutil
import signal
from dataclasses import asdict, dataclass, field
from pathlib import Path

from codecl.methods import METHODS
from tests.runs.running import difference_of_runs, epochs_logged, log_of
from tests.soak.faults import KILLS, KINDS, Fault
from tests.soak.process import forked

RECIPE = ("--benchmark", "tests.soak.tiny:TINY", "--epochs", "2", "--set", "batch_size=8", "--set", "lr=0.1", "--quiet")
MOST_AFTER = 3
"""So many faults follow the first one of a trial at most."""
KILLED = 0.75
"""The share of faults that are kills at least; the others are drawn from all kinds."""
FINISHED = 12
"""A run that is finished makes so few calls."""


def command(method, path):
    """The arguments of the run of a method."""
    return ["run", "--method", method, *RECIPE, "--out", str(path)]


@dataclass
class Outcome:
    """What became of a trial; ``fault`` is empty if all is well."""

    finished: int = 0
    met: list[tuple[str, str]] = field(default_factory=list)
    """The faults that happened, each with the call that it happened to."""
    fault: str = ""


class Soak:
    """All trials of a seed, in the directory ``place``; ``start`` makes the process of an attempt.

    The first trials kill at every call of every method once; those after them begin with a fault of any kind there.
    """

    def __init__(self, seed, place, methods=tuple(METHODS), start=forked):
        self.seed, self.place, self.methods, self.start = seed, Path(place), methods, start
        self.place.mkdir(exist_ok=True)
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
        turn, point = divmod(number, len(self.points))
        method, at = self.points[point]
        path = self.place / f"trial-{number}"
        kind = "kill" if turn == 0 else draw.choice(KINDS)
        for _ in range(1 + draw.randint(0, MOST_AFTER)):
            self.one(method, path, Fault(kind, at, lasting=draw.random() < 0.3), draw.random() < 0.5, outcome)
            if outcome.fault:
                return outcome
            kind = "kill" if draw.random() < KILLED else draw.choice(KINDS)
            finished = (path / "result.json").exists()
            at = draw.randint(1, FINISHED if finished else draw.randint(1, len(self.calls[method])))
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
        asked = ["run", "--resume", str(path), "--trust", "--quiet"] if again else command(method, path)
        trace, out, err = (self.place / name for name in ("trace", "out", "err"))
        for file in (out, err):
            file.unlink(missing_ok=True)
        files = {"path": str(path), "trace": str(trace), "out": str(out), "err": str(err)}
        code = self.start({"run": asked, "fault": asdict(fault) if fault else None} | files)
        return code, trace.read_text().splitlines()

    def said(self):
        return (self.place / "err").read_text()

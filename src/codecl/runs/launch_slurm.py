"""Runs as one job array of SLURM.

A task of the array goes on with the run of its number, with as many CPUs as a recipe has threads. All machines see the
run directories and this Python, and the logs tell how far the runs are. A job that is preempted or loses its machine is
requeued by SLURM and goes on from its last epoch, to the same numbers. What else a job needs (partition, time, account)
comes from the variables that sbatch reads: ``SBATCH_PARTITION``, ``SBATCH_TIMELIMIT``, ``SBATCH_ACCOUNT``, …
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from codecl.errors import UsageError
from codecl.files import write_atomically
from codecl.runs.events import Event
from codecl.runs.launch import command
from codecl.runs.records import LOG, RESULT
from codecl.runs.tail import LOOK, Tail

FOLDER = "slurm"
"""Beside the run directories: what was submitted, and what the jobs print."""
ASK = 10.0
"""Seconds between two questions to SLURM, which serves many."""
ENDED = {
    "BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED", "REVOKED",
    "TIMEOUT",
}  # fmt: skip
"""The states of jobs that do not run any more."""
PROGRAM = [sys.executable, "-P", "-m", "codecl"]
SCRIPT = """\
#!/bin/bash
#SBATCH --job-name=codecl
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --signal=B:TERM@60

# SLURM is about to stop the job: the run saves and ends. The job does not: one that ends by itself is not requeued.
stop() {{
    kill -TERM "$run"
    wait "$run"
    sleep 600
    exit 130
}}
trap stop TERM

case "$SLURM_ARRAY_TASK_ID" in
{cases}
esac
run=$!
wait "$run"
"""


class SlurmArray:
    """The runs of a job array. Where a command like this one was cut off, its jobs are found again and followed."""

    def __init__(
        self,
        root: Path,
        accept: Sequence[str] = (),
        track: Sequence[str] = (),
        tell: Callable[[str], None] = lambda text: None,
    ) -> None:
        if shutil.which("sbatch") is None:
            raise UsageError(
                "--on slurm needs the command sbatch, which is not found here: give it on a machine that submits jobs, "
                "or print commands for another scheduler with --prepare."
            )
        self.root, self.accept, self.track, self.tell = root.resolve(), accept, track, tell
        self.stopping = threading.Event()
        self.folder = Path(FOLDER)
        self._jobs: dict[Path, str] = {}
        self._logs: dict[Path, Tail] = {}
        self._states: dict[str, str] = {}
        self._asked, self._last = 0, float("-inf")
        self._asking = threading.Lock()

    def begin(self, out: Path, runs: Mapping[Path, int], jobs: int) -> None:
        """Submit the runs that no job is at work on."""
        self.folder = out.resolve() / FOLDER
        wanted = {path.resolve(): threads for path, threads in runs.items()}
        self._logs = {path: Tail(path / LOG) for path in wanted}
        self._find_again(wanted)
        if found := len(self._jobs):
            self.tell(f"{found} runs are SLURM's already and are followed. Ctrl-C cancels them.")
        if new := {path: threads for path, threads in wanted.items() if path not in self._jobs}:
            number = self._submit(new, jobs)
            self._jobs |= {path: f"{number}_{i}" for i, path in enumerate(new, 1)}
            self.tell(
                f"submitted to SLURM as job {number}, {len(new)} runs, which print to {self.folder}/{number}_N.log. "
                "Ctrl-C cancels them."
            )

    def run(self, path: Path, threads: int, on_event: Callable[[Event], None]) -> str:
        job, log, ended = self._jobs[path.resolve()], self._logs[path.resolve()], 0
        while not self.stopping.wait(LOOK):
            finished = (path / RESULT).exists()  # looked at first: the log is whole by then
            for event in log.new():
                on_event(event)
            if finished:
                return ""
            state, asked = self._state(job)
            if state not in ENDED:
                ended = 0
            elif not ended:
                ended = asked
            elif asked > ended:  # and was before: it is not between two turns, and its files have arrived
                return self._why(job, state)
        return f"SLURM job {job} was cancelled"

    def stop(self) -> None:
        self.stopping.set()
        if self._jobs:
            _ask("scancel", *self._jobs.values())

    # Private.

    def _submit(self, runs: Mapping[Path, int], jobs: int) -> str:
        """Submit one array; its number."""
        cases = [
            f"{i}) OMP_NUM_THREADS={threads} "
            f"{shlex.join([*PROGRAM, *command(path, self.root, self.accept, self.track)])} & ;;"
            for i, (path, threads) in enumerate(runs.items(), 1)
        ]
        self.folder.mkdir(parents=True, exist_ok=True)
        script = self.folder / "array.sbatch"
        write_atomically(script, SCRIPT.format(cases="\n".join(cases)))
        array = f"1-{len(runs)}" + f"%{jobs}" * (jobs < len(runs))
        printed = str(self.folder).replace("%", "%%") + "/%A_%a.log"
        asked = _ask(
            "sbatch", "--parsable", f"--array={array}", f"--cpus-per-task={max(runs.values())}",
            f"--output={printed}", f"--chdir={os.getcwd()}", str(script),
        )  # fmt: skip
        if asked.returncode != 0:
            raise UsageError(f"sbatch does not take the jobs: {_last_line(asked.stderr) or 'without a word'}")
        number = asked.stdout.strip().partition(";")[0]  # a cluster's name may follow
        write_atomically(self._record(number), "".join(f"{path}\n" for path in runs))
        return number

    def _record(self, number: str) -> Path:
        """The file that says which runs an array has, one a line."""
        return self.folder / f"{number}.runs"

    def _find_again(self, wanted: Mapping[Path, int]) -> None:
        """The jobs of earlier commands that are still at work on ``wanted``."""
        records = {file.stem: file.read_text().splitlines() for file in self.folder.glob("*.runs")}
        if records and not self._ask_states():
            raise UsageError("squeue does not say which jobs are under way: try again when SLURM answers.")
        for number, paths in records.items():
            jobs = {Path(path): f"{number}_{i}" for i, path in enumerate(paths, 1)}
            going = {path: job for path, job in jobs.items() if self._states.get(job, "COMPLETED") not in ENDED}
            self._jobs |= {path: job for path, job in going.items() if path in wanted}
            if not going:
                self._record(number).unlink()

    def _state(self, job: str) -> tuple[str, int]:
        """What SLURM last said of a job, and how often it was asked by then."""
        with self._asking:
            if time.monotonic() - self._last >= ASK:
                self._ask_states()
            return self._states.get(job, "COMPLETED" if self._asked else "PENDING"), self._asked

    def _ask_states(self) -> bool:
        """Ask for the states of all jobs of this user; False where SLURM does not answer, which tells nothing."""
        self._last = time.monotonic()
        asked = _ask("squeue", "--me", "--array", "--noheader", "--states=all", "--format=%F_%K %T")
        if asked.returncode != 0:
            return False
        self._states = dict(line.split(maxsplit=1) for line in asked.stdout.splitlines() if " " in line.strip())
        self._asked += 1
        return True

    def _why(self, job: str, state: str) -> str:
        if job not in self._states:  # forgotten by squeue, and known to the accounting if there is one
            asked = _ask("sacct", f"--jobs={job}", "--allocations", "--noheader", "--parsable2", "--format=State")
            state = _last_line(asked.stdout) or "ended"
        printed = self.folder / f"{job}.log"
        said = _last_line(printed.read_text(errors="replace")) if printed.exists() else ""
        return f"SLURM job {job} {state.lower()}: {said or f'it says nothing in {printed}'}"


def _ask(*words: str) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(words, capture_output=True, text=True, check=False)
    except OSError as error:  # there is no such command
        return subprocess.CompletedProcess(words, 127, "", str(error))


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else ""

"""The process of an attempt: a fork of this one, which has loaded everything, or one that begins from nothing."""

import gc
import io
import json
import os
import subprocess
import sys
import traceback
import warnings
from contextlib import redirect_stderr, redirect_stdout

import torch

from codecl.cli.main import main
from tests.runs.running import become
from tests.soak.faults import Fault, install


def prepare(*runs):
    """Do once what every run would do, such as importing torch, so that a fork costs no more than its run.

    Args:
        *runs: Arguments of commands that are run here first. What Python learned about the code on the way serves all
            forks; that they end as new processes do is tested.
    """
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # that small layers are full
    traceback.format_stack = lambda *_: []  # every seeding notes where it came from: a third of the time of a run
    for arguments in runs:
        with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()) as said:
            if main(arguments) != 0:
                raise SystemExit(said.getvalue())
    gc.collect()
    gc.freeze()  # the collector of a fork does not touch, and so does not copy, what was loaded here


def forked(job):
    """Exit code, or minus the signal, of the command in a fork of this process."""
    if (child := os.fork()) == 0:
        try:
            be(job)
        finally:
            os._exit(99)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def executed(job):
    """The same in a new Python, as a person starts it."""
    line = [sys.executable, "-W", "ignore", "-m", "tests.soak.process", json.dumps(job)]
    return subprocess.run(line, env=os.environ | {"OMP_NUM_THREADS": "1"}).returncode


def be(job):
    """Be the command of ``job``, with its fault. Does not return."""
    trace = os.open(job["trace"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    install(job["path"], Fault(**job["fault"]) if job["fault"] else None, trace)
    become({"run": job["run"], "out": job["out"], "err": job["err"], "die": None})


if __name__ == "__main__":
    be(json.loads(sys.argv[1]))

"""A SLURM of one machine for tests: ``sbatch``, ``squeue``, ``sacct`` and ``scancel``, whose jobs are real processes.

Jobs are files below ``$TEST_SLURM``: ``JOB.state``, ``JOB.pid`` of the batch script, ``calls`` with all that was asked.
``sbatch.refuses`` and ``squeue.down`` there hold what the commands are to say in place of doing their work.
"""

import os
import re
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

TERMINATE = 3.0
"""Seconds that a cancelled job has to end by itself."""


def install(folder, monkeypatch):
    """Put the commands on the PATH; the directory of the jobs."""
    jobs, commands = folder / "jobs", folder / "commands"
    jobs.mkdir()
    commands.mkdir()
    for name in ("sbatch", "squeue", "sacct", "scancel"):
        file = commands / name
        file.write_text(f'#!/bin/sh\nexec "{sys.executable}" -I -S "{__file__}" {name} "$@"\n')
        file.chmod(0o755)
    monkeypatch.setenv("PATH", str(commands), prepend=os.pathsep)
    monkeypatch.setenv("TEST_SLURM", str(jobs))
    return jobs


def wait_until(condition, seconds=120):
    for _ in range(seconds * 20):
        if condition():
            return
        time.sleep(0.05)
    raise AssertionError("it did not happen in time")


def sbatch(jobs, options, script):
    array = re.fullmatch(r"1-(\d+)(?:%(\d+))?", options["array"])
    count, together = int(array[1]), int(array[2] or array[1])
    number = 1 + max((int(file.name.partition("_")[0]) for file in jobs.glob("*_1.state")), default=100)
    names = [f"{number}_{i}" for i in range(1, count + 1)]
    for name in names:
        (jobs / f"{name}.state").write_text("PENDING")
    text = Path(script).read_text()
    (jobs / f"{number}.sh").write_text(text)
    print(f"{number};here", flush=True)
    if os.fork():
        return
    os.setsid()
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nowhere, stream)
    with ThreadPoolExecutor(together) as pool:
        list(pool.map(lambda name: work(jobs, name, text, options), names))
    os._exit(0)


def work(jobs, name, text, options):
    """One job, from its start to its end; killed, it is requeued."""
    number, _, index = name.partition("_")
    output = options["output"].replace("%A", number).replace("%a", index).replace("%%", "%")
    cancelled, code = jobs / f"{name}.cancelled", 0
    while not cancelled.exists():
        with open(output, "a") as printed:
            process = subprocess.Popen(
                ["bash", str(jobs / f"{number}.sh")], cwd=options["chdir"], start_new_session=True,
                env=os.environ | {"SLURM_ARRAY_TASK_ID": index}, stdout=printed, stderr=subprocess.STDOUT,
            )  # fmt: skip
        (jobs / f"{name}.pid").write_text(str(process.pid))
        (jobs / f"{name}.state").write_text("RUNNING")
        code = process.wait()
        if code != -signal.SIGKILL or "#SBATCH --requeue" not in text:
            break
    state = "CANCELLED" if cancelled.exists() else "FAILED" if code else "COMPLETED"
    (jobs / f"{name}.state").write_text(state)


def squeue(jobs, options):
    for file in sorted(jobs.glob("*.state")):
        print(file.stem, file.read_text())


def sacct(jobs, options):
    file = jobs / f"{options['jobs']}.state.forgotten"
    print(file.read_text() if file.exists() else "")


def scancel(jobs, names):
    for name in names:
        (jobs / f"{name}.cancelled").touch()
        if (jobs / f"{name}.state").read_text() == "RUNNING":
            group = int((jobs / f"{name}.pid").read_text())
            os.killpg(group, signal.SIGTERM)
            if os.fork() == 0:
                time.sleep(TERMINATE)
                if (jobs / f"{name}.state").read_text() == "RUNNING":
                    os.killpg(group, signal.SIGKILL)
                os._exit(0)


def main(command, *words):
    jobs = Path(os.environ["TEST_SLURM"])
    with open(jobs / "calls", "a") as calls:
        calls.write(" ".join([command, *words]) + "\n")
    for fault in (jobs / f"{command}.refuses", jobs / f"{command}.down"):
        if fault.exists():
            sys.exit(fault.read_text())
    options = dict(word[2:].partition("=")[::2] for word in words if word.startswith("--"))
    plain = [word for word in words if not word.startswith("--")]
    if command == "sbatch":
        sbatch(jobs, options, *plain)
    elif command == "scancel":
        scancel(jobs, plain)
    else:
        {"squeue": squeue, "sacct": sacct}[command](jobs, options)


if __name__ == "__main__":
    main(*sys.argv[1:])

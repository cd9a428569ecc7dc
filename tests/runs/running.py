"""Running the command: in this process, and in real processes that can be killed.

``Launcher`` starts a Python that has imported codecl once and forks for every command, so that a process to kill
costs milliseconds and not the seconds that importing torch takes.
"""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import torch

from codecl.cli.main import main
from codecl.runs.records import Result
from codecl.training import checkpoint

SMALL = ("--tasks", "2", "--epochs", "2", "--set", "batch_size=100")


def codecl(capsys, *arguments):
    """Exit code, standard output and standard error of a command run in this process."""
    capsys.readouterr()
    try:
        code = main([str(argument) for argument in arguments])
    except SystemExit as left:
        code = left.code
    said = capsys.readouterr()
    return code, said.out, said.err


def result_of(path):
    return json.loads((Path(path) / "result.json").read_text())


def make_result(method, seed, accuracy, memory=0, seconds=1.0):
    """The result of a run of two tasks with this accuracy matrix."""
    return Result(
        method=method, benchmark="b", preset="paper", seed=seed, data="official", switches={}, tasks=2,
        accuracy=accuracy, epochs=[1, 1], seconds={"train": seconds, "between_tasks": 1.0, "evaluate": 0.5},
        bytes={"memory": memory, "per_task": 0}, threads=1, device="cpu", training={"epochs": 1, "lr": 0.1},
        settings={}, versions={},
    )  # fmt: skip


def log_of(path):
    """The events of a log as they are written, without their checksums."""
    events = [json.loads(line) for line in (Path(path) / "log.jsonl").read_text().splitlines()]
    return [{key: value for key, value in event.items() if key != "crc"} for event in events]


def epochs_of(path):
    """The epoch events of a log, without the time they took."""
    return [{k: v for k, v in e.items() if k != "seconds"} for e in log_of(path) if e["event"] == "epoch"]


def epochs_logged(path):
    """How many epochs the log of a run has, which may end in a torn line or not be there yet."""
    log = Path(path) / "log.jsonl"
    lines = log.read_text().splitlines(keepends=True) if log.exists() else []
    return sum('"event": "epoch"' in line and line.endswith("\n") for line in lines)


def difference_of_runs(path, whole):
    """In what a finished run differs from another of the same recipe, but for time; empty if in nothing."""
    ours, theirs = result_of(path), result_of(whole)
    for name in (ours | theirs).keys() - {"seconds"}:
        if ours.get(name) != theirs.get(name):
            return f"{name} of the result: {ours.get(name)}, not {theirs.get(name)}"
    logs = [[e | {"seconds": 0} for e in log_of(p) if e["event"] in ("epoch", "task")] for p in (path, whole)]
    if logs[0] != logs[1]:
        return "the epochs or tasks of the log"
    states = [checkpoint.load(Path(p) / "final.ckpt") for p in (path, whole)]
    if not same_tree(*states):
        return "the final state"
    left, expected = ({file.name for file in Path(p).iterdir()} for p in (path, whole))
    return f"the files that are left: {sorted(left ^ expected)}" if left != expected else ""


def same_tree(ours, theirs):
    """Whether two states hold the same bits."""
    if isinstance(theirs, torch.Tensor):
        return torch.equal(ours, theirs)
    if isinstance(theirs, dict):
        return ours.keys() == theirs.keys() and all(same_tree(ours[key], theirs[key]) for key in theirs)
    if isinstance(theirs, list | tuple):
        return len(ours) == len(theirs) and all(map(same_tree, ours, theirs))
    return ours == theirs


def contents(path):
    """Every file below a directory, with its bytes and its time."""
    files = [file for file in Path(path).rglob("*") if file.is_file()]
    return {str(file.relative_to(path)): (file.read_bytes(), file.stat().st_mtime_ns) for file in files}


class Process:
    """A command under way."""

    def __init__(self, launcher, pid, out, err):
        self.launcher, self.pid, self.out, self.err = launcher, pid, out, err

    def kill(self, sign=signal.SIGKILL):
        os.kill(self.pid, sign)

    def until(self, came, seconds=300):
        """Wait for something to come; a command that ended before it would be waited for without end."""
        last = time.monotonic() + seconds
        while not came():
            assert time.monotonic() < last, self.err.read_text()
            time.sleep(0.001)

    def wait(self):
        """The exit code; minus the number of the signal that ended it."""
        return self.launcher.ask({"wait": self.pid})["code"]


class Launcher:
    """Starts ``codecl`` in forks of a Python that has it loaded."""

    def __init__(self, directory):
        self.directory, self.count = directory, 0
        self.python = subprocess.Popen(
            [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=directory
        )

    def start(self, *arguments, die=None):
        """Start a command; ``die=(what, n)`` makes it kill itself at the ``n``-th time it comes to ``what``."""
        self.count += 1
        out, err = (self.directory / f"{self.count}.{name}" for name in ("out", "err"))
        asked = {"run": [str(a) for a in arguments], "out": str(out), "err": str(err), "die": die}
        return Process(self, self.ask(asked)["pid"], out, err)

    def run(self, *arguments, die=None):
        return self.start(*arguments, die=die).wait()

    def ask(self, request):
        self.python.stdin.write(json.dumps(request) + "\n")
        self.python.stdin.flush()
        return json.loads(self.python.stdout.readline())

    def close(self):
        self.python.stdin.close()
        self.python.stdout.close()
        self.python.wait()


@contextmanager
def launching(directory):
    launcher = Launcher(directory)
    try:
        yield launcher
    finally:
        launcher.close()


def serve():
    """The other side of ``Launcher``."""
    import sklearn.datasets  # noqa: F401  (what a run would load takes two seconds)
    import torch._dynamo  # noqa: F401

    for line in sys.stdin:
        request = json.loads(line)
        if "wait" in request:
            answer = {"code": os.waitstatus_to_exitcode(os.waitpid(request["wait"], 0)[1])}
        elif (pid := os.fork()) == 0:
            become(request)
        else:
            answer = {"pid": pid}
        print(json.dumps(answer), flush=True)


def become(request):
    """Be the command that was asked for."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a test run in the background inherits it ignored
    code = 99
    try:
        for stream, name in ((1, "out"), (2, "err")):
            os.dup2(os.open(request[name], os.O_WRONLY | os.O_CREAT), stream)
        sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")
        if request["die"]:
            arrange_death(*request["die"])
        code = main(request["run"])
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code)


def arrange_death(what, times):
    """SIGKILL to this process at the ``times``-th file synced or renamed, or half of a checkpoint written."""
    from codecl.training import checkpoint

    left = [times]

    def come():
        left[0] -= 1
        if left[0] == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    if what in ("fsync", "replace"):
        real = getattr(os, what)

        def counted(*arguments):
            come()
            return real(*arguments)

        setattr(os, what, counted)
    else:
        whole = checkpoint.write_atomically

        def in_two_parts(path, content):
            def write(file):
                with memoryview(content) as data:
                    file.write(data[: len(data) // 2])
                    file.flush()
                    come()
                    file.write(data[len(data) // 2 :])

            whole(path, write)

        checkpoint.write_atomically = in_two_parts


if __name__ == "__main__":
    serve()

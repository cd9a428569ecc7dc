"""A small fixed part of the soak, that it finds what is wrong, and that its forks are like new processes."""

import subprocess
import sys
from pathlib import Path

import pytest

from codecl.training import checkpoint
from tests.runs.running import difference_of_runs, log_of, same_tree
from tests.soak.faults import Fault
from tests.soak.process import executed, forked, prepare
from tests.soak.trials import Soak

pytestmark = pytest.mark.slow

HALF_WRITTEN = """
import runpy, sys
from codecl.training import checkpoint
checkpoint.write_atomically = lambda path, content: path.write_bytes(content)
checkpoint.load = lambda path: checkpoint.torch.load(path, weights_only=True)
sys.argv = ["soak", *sys.argv[1:]]
runpy.run_module("tests.soak", run_name="__main__")
"""


def soak(*arguments, code=("-m", "tests.soak")):
    line = [sys.executable, *code, *arguments, "--seed", "0"]
    return subprocess.run(line, capture_output=True, text=True)


def test_no_difference_after_kills_and_faults():
    done = soak("--methods", "code-cl,hat,er", "--trials", "6")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("soak: seed 0\n")
    assert " 6 runs finished, 0 differences; first kills at 6 of the " in done.stdout.splitlines()[-1]


def test_it_is_over_after_so_many_kills():
    done = soak("--methods", "finetune", "--kills", "1")
    assert done.returncode == 0, done.stdout + done.stderr
    assert " 1 runs finished, 0 differences; first kills at 1 of the " in done.stdout.splitlines()[-1]


def test_checkpoints_that_are_written_in_place_are_found_out_and_the_trial_is_named():
    done = soak("--methods", "finetune", "--trials", "12", code=("-c", HALF_WRITTEN))
    assert done.returncode == 1, done.stdout + done.stderr
    assert "again: python -m tests.soak --seed 0 --first " in done.stdout


def test_a_fork_does_and_leaves_what_a_new_process_does():
    line = [sys.executable, "-m", "tests.soak.test_soak"]
    done = subprocess.run(line, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "the same 3 times\n"), done.stdout + done.stderr


def compare_forks_with_new_processes(place):
    """One run that is killed, meets an error and then ends, both ways: what each attempt did, said and left."""
    prepare()
    soak = Soak(0, place, ("code-cl",))
    paths = {start: place / start.__name__ for start in (forked, executed)}
    calls = soak.calls["code-cl"]
    middle = calls.index("write epoch.ckpt.new", calls.index("replace task-001.ckpt.new")) + 1
    for fault, code in ((Fault("torn", middle), -9), (Fault("ENOSPC", 60, lasting=True), 1), (None, 0)):
        found = []
        for soak.start, path in paths.items():
            attempt = soak.attempt("code-cl", path, fault, by_resume=True)
            found.append((attempt, soak.said().replace(str(path), "DIR")))
            assert attempt[0] == code, soak.said()
        assert found[0] == found[1]
        left = [contents(path) for path in paths.values()]
        assert same_tree(*left), [sorted(files) for files in left]
    assert [difference_of_runs(path, soak.whole("code-cl")) for path in paths.values()] == ["", ""]


def contents(path):
    """What the files of a run say, but for the time it took."""
    readers = {".ckpt": lambda file: checkpoint.load(file) | {"seconds": 0}, ".toml": Path.read_text}
    return {
        file.name: [event | {"seconds": 0} for event in log_of(path)]
        if file.name == "log.jsonl"
        else readers.get(file.suffix, lambda _: None)(file)
        for file in path.iterdir()
    }


if __name__ == "__main__":
    import tempfile

    with tempfile.TemporaryDirectory() as directory:
        compare_forks_with_new_processes(Path(directory))
    print("the same 3 times")

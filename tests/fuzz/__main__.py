"""``python -m tests.fuzz --seconds 60``: past findings first, then mutations; 1 if anything escapes.

With ``--atheris`` and one ``--target``, libFuzzer draws the cases, guided by what of codecl they reach.
"""

import argparse
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
import warnings
from collections import Counter
from contextlib import nullcontext
from pathlib import Path

import torch

from tests.fuzz.corpus import findings
from tests.fuzz.mutate import mutate

CPU_SECONDS = 20
"""Of one case; the slowest takes a small part of it."""
MEMORY = 2 << 30
"""Beyond what is in use at the start."""


class TooLong(BaseException):
    """A case that takes more than ``CPU_SECONDS``."""


def tried(target, data, place):
    """What escapes when a target takes ``data``; None if nothing does."""
    folder = place / "case"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    signal.setitimer(signal.ITIMER_VIRTUAL, CPU_SECONDS)
    try:
        target.take(data, folder)
    except (Exception, TooLong) as error:
        return error
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
    return None


def fuzz(targets, past, place, seed, seconds, cases=None):
    """How many cases each target had, and the files that hold those that something escaped from."""
    counts, found = Counter(), []

    def see(name, data):
        counts[name] += 1
        if (error := tried(targets[name], data, place)) is not None:
            kept = place / f"finding-{len(found)}"
            kept.write_bytes(data)
            found.append(kept)
            said = f"{type(error).__name__}: {error}"
            print(f"{name}: {said:.300}\n  again: python -m tests.fuzz --target '{name}' --case {kept}", flush=True)

    for name, known in past.items():
        for data in known.values() if name in targets else ():
            see(name, data)
    end, number = time.monotonic() + seconds, 0
    while time.monotonic() < end and (cases is None or number < cases):
        for name, target in targets.items():
            draw = random.Random(f"{seed}/{name}/{number}")
            see(name, mutate(draw, draw.choice(target.seeds), target.kind))
        number += 1
    return counts, found


def guided(target, place, seed, seconds):
    """Cases by libFuzzer; it ends this process."""
    import atheris

    def one(data):
        if (error := tried(target, data, place)) is not None:
            raise error

    seeds = place / "seeds"
    seeds.mkdir()
    for i, data in enumerate(target.seeds):
        (seeds / str(i)).write_bytes(data)
    atheris.Setup([sys.argv[0], f"-max_total_time={seconds:.0f}", f"-seed={seed}", str(seeds)], one)
    atheris.Fuzz()


def instrumented(wanted):
    """Within it, what is imported of codecl tells libFuzzer where it comes to."""
    if not wanted:
        return nullcontext()
    import atheris

    return atheris.instrument_imports(include=["codecl"])


def bounded():
    """Bounds on the time of a case, and on the memory of this process."""

    def too_long(*_):
        raise TooLong(f"more than {CPU_SECONDS} s")

    signal.signal(signal.SIGVTALRM, too_long)
    in_use = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (in_use + MEMORY, resource.getrlimit(resource.RLIMIT_AS)[1]))


def main():
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--cases", type=int, help="of each target, at most")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="printed; the same seed has the same cases")
    parser.add_argument("--target", help="those whose names begin so")
    parser.add_argument("--case", type=Path, help="a file that the target is to take")
    parser.add_argument("--atheris", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    print(f"fuzz: seed {options.seed}", flush=True)
    with instrumented(options.atheris):
        from tests.fuzz.targets import make_targets
    place = Path(tempfile.mkdtemp(prefix="codecl-fuzz-"))
    targets = make_targets(place)
    past = findings(targets)
    if options.target is not None:
        targets = {name: target for name, target in targets.items() if name.startswith(options.target)}
    bounded()
    if options.case is not None:
        for target in targets.values():
            target.take(options.case.read_bytes(), place)
        return 0
    if options.atheris:
        guided(next(iter(targets.values())), place, options.seed, options.seconds)
    counts, found = fuzz(targets, past, place, options.seed, options.seconds, options.cases)
    if not found:
        shutil.rmtree(place)
    print(", ".join(f"{name} {count}" for name, count in counts.items()))
    print(f"fuzz: seed {options.seed}: {counts.total()} cases, {len(targets)} targets, {len(found)} findings")
    return 1 if found else 0


if __name__ == "__main__":
    raise SystemExit(main())

"""``python -m tests.soak --minutes 30``: as many trials as fit, and a line that sums them up; 1 if any failed."""

import argparse
import math
import shutil
import tempfile
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

from codecl.methods import METHODS
from tests.soak.faults import KILLS
from tests.soak.process import executed, forked, prepare
from tests.soak.trials import Soak, command


def main():
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--kills", type=float, default=math.inf, help="enough of them")
    parser.add_argument("--trials", type=int, help="at most so many")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="printed; the same seed has the same faults")
    parser.add_argument("--first", type=int, default=0, help="the number of the first trial")
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--new", action="store_true", help="start a new Python for every attempt instead of a fork")
    options = parser.parse_args()
    print(f"soak: seed {options.seed}", flush=True)
    place = Path(tempfile.mkdtemp(prefix="codecl-soak-"))
    methods = tuple(options.methods.split(","))
    prepare(*(command(method, place / "first" / method) for method in methods))
    soak, met = Soak(options.seed, place, methods, executed if options.new else forked), Counter()
    failed, finished, kills = [], 0, 0
    end, number = time.monotonic() + 60 * options.minutes, options.first
    last = math.inf if options.trials is None else options.first + options.trials
    with suppress(KeyboardInterrupt):  # it says how far it came
        while time.monotonic() < end and number < last and kills < options.kills:
            outcome = soak.trial(number)
            met.update(kind for kind, _ in outcome.met)
            finished, kills = finished + outcome.finished, sum(met[kind] for kind in KILLS)
            if outcome.fault:
                failed.append(number)
                again = f"--seed {options.seed} --first {number} --trials 1 --methods {options.methods}"
                print(f"trial {number}: {outcome.fault}\n  after {outcome.met}", flush=True)
                print(f"  again: python -m tests.soak {again}", flush=True)
            number += 1
    print(f"faults: {', '.join(f'{kind} {count}' for kind, count in met.most_common())}")
    calls = len(soak.points)
    print(
        f"soak: seed {options.seed}: {kills} kills, {met.total() - kills} other faults, {finished} runs finished, "
        f"{len(failed)} differences; first kills at {min(number - options.first, calls)} of the {calls} file-system "
        f"calls of {len(methods)} methods"
    )
    if not failed:
        shutil.rmtree(place)
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())

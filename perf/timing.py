"""Timing several things in turn, round after round, so that noise meets them alike."""

import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import torch


def in_turn(
    cases: Mapping[str, Callable[[], object]],
    repeat: int,
    warm_up: int = 3,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, list[float]]:
    """Seconds of each case in each round; within a round the cases run one after the other."""
    seconds: dict[str, list[float]] = {name: [] for name in cases}
    for round_ in range(warm_up + repeat):
        for name, run in cases.items():
            begin = clock()
            run()
            if round_ >= warm_up:
                seconds[name].append(clock() - begin)
    return seconds


def ratio(seconds: Mapping[str, list[float]], name: str, base: str) -> float:
    """The median over rounds of the case's time over the base's in the same round."""
    return statistics.median(a / b for a, b in zip(seconds[name], seconds[base], strict=True))


def cpu_seconds(run: Callable[[], object]) -> float:
    """The CPU time of long work on one thread, which does not depend on what else the machine is doing."""
    with one_thread():
        begin = time.process_time()
        run()
        return time.process_time() - begin


@contextmanager
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)

"""The work between two tasks, CPU time and peak memory, over the paper's formulas on dense matrices; and its growth."""

import multiprocessing
import resource
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

from codecl import CodeCL, Conceptor, MultiHead
from codecl.attach import capture_moments
from codecl.networks import AlexNet
from perf.timing import cpu_seconds
from tests.algebra import dense

APERTURE, SAMPLES = 6.0, 125


def measure_alexnet() -> list[dict[str, object]]:
    """From the end of task 2 to the beginning of task 3: capture, OR, AND, projections."""
    model = MultiHead(AlexNet(), AlexNet.features, 10)
    method = CodeCL(model, aperture=APERTURE)
    rows: list[dict[str, object]] = []
    C: dict[str, Tensor] = {}
    for t in range(2):
        learned, following = [_images(2 * t)], [_images(2 * t + 1)]
        if t == 0:
            method.begin_task(t)
        seen, new = _correlations(method, learned), _correlations(method, following)
        # The capture is the same work for both; what differs is what is done with the rows.
        theirs = cpu_seconds(partial(_between_dense, C, seen, new)) + cpu_seconds(
            partial(_correlations, method, learned + following)
        )
        ours = cpu_seconds(partial(method.end_task, learned)) + cpu_seconds(
            partial(method.begin_task, t + 1, following)
        )
        if t > 0:
            rows.append({"between tasks": f"{t + 1} and {t + 2}", "seconds": round(ours, 2), "dense": round(theirs, 2)})
            rows[-1]["times faster"] = theirs / ours
    return rows


def measure_tasks(tasks: int = 10) -> list[dict[str, object]]:
    """How time and stored bytes grow with the number of tasks on AlexNet; dense, they are the sum of d² throughout."""
    model = MultiHead(AlexNet(), AlexNet.features, 10)
    method = CodeCL(model, aperture=APERTURE)
    full = sum(g * d * d * 8 for g, _, d in (w.shape for w in method.weights.values()))
    rows: list[dict[str, object]] = []
    for t in range(tasks):
        begin = cpu_seconds(partial(method.begin_task, t, [_images(2 * t)]))
        end = cpu_seconds(partial(method.end_task, [_images(2 * t + 1)]))
        size = method.bytes()
        memory = sum(C.factor.nbytes for of_layer in method.memory.values() for C in of_layer)
        ranks = "/".join(str(of_layer[0].rank) for of_layer in method.memory.values())
        rows.append({"task": t + 1, "begin s": round(begin, 2), "end s": round(end, 2), "ranks": ranks})
        rows[-1] |= {"stored MB": round(size["memory"] / 1e6, 1), "C over dense C": memory / full}
    return rows


def measure_width(largest: int, dense_up_to: int = 2048) -> list[dict[str, object]]:
    """One layer of d inputs, 125 rows a task: OR and AND with a memory of five tasks, in a process of its own each."""
    rows: list[dict[str, object]] = []
    for d in (512, 1024, 2048, 4096, 8192):
        if d > largest:
            break
        seconds, peak, stored = _in_own_process(_factored, d)
        row: dict[str, object] = {
            "d": d,
            "seconds": round(seconds, 3),
            "peak MB": round(peak / 1e6),
            "stored MB": round(stored / 1e6, 1),
        }
        if d <= dense_up_to:
            dense_seconds, dense_peak, dense_stored = _in_own_process(_dense, d)
            row |= {"times faster": dense_seconds / seconds, "peak over dense": peak / dense_peak}
            row |= {"stored over dense": stored / dense_stored}
        rows.append(row)
    return rows


def _images(seed: int) -> Tensor:
    """Random images with the smoothness of real ones."""
    generator = torch.Generator().manual_seed(seed)
    coarse = torch.randn(SAMPLES, 3, 8, 8, generator=generator)
    fine = torch.randn(SAMPLES, 3, 32, 32, generator=generator)
    return nn.functional.interpolate(coarse, size=32, mode="bilinear") + 0.1 * fine


def _correlations(method: CodeCL, batches: list[Tensor]) -> dict[str, Tensor]:
    """``R = XᵀX/n`` of every layer: what the dense formulas start from."""
    seen = capture_moments(method.model, method.weights, batches)
    return {name: m[0]._as_gram() / m[0].count for name, m in seen.items()}


def _between_dense(C: dict[str, Tensor], seen: dict[str, Tensor], new: dict[str, Tensor]) -> None:
    """Lines 22–26 and 4–7 of Algorithm 1 with the printed formulas, clamped as the published code does it."""
    for name, R in seen.items():
        post = _conceptor_of(R)
        C[name] = _clamped(dense.disjoin(C[name], post)) if name in C else post
    for name, R in new.items():
        overlap = _clamped(dense.conjoin(_conceptor_of(R), C[name]))
        if dense.capacity(overlap) / dense.capacity(C[name]) > 0.5:
            dense.decompose(overlap)


def _conceptor_of(R: Tensor) -> Tensor:
    return _clamped(R @ torch.linalg.inv(R + APERTURE**-2 * dense.identity(len(R))))


def _clamped(C: Tensor) -> Tensor:
    """Without this the pseudo-inverses meet singular values that are neither there nor gone."""
    U, s = dense.decompose((C + C.mT) / 2)
    return (U * s.clamp(1e-8, 0.9999999)) @ U.mT


def _layer_rows(d: int) -> Iterator[Tensor]:
    generator = torch.Generator().manual_seed(d)
    while True:
        yield torch.randn(SAMPLES, d, generator=generator)


def _factored(d: int) -> tuple[Callable[[], object], int]:
    rows = _layer_rows(d)
    C = Conceptor.fit(next(rows), APERTURE)
    for _ in range(4):
        C = C | Conceptor.fit(next(rows), APERTURE)
    learned, following = next(rows), next(rows)

    def work() -> Conceptor:
        past = C | Conceptor.fit(learned, APERTURE)
        return past & Conceptor.fit(following, APERTURE)

    return work, C.factor.nbytes


def _dense(d: int) -> tuple[Callable[[], object], int]:
    rows = _layer_rows(d)
    past = torch.cat([next(rows) for _ in range(5)])
    C, learned, following = dense.fit(past, APERTURE), next(rows), next(rows)

    def work() -> Tensor:
        return dense.conjoin(dense.disjoin(C, dense.fit(learned, APERTURE)), dense.fit(following, APERTURE))

    return work, C.nbytes


def _measure(make: Callable[[int], tuple[Callable[[], object], int]], d: int, queue: object) -> None:
    work, stored = make(d)
    before = _peak()
    seconds = cpu_seconds(work)
    queue.put((seconds, max(_peak() - before, 1), stored))  # type: ignore[attr-defined]


def _peak() -> int:
    """The most memory this process ever held, in bytes."""
    status = Path("/proc/self/status")
    if status.exists():  # getrusage would count what the parent process held when it started this one
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _in_own_process(make: Callable[[int], tuple[Callable[[], object], int]], d: int) -> tuple[float, int, int]:
    """Peak memory can only be read for a whole process."""
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    process = context.Process(target=_measure, args=(make, d, queue))
    process.start()
    result: tuple[float, int, int] = queue.get()
    process.join()
    return result

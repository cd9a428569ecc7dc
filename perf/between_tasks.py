"""The work between two tasks, CPU time and peak memory, and how it grows."""

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


def measure_alexnet(tasks: int = 4) -> list[dict[str, object]]:
    """From the end of a task to the beginning of the next; the capture is what every method would do."""
    method = CodeCL(MultiHead(AlexNet(), AlexNet.features, 10), aperture=APERTURE)
    method.begin_task(0)
    rows: list[dict[str, object]] = []
    for t in range(tasks):
        learned, following = [smooth_images(2 * t)], [smooth_images(2 * t + 1)]
        capture = sum(cpu_seconds(partial(_capture, method, batches)) for batches in (learned, following))
        end = cpu_seconds(partial(method.end_task, learned))
        begin = cpu_seconds(partial(method.begin_task, t + 1, following))
        rows.append({"between tasks": f"{t + 1} and {t + 2}", "seconds": round(end + begin, 2)})
        rows[-1] |= {"end": round(end, 2), "begin": round(begin, 2), "of it capture": round(capture, 2)}
    return rows


def measure_tasks(tasks: int = 10) -> list[dict[str, object]]:
    """How time and stored bytes grow with the number of tasks on AlexNet; dense, they are the sum of d² throughout."""
    model = MultiHead(AlexNet(), AlexNet.features, 10)
    method = CodeCL(model, aperture=APERTURE)
    full = sum(g * d * d * 8 for g, _, d in (w.shape for w in method.weights.values()))
    rows: list[dict[str, object]] = []
    for t in range(tasks):
        begin = cpu_seconds(partial(method.begin_task, t, [smooth_images(2 * t)]))
        end = cpu_seconds(partial(method.end_task, [smooth_images(2 * t + 1)]))
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


def smooth_images(seed: int) -> Tensor:
    """Random images with the smoothness of real ones."""
    generator = torch.Generator().manual_seed(seed)
    coarse = torch.randn(SAMPLES, 3, 8, 8, generator=generator)
    fine = torch.randn(SAMPLES, 3, 32, 32, generator=generator)
    return nn.functional.interpolate(coarse, size=32, mode="bilinear") + 0.1 * fine


def _capture(method: CodeCL, batches: list[Tensor]) -> None:
    capture_moments(method.model, method.weights, batches)


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

"""``make bench``: prints ratios and writes them to ``perf/out/``."""

import argparse
import json
import platform
from collections.abc import Callable
from pathlib import Path

import torch

from codecl.allocator import keep_freed_memory
from perf import between_tasks, ddp, epoch, loader, methods, published, switch, training_step, wide

OUT = Path(__file__).parent / "out"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m perf", description=__doc__)
    parser.add_argument(
        "parts",
        nargs="*",
        metavar="PART",
        help="step, epoch, methods, vit, wide, ddp, loader, between, published, switch, tasks, width; all by default",
    )
    parser.add_argument("--repeat", type=int, default=20, help="rounds of the training step (default 20)")
    parser.add_argument("--largest", type=int, default=8192, help="the largest width d (default 8192)")
    options = parser.parse_args()
    known: dict[str, tuple[str, Callable[[], list[dict[str, object]]]]] = {
        "step": (
            "A training step over plain SGD, batch 64",
            lambda: training_step.measure(options.repeat),
        ),
        "epoch": (
            "AlexNet: an epoch of a task of Split CIFAR-100, CPU seconds on one thread",
            lambda: epoch.measure(max(1, options.repeat // 5)),
        ),
        "methods": (
            f"AlexNet in its fifth task: a step over plain SGD, batch 64, {torch.get_num_threads()} threads",
            lambda: methods.measure_alexnet(options.repeat),
        ),
        "vit": (
            f"ViT in its fifth task: a step over plain SGD, batch 64, {torch.get_num_threads()} threads",
            lambda: methods.measure_vit(options.repeat),
        ),
        "wide": (
            "Two Linear layers of width 4096 in their fifth task, batch 64",
            lambda: wide.measure(options.repeat),
        ),
        "ddp": (
            "AlexNet on several processes: a step over plain SGD, 32 inputs a process, one thread each",
            lambda: ddp.measure(options.repeat),
        ),
        "loader": ("A batch of images", lambda: loader.measure(options.repeat)),
        "between": (
            "AlexNet: the work between two tasks, 125 inputs, CPU seconds on one thread",
            between_tasks.measure_alexnet,
        ),
        "published": (
            "AlexNet: the published implementation's way of computing CODE-CL, CPU seconds on one thread",
            lambda: published.measure(options.repeat),
        ),
        "switch": (
            "A small network: showing a task, CPU milliseconds on one thread",
            lambda: switch.measure(options.repeat),
        ),
        "tasks": ("AlexNet: growth with the number of tasks, CPU seconds on one thread", between_tasks.measure_tasks),
        "width": (
            "One layer: growth with the width, CPU seconds on one thread",
            lambda: between_tasks.measure_width(options.largest),
        ),
    }
    if unknown := set(options.parts) - known.keys():
        parser.error(f"unknown part {sorted(unknown)}; the parts are {', '.join(known)}")
    keep_freed_memory()  # as ``codecl run`` does
    OUT.mkdir(exist_ok=True)
    for name in options.parts or known:
        title, measure = known[name]
        rows = measure()
        print(f"\n{title}\n{_table(rows)}", flush=True)
        record = {"title": title, "torch": torch.__version__, "threads": torch.get_num_threads()}
        record |= {"machine": platform.machine(), "rows": rows}
        (OUT / f"{name}.json").write_text(json.dumps(record, indent=1) + "\n")
    print(f"\nwritten to {OUT.relative_to(Path.cwd())}/")


def _table(rows: list[dict[str, object]]) -> str:
    columns = list(dict.fromkeys(key for row in rows for key in row))
    cells = [[_cell(row.get(column, "")) for column in columns] for row in rows]
    widths = [max(len(line[i]) for line in (columns, *cells)) for i in range(len(columns))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in (columns, *cells)
    )


def _cell(value: object) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    main()

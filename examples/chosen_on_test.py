"""Split CIFAR100 with the test part as the validation part: what it is worth to choose epochs on test data.

    codecl run --benchmark split-cifar100 --preset official --dry-run > recipe.toml
    # in recipe.toml: benchmark = "examples.chosen_on_test:CHOSEN_ON_TEST", and no [data]
    codecl run recipe.toml --trust

Early stopping keeps the epoch that does best on validation data. Here these are the test data, so that what comes out
is no result: it is too good by what was chosen, and more of that is lost as later tasks are learned. Beside an honest
run it shows how much of a published number could come from such a choice.
"""

from dataclasses import replace
from pathlib import Path

from codecl.benchmarks.cifar100 import split
from codecl.benchmarks.registry import BENCHMARKS, Benchmark
from codecl.training.stream import Stream


def stream(root: Path, seed: int) -> Stream:
    honest = split(root, seed)
    return Stream("chosen-on-test", [replace(task, validation=task.test) for task in honest.tasks], honest.data)


network = BENCHMARKS["split-cifar100"].network
CHOSEN_ON_TEST = Benchmark("Split CIFAR100, epochs chosen on test data", 10, stream, network)

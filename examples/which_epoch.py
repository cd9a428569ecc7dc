"""Which epoch early stopping keeps, and what another choice would be worth on test data.

    python examples/which_epoch.py --data-dir DIR --tasks 3 runs/which-epoch

CODE-CL learns Split CIFAR100 as its authors' code runs. Beside that, the test part of the task being learned is
measured after every epoch; nothing is chosen by it, and the run is the same to the last bit without it. Three epochs of
each task are then told apart: the one that was kept, the best on validation data; the last one; and the best on test
data, which is no result, but shows how much of a number could come from such a choice. The accuracies of all epochs are
in ``runs/which-epoch.csv``. Interrupted, the same command goes on.
"""

import argparse
import csv
from collections.abc import Callable
from pathlib import Path

from codecl.runs.events import EpochEvent, Event
from codecl.runs.recipe import Recipe, make_recipe
from codecl.runs.run import run
from codecl.runs.rundir import RunDirectory
from codecl.training.engine import Trainer

ASKED = {"benchmark": "split-cifar100", "preset": "official"}
COLUMNS = ("task", "epoch", "lr", "validation", "test")
Row = tuple[float, ...]
"""The values of ``COLUMNS``."""


def learn(recipe: Recipe, out: Path, root: Path) -> list[list[Row]]:
    """Run ``recipe`` in ``out``, and measure the test part of its task after every epoch: the epochs of each task."""
    table = out.with_name(out.name + ".csv")

    def watching(trainer: Trainer) -> Callable[[Event], None]:
        def observe(event: Event) -> None:
            if isinstance(event, EpochEvent):
                with trainer.method.task(event.task):
                    _, test = trainer.evaluate(trainer.stream.tasks[event.task].test)
                row = (event.task, event.epoch, event.lr, event.validation_accuracy, test)
                with table.open("a", newline="") as file:
                    csv.writer(file).writerow(row)
                print(*(f"{name} {value:g}" for name, value in zip(COLUMNS, row, strict=True)), sep="  ", flush=True)

        return observe

    out.parent.mkdir(parents=True, exist_ok=True)
    result = run(recipe, RunDirectory(out), root=root, watching=watching)
    with table.open(newline="") as file:
        rows = [tuple(map(float, row)) for row in csv.reader(file)]
    latest = {row[:2]: row for row in rows}  # an epoch that was cut off after it was measured is there twice
    return [[latest[t, epoch + 1] for epoch in range(epochs)] for t, epochs in enumerate(result.epochs)]


def choices(epochs: list[Row]) -> tuple[Row, Row, Row]:
    """The first epoch that is best on validation data, the last one, and the first that is best on test data."""
    return max(epochs, key=lambda row: row[3]), epochs[-1], max(epochs, key=lambda row: row[4])


def show(tasks: list[list[Row]]) -> None:
    print(f"\n{'':<6}{'best on validation data: kept':<34}{'the last epoch':<28}best on test data")
    print(f"{'task':<6}{'epoch':<7}{'lr':<9}{'valid.':<8}{'test':<10}{'epoch':<7}{'valid.':<8}{'test':<13}test")
    chosen = [choices(epochs) for epochs in tasks]
    for task, (kept, last, best) in enumerate(chosen, 1):
        first = f"{task:<6}{kept[1]:<7.0f}{kept[2]:<9.4g}{kept[3]:<8.2f}{kept[4]:<10.2f}"
        print(f"{first}{last[1]:<7.0f}{last[3]:<8.2f}{last[4]:<13.2f}{best[4]:.2f}")

    def mean(choice: int, column: int) -> float:
        return sum(rows[choice][column] for rows in chosen) / len(chosen)

    print(f"{'mean':<22}{mean(0, 3):<8.2f}{mean(0, 4):<17.2f}{mean(1, 3):<8.2f}{mean(1, 4):<13.2f}{mean(2, 4):.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description="which epoch early stopping keeps, and what that is worth")
    parser.add_argument("out", type=Path, help="the run directory")
    parser.add_argument("--data-dir", type=Path, default=Path("data"))
    parser.add_argument("--tasks", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--precision", default="float32")
    given = parser.parse_args()
    recipe = make_recipe(ASKED | {"tasks": given.tasks, "seed": given.seed}, {"precision": given.precision})
    show(learn(recipe, given.out, given.data_dir))


if __name__ == "__main__":
    main()

"""Run directories made by hand, for reports on them."""

import json
from pathlib import Path

from codecl.report.records import find_runs
from codecl.report.tables import analyse
from codecl.runs.recipe import make_recipe
from codecl.training import metrics

FIRST = [[80.0, None], [70.0, 90.0]]  # ACC 80, BWT −10, just after learning 80 and 90
SECOND = [[84.0, None], [82.0, 94.0]]  # ACC 88, BWT −2


def write_run(
    path: Path, method="gpm", accuracy=FIRST, *, seed=0, changes=None, log=(), recipe_only=False, result=None, **asked
):
    """A finished run with this accuracy matrix; ``changes`` to hyperparameters, ``result`` to its record."""
    asked = {"benchmark": "split-cifar100", "tasks": len(accuracy[0])} | asked
    epochs = asked.pop("epochs", None)
    data = asked.pop("kind", "official")
    recipe = make_recipe({"method": method, "seed": seed, **asked}, changes or {}, epochs)
    path.mkdir(parents=True)
    (path / "recipe.toml").write_text(recipe.to_toml())
    (path / "log.jsonl").write_text("".join(json.dumps(event) + "\n" for event in log))
    if recipe_only:
        return
    record = {
        "method": recipe.method,
        "benchmark": recipe.benchmark,
        "preset": recipe.preset,
        "seed": recipe.seed,
        "data": data,
        "switches": dict(recipe.data),
        "tasks": len(accuracy[0]),
        "accuracy": accuracy,
        "acc": metrics.acc(accuracy),
        "bwt": metrics.bwt(accuracy),
        "epochs": [3] * len(accuracy),
        "seconds": {"train": 60.0, "between_tasks": 5.0, "evaluate": 10.0},
        "bytes": {"memory": 12_000, "per_task": 500},
        "threads": 1,
        "device": "cpu",
        "training": dict(recipe.training),
        "settings": {k: list(v) if isinstance(v, tuple) else v for k, v in recipe.settings.items()},
        "versions": {"codecl": "0.1.0", "torch": "2.13.0", "python": "3.11.7"},
    }
    (path / "result.json").write_text(json.dumps(record | (result or {})))


def record(folder: Path, seed: int, acc: float, bwt: float, method="code-cl", tasks=10, **other):
    """A run with these numbers: all tasks end at ``acc``, all but the last with ``bwt`` since they were learned."""
    learned = [acc - bwt] * (tasks - 1) + [acc]
    A = [[learned[i] if i == j else acc if j < i else None for j in range(tasks)] for i in range(tasks)]
    write_run(folder / f"{len(list(folder.iterdir()))}", method, A, seed=seed, **other)


def write_two_seeds(folder, method, first, second):
    for seed, accuracy in enumerate((first, second)):
        write_run(folder / f"{method}-{seed}", method, accuracy, seed=seed)


def epoch(task, number, loss=1.0):
    return {
        "event": "epoch", "task": task, "epoch": number, "of": 3, "loss": loss, "validation_loss": loss,
        "validation_accuracy": 50.0, "lr": 0.1, "seconds": 1.0,
    }  # fmt: skip


def task(number, capacity):
    """The end of a task, with what two layers remember."""
    layer = {
        "shape": [1, 8, 4],
        "bytes": 10,
        "capacity": capacity,
        "rank": 2.0,
        "spectrum": [0.9, 0.5],
        "freed": number,
    }
    return {
        "event": "task",
        "task": number,
        "name": "a",
        "accuracy": [50.0] * (number + 1),
        "bytes": {"memory": 20},
        "layers": {"net.a.weight": layer, "net.b.weight": layer},
    }


def tables(folder, baseline="gpm"):
    return {table.name: table for table in analyse(find_runs([folder], folder).runs, baseline).tables}


def skipped(found, kind):
    """The reasons of what was skipped, by name."""
    return dict(found.skipped_as(kind))


def lines(table):
    """Every row as the texts of its cells by column, with the title of its section."""
    return [
        {"section": section.title, "runs": row.runs}
        | {column.name: column.text(cell) for column, cell in zip(table.columns, row.cells, strict=True)}
        for section in table.sections
        for row in section.rows
    ]


def cell(table, name, row=0, section=0):
    return table.sections[section].rows[row].cells[[column.name for column in table.columns].index(name)]

"""Events of a run, and what a tracker is to be told of them."""

from codecl.runs.events import make_event
from codecl.runs.recipe import make_recipe
from codecl.runs.trackers import Tracker

RECIPE = make_recipe({"method": "finetune", "seed": 3}, {})
EPOCH = {
    "event": "epoch", "task": 0, "epoch": 1, "of": 9, "loss": 2, "validation_loss": 1.5, "validation_accuracy": 40.0,
    "lr": 0.1, "seconds": 1.0,
}  # fmt: skip
TASK = {"event": "task", "name": "a", "layers": {}}
EVENTS = [
    EPOCH,
    EPOCH | {"epoch": 2},
    TASK | {"task": 0, "accuracy": [80.0, None], "bytes": {"memory": 5, "per_task": 1}},
    EPOCH | {"task": 1},
    TASK | {"task": 1, "accuracy": [70.0, 90.0], "bytes": {"memory": 7, "per_task": 1}},
]
RESUME = {"event": "resume", "task": 1, "epoch": 0, "epochs": [2]}
OF_EPOCH = {"loss": 2.0, "validation_loss": 1.5, "validation_accuracy": 40.0, "lr": 0.1}
EXPECTED = [
    *(("task", 1.0, 1), *((name, value, 1) for name, value in OF_EPOCH.items())),
    *(("task", 1.0, 2), *((name, value, 2) for name, value in OF_EPOCH.items())),
    ("test accuracy/task 1", 80.0, 2),
    ("ACC", 80.0, 2),
    ("memory bytes", 5.0, 2),
    *(("task", 2.0, 3), *((name, value, 3) for name, value in OF_EPOCH.items())),
    ("test accuracy/task 1", 70.0, 3),
    ("test accuracy/task 2", 90.0, 3),
    ("ACC", 80.0, 3),
    ("BWT", -10.0, 3),
    ("memory bytes", 7.0, 3),
]


def track(name, path, *events):
    warnings = []
    tracker = Tracker(name, path, RECIPE, warnings.append)
    for event in events:
        tracker(make_event(event))
    return tracker, warnings

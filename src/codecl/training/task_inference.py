"""How well a method does without being told the task, on the test parts of all tasks it learned."""

from __future__ import annotations

from typing import Any

import torch

from codecl.methods import Method
from codecl.training.engine import Trainer
from codecl.training.loader import BatchLoader

TOGETHER = 16
"""How many inputs of one task are asked about together, beside one at a time."""


def measure_inference(trainer: Trainer) -> dict[str, Any]:
    """What ``result.json`` records of task inference, in percent.

    ``confusion[i][j]`` is the share of the inputs of task ``i`` that are taken for task ``j``, one at a time;
    ``tasks_right`` is the mean of its diagonal, and ``tasks_right_together`` the same for ``TOGETHER`` inputs of one
    task at a time. ``inferred`` is the mean accuracy with each input's own inferred task, ``inferred_together``
    likewise.
    """
    method, tasks = trainer.method, len(trainer.stream)
    confusion, right, right_together, found_together = [], [], [], []
    for t, task in enumerate(trainer.stream.tasks):
        counts, hits, hits_together, at_once, inputs = torch.zeros(tasks), 0, 0, 0, 0
        for batch in BatchLoader(task.test, TOGETHER, trainer.plan.device):
            alone, together = method.predict(batch), method.predict(batch, together=True)
            counts += torch.bincount(alone.task.cpu(), minlength=tasks)
            hits += _hits(alone.task, alone.label, t, batch[1])
            hits_together += _hits(together.task, together.label, t, batch[1])
            at_once += int((together.task == t).sum())
            inputs += len(batch[1])
        confusion.append([100 * float(c) / inputs for c in counts])
        right.append(100 * hits / inputs)
        right_together.append(100 * hits_together / inputs)
        found_together.append(100 * at_once / inputs)
    return {
        "evidence": "conceptors" if _stored(method) else "heads",
        "tasks_right": sum(confusion[t][t] for t in range(tasks)) / tasks,
        "tasks_right_together": sum(found_together) / tasks,
        "inferred": sum(right) / tasks,
        "inferred_together": sum(right_together) / tasks,
        "together": TOGETHER,
        "confusion": confusion,
    }


def _hits(tasks: torch.Tensor, labels: torch.Tensor, task: int, truth: torch.Tensor) -> int:
    """How many inputs got their own task and their own class."""
    return int(((tasks == task) & (labels == truth.to(labels.device))).sum())


def _stored(method: Method) -> bool:
    return method.evidence is not None and len(method.evidence.tasks) == len(method.tasks)

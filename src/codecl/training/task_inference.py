"""How well a method does without being told the task, on the test parts of all tasks it learned."""

from __future__ import annotations

from typing import Any

import torch

from codecl.method.inference import decide, has_evidence, has_heads, head_scores, predict, task_scores
from codecl.training.engine import Trainer
from codecl.training.loader import BatchLoader

TOGETHER = 16
"""How many inputs of one task are asked about together, beside one at a time."""


def measure_inference(trainer: Trainer) -> dict[str, Any]:
    """What ``result.json`` records of task inference, in percent.

    ``confusion[i][j]`` is the share of the inputs of task ``i`` that are taken for task ``j``, one at a time;
    ``tasks_right`` is the mean of its diagonal, and ``tasks_right_together`` the same for ``TOGETHER`` inputs of one
    task at a time; ``tasks_right_by_heads`` is what the heads alone would have found, one input at a time, None where
    tasks have no heads. ``inferred`` is the mean accuracy with each input's own inferred task, ``inferred_together``
    likewise. Batches are of one task, so where batch norms keep no statistics an input is seen beside others of its
    task even where it is asked about alone.
    """
    method, tasks = trainer.method, len(trainer.stream)
    heads = has_heads(method)
    confusion, right, right_together, found_together, found_by_heads = [], [], [], [], []
    for t, task in enumerate(trainer.stream.tasks):
        counts, hits, hits_together, found, by_heads, inputs = torch.zeros(tasks), 0, 0, 0, 0, 0
        for batch in BatchLoader(task.test, TOGETHER, trainer.plan.device):
            scores = task_scores(method, batch)
            alone, together = (predict(method, batch, decide(scores, at_once)) for at_once in (False, True))
            counts += torch.bincount(alone.task.cpu(), minlength=tasks)
            hits += _hits(alone.task, alone.label, t, batch[1])
            hits_together += _hits(together.task, together.label, t, batch[1])
            found += int((together.task == t).sum())
            by_heads += int((head_scores(method, batch, method.forward).argmax(1) == t).sum()) if heads else 0
            inputs += len(batch[1])
        confusion.append([100 * float(c) / inputs for c in counts])
        right.append(100 * hits / inputs)
        right_together.append(100 * hits_together / inputs)
        found_together.append(100 * found / inputs)
        found_by_heads.append(100 * by_heads / inputs)
    return {
        "evidence": "conceptors" if has_evidence(method) else "heads",
        "tasks_right": sum(confusion[t][t] for t in range(tasks)) / tasks,
        "tasks_right_together": sum(found_together) / tasks,
        "tasks_right_by_heads": sum(found_by_heads) / tasks if heads else None,
        "inferred": sum(right) / tasks,
        "inferred_together": sum(right_together) / tasks,
        "together": TOGETHER,
        "confusion": confusion,
    }


def _hits(tasks: torch.Tensor, labels: torch.Tensor, task: int, truth: torch.Tensor) -> int:
    """How many inputs got their own task and their own class."""
    return int(((tasks == task) & (labels == truth.to(labels.device))).sum())

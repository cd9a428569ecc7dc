"""How well a method does without being told the task, on the test parts of all tasks it learned."""

from __future__ import annotations

from typing import Any

import torch

from codecl.method.inference import decide, has_evidence, has_heads, sureness, task_outputs, task_scores
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
    stored, heads = has_evidence(method), has_heads(method)
    confusion, shares = [], []
    for t, task in enumerate(trainer.stream.tasks):
        counts, hits, inputs = torch.zeros(tasks), torch.zeros(4, dtype=torch.float64), 0
        for batch in BatchLoader(task.test, TOGETHER, trainer.plan.device):
            outputs = task_outputs(method, batch, method.forward)
            by_heads = sureness(outputs)
            scores = task_scores(method, batch) if stored else by_heads
            alone, together = decide(scores, together=False).cpu(), decide(scores, together=True).cpu()
            labelled = (outputs[t].argmax(1) == batch[1]).cpu()
            counts += torch.bincount(alone, minlength=tasks)
            found = (together == t, by_heads.argmax(1).cpu() == t, (alone == t) & labelled, (together == t) & labelled)
            hits += torch.stack(found).sum(1)
            inputs += len(batch[1])
        confusion.append([100 * float(c) / inputs for c in counts])
        shares.append(100 * hits / inputs)
    right_together, right_by_heads, inferred, inferred_together = torch.stack(shares).mean(0).tolist()
    return {
        "evidence": "conceptors" if stored else "heads",
        "tasks_right": sum(confusion[t][t] for t in range(tasks)) / tasks,
        "tasks_right_together": right_together,
        "tasks_right_by_heads": right_by_heads if heads else None,
        "inferred": inferred,
        "inferred_together": inferred_together,
        "together": TOGETHER,
        "confusion": confusion,
    }

"""Multitask: all tasks at once, the upper bound that continual learning is measured against.

The training data of all tasks are shuffled together, each input goes through the head of its task, and early stopping
sees the loss on the validation data of all of them:

    L = Σ_t n_t L_t / n

A layer that normalises by batch statistics sees inputs of several tasks at a time in training, and of one in tests.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

from torch import Tensor, nn

from codecl.method.method import Method, Task
from codecl.method.mixed_tasks import check_heads, mixed_loss


class Multitask(Method):
    """Learns all tasks jointly. It is the only one that sees all data, and no continual learner.

    Begin every task, train on batches ``(x, y, tasks)``, the last of them the position of the task of each input, with
    ``method.objective(batch)`` as the loss, and end once. Trainers do so by themselves.
    """

    name: ClassVar[str] = "multitask"
    freezes_heads: ClassVar[bool] = False
    joint: ClassVar[bool] = True

    def __init__(self, model: nn.Module, **common: Any) -> None:
        check_heads(self.name, common.get("heads", ()))
        super().__init__(model, **common)

    def begin_task(self, task: Task, loader: Iterable[Any] | None = None) -> None:
        """Add ``task`` to those that are learned together."""
        if self.is_learning:
            self.end_task()
        super().begin_task(task, loader)

    def objective(self, batch: Any, net: nn.Module | None = None) -> Tensor:
        """The loss on inputs of several tasks, or on a plain batch of the task begun last."""
        if isinstance(batch, (tuple, list)) and len(batch) == 3:
            x, y, tasks = batch
            return mixed_loss(self, (x, y), tasks, net)
        return super().objective(batch, net)

"""Experiences of Avalanche as tasks: ``Naive(..., plugins=[Continual(method)])``, and so for any other strategy."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from codecl.integrations.batches import Batches
from codecl.integrations.needs import needs
from codecl.method import Method
from codecl.method.method import Task

with needs("avalanche", "torchvision", extra="avalanche"):
    from avalanche.core import SupervisedPlugin


def number_in_stream(experience: Any) -> int:
    """The task that an experience is, by default: its number in its stream."""
    number: int = experience.current_experience
    return number


class Continual(SupervisedPlugin[Any]):
    """A plugin that makes every experience a task of ``method``, and evaluates it as that task knows the network.

    Args:
        method: attached to the model of the strategy.
        task_of: the name or number of the task that an experience belongs to, in training and in evaluation; one that
            was not learned is evaluated on the network as it is.
    """

    def __init__(self, method: Method, task_of: Callable[[Any], Task] = number_in_stream) -> None:
        super().__init__()
        self.method, self.task_of = method, task_of
        self.batches = Batches(method)
        self._shown: AbstractContextManager[None] | None = None
        self._steps = self._of = 0

    def before_training_exp(self, strategy: Any, *_: Any, **__: Any) -> None:
        if strategy.model is not self.method.model:
            raise ValueError("the strategy trains another model than the one that the method is attached to.")
        self.method.guard(strategy.optimizer)
        self.method.begin_task(self.task_of(strategy.experience), strategy.dataloader)
        strategy.optimized_param_id = dict(strategy.model.named_parameters())  # a new head is in the optimizer already
        self._steps, self._of = 0, strategy.train_epochs * len(strategy.dataloader)

    def after_training_exp(self, strategy: Any, *_: Any, **__: Any) -> None:
        self.batches.stop()
        self.method.end_task(strategy.dataloader)

    def before_training_epoch(self, strategy: Any, *_: Any, **__: Any) -> None:
        self.batches.begin_epoch()

    def before_training_iteration(self, strategy: Any, *_: Any, **__: Any) -> None:
        self.batches.show((strategy.mb_x, strategy.mb_y), progress=self._steps / max(1, self._of))
        self._steps += 1

    def after_training_epoch(self, strategy: Any, *_: Any, **__: Any) -> None:
        self.batches.end_epoch()

    def before_eval_exp(self, strategy: Any, *_: Any, **__: Any) -> None:
        if (task := self.task_of(strategy.experience)) in self.method.tasks:
            self._shown = self.method.task(task)
            self._shown.__enter__()

    def after_eval_exp(self, strategy: Any, *_: Any, **__: Any) -> None:
        if self._shown is not None:
            self._shown.__exit__(None, None, None)
            self._shown = None

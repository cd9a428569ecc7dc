"""Tasks in a ``lightning.Trainer``: ``Trainer(callbacks=[Continual(method, task, loader)]).fit(module, loader)``.

The state of the method is part of every checkpoint. Lightning makes the optimizers, then calls ``on_fit_start``, then
loads the optimizers' states: the task begins, or the method's state is loaded, in between.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from codecl.integrations.batches import Batches
from codecl.integrations.checkpoint import begin_or_go_on
from codecl.integrations.needs import needs
from codecl.method import Method
from codecl.method.method import Task

with needs("lightning", extra="integrations"):
    from lightning.pytorch import LightningModule, Trainer
    from lightning.pytorch.callbacks import Callback


class Continual(Callback):
    """A callback that learns ``task`` with ``method``; make one for each task, and a trainer with it.

    Args:
        method: attached to the LightningModule, or to a module inside it.
        task: a new name or number.
        loader: the training batches of the task, as the method looks at them before and after.
    """

    def __init__(self, method: Method, task: Task, loader: Iterable[Any]) -> None:
        self.method, self.task, self.loader = method, task, loader
        self.batches = Batches(method)
        self._loaded: dict[str, Any] | None = None
        self._last: dict[str, Any] | None = None

    def state_dict(self) -> dict[str, Any]:
        """The state of the method while it learned the task, also where the task has just ended."""
        return {"method": self._last or self.method.state_dict()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Keep the state of a checkpoint until the optimizers are there."""
        self._loaded = state_dict["method"]

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if all(module is not self.method.model for module in pl_module.modules()):
            raise ValueError(
                "the LightningModule does not hold the model that the method is attached to. Attach it to the "
                "LightningModule, or to a module inside it."
            )
        if trainer.world_size > 1:
            raise ValueError(f"this callback works in one process; the trainer has {trainer.world_size}.")

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._last = None
        for optimizer in trainer.optimizers:
            self.method.guard(optimizer)
        resumed, self._loaded = self._loaded, None
        if resumed is not None:
            self.method.load_state_dict(resumed)
        begin_or_go_on(self.method, self.task, self.loader, resumed is not None)

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.batches.begin_epoch()

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        steps = trainer.estimated_stepping_batches
        self.batches.show(batch, progress=min(1.0, trainer.global_step / steps) if math.isfinite(steps) else 0.0)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.batches.end_epoch()

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.batches.stop()
        if self.method.is_learning:
            self._last = self.method.state_dict()  # a checkpoint that follows can be resumed as those before
            self.method.end_task(self.loader)

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self.method.is_learning:  # a checkpoint from the end of training: nothing was left to train
            self.method.end_task(self.loader)

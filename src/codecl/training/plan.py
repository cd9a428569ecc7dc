"""The settings of training: how long, in which batches, by which rule, with which optimizer."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn

from codecl.training.schedule import AccuracyRule, AnnealedRule, LossRule, Rule


@dataclass(frozen=True)
class Plan:
    """What belongs to training and not to the method. The optimizer is SGD, a new one for every task.

    Args:
        epochs: The most epochs of a task; ``annealed`` trains all of them.
        rule: How the learning rate falls and when a task is over: early stopping by validation ``loss`` or
            ``accuracy``, or ``annealed``, a warm-up and half a cosine to zero. See ``codecl.training.schedule``.
        patience: Bad epochs in a row before early stopping lowers the rate.
        factor: What it then divides the rate by (``accuracy``: the rate it keeps for book-keeping).
        min_lr: The rate below which early stopping ends the task.
        decay: What ``accuracy`` divides the rate by.
        warm_up: The share of the steps over which ``annealed`` raises the rate to ``lr``.
        keep: The weights that count under ``annealed``: of the ``last`` epoch, or of the ``best`` by validation
            accuracy. Early stopping always returns to its best epoch.
        evaluation_batch: Inputs per batch in validation and test.
    """

    epochs: int = 200
    batch_size: int = 64
    lr: float = 0.01
    rule: Literal["loss", "accuracy", "annealed"] = "loss"
    patience: int = 6
    factor: float = 2.0
    min_lr: float = 1e-5
    decay: float = 2.0
    warm_up: float = 0.2
    keep: Literal["last", "best"] = "last"
    momentum: float = 0.0
    nesterov: bool = False
    weight_decay: float = 0.0
    evaluation_batch: int = 64
    seed: int = 0
    device: str = "cpu"

    def __post_init__(self) -> None:
        if self.rule not in ("loss", "accuracy", "annealed"):
            raise ValueError(f"rule must be 'loss', 'accuracy' or 'annealed'; got {self.rule!r}.")
        if self.keep not in ("last", "best"):
            raise ValueError(f"keep must be 'last' or 'best'; got {self.keep!r}.")
        if self.nesterov and not self.momentum > 0:
            raise ValueError(f"nesterov needs a momentum above 0; got momentum = {self.momentum!r}.")

    def new_rule(self) -> Rule:
        """The rule for a new task."""
        if self.rule == "annealed":
            return AnnealedRule(self.lr, self.warm_up, self.keep)
        if self.rule == "loss":
            return LossRule(self.lr, self.patience, self.factor, self.min_lr)
        return AccuracyRule(self.lr, self.patience, self.factor, self.min_lr, decay=self.decay)

    def new_optimizer(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        """The optimizer for a new task; the rule sets its learning rate before every step."""
        return torch.optim.SGD(
            parameters, self.lr, momentum=self.momentum, nesterov=self.nesterov, weight_decay=self.weight_decay
        )

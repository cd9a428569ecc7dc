"""The settings of training: how long, in which batches, by which rule, with which optimizer."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn

from codecl.training.augment import Augmentation
from codecl.training.schedule import AccuracyRule, AnnealedRule, LossRule, Rule

CHOICES = {
    "rule": ("loss", "accuracy", "annealed"),
    "keep": ("last", "best"),
    "optimizer": ("sgd", "adam", "adamw"),
    "precision": ("float32", "bf16", "fp16"),
}
WHOLE = {"epochs": 1, "batch_size": 1, "evaluation_batch": 1, "patience": 1, "crop": 0, "workers": 0}
"""Whole numbers, and the least of each."""
BELOW = {"lr": 1e6, "momentum": 1.0, "weight_decay": 1e6}
"""Numbers, and what each must stay below: further out, weights overflow in a step."""


@dataclass(frozen=True)
class Plan:
    """What belongs to training and not to the method. Every task has an optimizer of its own.

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
            accuracy.
        restore: Whether early stopping goes back to its best epoch, or keeps the last, at the lowest rate.
        evaluation_batch: Inputs per batch in validation and test.
        infer_tasks: Whether accuracy is also measured without telling the task, after the last one.
        optimizer: ``sgd``, ``adam`` or ``adamw``; momentum and Nesterov's are SGD's alone.
        precision: ``float32``, or ``bf16`` or ``fp16`` for a forward pass under autocast.
        crop: Training images are shifted by up to so many pixels, at random.
        flip: Training images are mirrored at random.
        workers: Processes that read batches ahead, where a stream reads files.
        evaluate: After which tasks all tasks so far are tested: ``all``, the ``last``, or ``every:N``. The task just
            learned is tested in any case.
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
    restore: bool = True
    momentum: float = 0.0
    nesterov: bool = False
    weight_decay: float = 0.0
    evaluation_batch: int = 64
    infer_tasks: bool = False
    optimizer: Literal["sgd", "adam", "adamw"] = "sgd"
    precision: Literal["float32", "bf16", "fp16"] = "float32"
    crop: int = 0
    flip: bool = False
    workers: int = 0
    evaluate: str = "all"
    seed: int = 0
    device: str = "cpu"

    def __post_init__(self) -> None:
        for name, choices in CHOICES.items():
            if getattr(self, name) not in choices:
                listed = " or ".join((", ".join(map(repr, choices[:-1])), repr(choices[-1])))
                raise ValueError(f"{name} must be {listed}; got {getattr(self, name)!r}.")
        for name, least in WHOLE.items():
            value = getattr(self, name)
            if type(value) is not int or not least <= value < 2**31:
                raise ValueError(f"{name} must be a whole number, {least} or more, below 2³¹; got {value!r:.40}.")
        for name, bound in BELOW.items():
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < bound:
                raise ValueError(f"{name} must be a number, 0 or more, below {bound:g}; got {value!r:.40}.")
        if not self.lr > 0:
            raise ValueError(f"lr must be above 0; got {self.lr!r}.")
        if self.optimizer != "sgd" and (self.momentum or self.nesterov):
            raise ValueError(f"momentum and nesterov belong to sgd; got optimizer = {self.optimizer!r}.")
        if self.nesterov and not self.momentum > 0:
            raise ValueError(f"nesterov needs a momentum above 0; got momentum = {self.momentum!r}.")
        every, _, count = self.evaluate.partition(":")
        if self.evaluate not in ("all", "last") and not (every == "every" and count.isdecimal() and int(count) > 0):
            raise ValueError(f"evaluate must be 'all', 'last' or 'every:N', N above 0; got {self.evaluate!r}.")
        self.new_rule()

    def tests_all(self, task: int, tasks: int) -> bool:
        """Whether all tasks so far are tested after ``task``, from 0 on, of ``tasks``."""
        every = {"all": 1, "last": tasks}.get(self.evaluate) or int(self.evaluate.partition(":")[2])
        return task == tasks - 1 or (task + 1) % every == 0

    def augmentation(self, generator: torch.Generator) -> Augmentation | None:
        """What is done to training images, if anything."""
        return Augmentation(self.crop, self.flip, generator) if self.crop or self.flip else None

    def new_rule(self) -> Rule:
        """The rule for a new task."""
        if self.rule == "annealed":
            return AnnealedRule(self.lr, self.warm_up, self.keep)
        if self.rule == "loss":
            return LossRule(self.lr, self.patience, self.factor, self.min_lr, restore=self.restore)
        return AccuracyRule(self.lr, self.patience, self.factor, self.min_lr, decay=self.decay, restore=self.restore)

    def new_optimizer(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        """The optimizer for a new task; the rule sets its learning rate before every step."""
        if self.optimizer == "adam":
            return torch.optim.Adam(parameters, self.lr, weight_decay=self.weight_decay)
        if self.optimizer == "adamw":
            return torch.optim.AdamW(parameters, self.lr, weight_decay=self.weight_decay)
        return torch.optim.SGD(
            parameters, self.lr, momentum=self.momentum, nesterov=self.nesterov, weight_decay=self.weight_decay
        )

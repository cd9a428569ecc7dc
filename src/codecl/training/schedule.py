"""When the learning rate falls and when a task has been trained enough: two early-stopping rules.

A rule is told the validation loss and accuracy after every epoch and answers with a ``Verdict``. The best epoch is the
last one that ``improved``; the caller keeps its weights and restores them in the end. The first epoch always improves.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


class Diverged(ArithmeticError):
    """A loss that is no longer a number: training cannot go on from these weights."""


@dataclass(frozen=True)
class Verdict:
    """What follows from an epoch: whether it is the best so far, and whether the task is over."""

    improved: bool
    stop: bool


class Rule:
    """What both rules share: the best score so far, strictly larger being better, and bad epochs in a row since."""

    def __init__(self, lr: float, patience: int, **above: tuple[float, float]) -> None:
        for name, (value, bound) in {"lr": (lr, 0.0), "patience": (patience, 0.0), **above}.items():
            if not (value > bound and math.isfinite(value)):
                raise ValueError(f"{name} must be a finite number above {bound:g}; got {value!r}.")
        if type(patience) is not int:
            raise ValueError(f"patience is a number of epochs; got {patience!r}.")
        self.patience = patience
        self._state: dict[str, Any] = {"lr": float(lr), "best": None, "bad": 0, "stopped": False}

    @property
    def lr(self) -> float:
        """The learning rate of the next epoch."""
        lr: float = self._state["lr"]
        return lr

    @property
    def stopped(self) -> bool:
        stopped: bool = self._state["stopped"]
        return stopped

    def update(self, loss: float, accuracy: float) -> Verdict:
        """What follows from an epoch with this validation loss and accuracy."""
        if self.stopped:
            raise RuntimeError("this task is over: the rule said stop. Make a new rule for the next task.")
        if not math.isfinite(loss) or math.isnan(accuracy):
            raise Diverged(
                f"the validation loss is {loss} and the accuracy {accuracy} at learning rate {self.lr:g}. "
                "Lower the learning rate, or look for NaN in the data; the best epoch before this one is still good."
            )
        state, score = self._state, self._score(loss, accuracy)
        if state["best"] is None or score > state["best"]:
            state.update(best=score, bad=0)
            return Verdict(improved=True, stop=False)
        state["bad"] += 1
        self._bad_epoch(state)
        return Verdict(improved=False, stop=self.stopped)

    def state_dict(self) -> dict[str, Any]:
        """Where the rule stands, as JSON can hold it; its settings belong to the recipe."""
        return dict(self._state)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if state.keys() != self._state.keys():
            raise ValueError(
                f"the state has {sorted(state)}, {type(self).__name__} expects {sorted(self._state)}. "
                "Load it into the rule it was taken from."
            )
        self._state = dict(state)

    def _score(self, loss: float, accuracy: float) -> float:
        raise NotImplementedError

    def _bad_epoch(self, state: dict[str, Any]) -> None:
        """Lower the learning rate or stop after ``state["bad"]`` bad epochs in a row."""
        raise NotImplementedError


class LossRule(Rule):
    """The rule of GPM, TRGP, SGP, DFGP, EWC and HAT: by validation loss.

    After ``patience`` bad epochs in a row ``lr`` is divided by ``factor``; below ``min_lr`` the task is over, at once.
    """

    def __init__(self, lr: float, patience: int, factor: float, min_lr: float) -> None:
        super().__init__(lr, patience, factor=(factor, 1.0), min_lr=(min_lr, 0.0))
        self.factor, self.min_lr = factor, min_lr

    def _score(self, loss: float, accuracy: float) -> float:
        return -loss

    def _bad_epoch(self, state: dict[str, Any]) -> None:
        if state["bad"] >= self.patience:
            state["lr"] /= self.factor
            state.update(bad=0, stopped=state["lr"] < self.min_lr)


class AccuracyRule(Rule):
    """The rule of CODE-CL's published code: by validation accuracy, with a second learning rate for book-keeping.

    After ``patience + 1`` bad epochs in a row the real one is divided by ``decay`` and the other by ``factor``. A bad
    epoch that does not come to that ends the task if the other is below ``threshold``: so after the last decay training
    goes on as long as every epoch is the best so far.
    """

    def __init__(self, lr: float, patience: int, factor: float, threshold: float, *, decay: float = 2.0) -> None:
        super().__init__(lr, patience, factor=(factor, 1.0), threshold=(threshold, 0.0), decay=(decay, 1.0))
        self.factor, self.threshold, self.decay = factor, threshold, decay
        self._state["book"] = float(lr)

    def _score(self, loss: float, accuracy: float) -> float:
        return accuracy

    def _bad_epoch(self, state: dict[str, Any]) -> None:
        if state["bad"] <= self.patience:
            state["stopped"] = state["book"] < self.threshold
        else:
            state["lr"] /= self.decay
            state["book"] /= self.factor
            state["bad"] = 0

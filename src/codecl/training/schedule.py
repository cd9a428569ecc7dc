"""Rules for the learning rate: how it falls, which epoch's weights count, and when a task is over.

The trainer asks a rule for the ``rate`` of every step, and tells it the validation loss and accuracy after every epoch.
It answers with a ``Verdict``. The weights of the last epoch that ``improved`` are those of the task. The first epoch
always improves.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal


class Diverged(ArithmeticError):
    """A loss that is no longer a number: training cannot go on from these weights."""


@dataclass(frozen=True)
class Verdict:
    """What follows from an epoch: whether its weights count so far, and whether the task is over."""

    improved: bool
    stop: bool


class Rule:
    """The base of all rules: settings above their bounds, and a state that JSON can hold, named by ``kept``."""

    kept: tuple[str, ...] = ("lr", "best", "stopped")

    def __init__(self, lr: float, **above: tuple[float, float]) -> None:
        for name, (value, bound) in {"lr": (lr, 0.0), **above}.items():
            if not (value > bound and math.isfinite(value)):
                raise ValueError(f"{name} must be a finite number above {bound:g}; got {value!r}.")
        self.lr, self.stopped = float(lr), False
        self.best: float | None = None

    def rate(self, step: int, steps: int) -> float:
        """The learning rate of a step, from 0 on, of the ``steps`` that all epochs of the task have."""
        return self.lr

    def update(self, loss: float, accuracy: float) -> Verdict:
        """What follows from an epoch with this validation loss and accuracy."""
        if self.stopped:
            raise RuntimeError("this task is over: the rule said stop. Make a new rule for the next task.")
        if not math.isfinite(loss) or math.isnan(accuracy):
            raise Diverged(
                f"the validation loss is {loss} and the accuracy {accuracy} at learning rate {self.lr:g}. "
                "Lower the learning rate, or look for NaN in the data; the best epoch before this one is still good."
            )
        score = self.score(loss, accuracy)
        improved = self.best is None or self.improves(score, self.best)
        self.best = score if improved else self.best
        self.after_epoch(improved)
        return Verdict(improved, self.stopped)

    def state_dict(self) -> dict[str, Any]:
        """Where the rule stands; its settings belong to the recipe."""
        return {name: getattr(self, name) for name in self.kept}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where ``state_dict`` was taken."""
        if state.keys() != set(self.kept):
            raise ValueError(
                f"the state has {sorted(state)}, {type(self).__name__} expects {sorted(self.kept)}. "
                "Load it into the rule it was taken from."
            )
        vars(self).update(state)

    def score(self, loss: float, accuracy: float) -> float:
        """What the rule goes by; more is better."""
        return accuracy

    def improves(self, score: float, best: float) -> bool:
        """Whether an epoch's weights count, after others."""
        return score > best

    def after_epoch(self, improved: bool) -> None:
        """Lower the learning rate, or stop."""


class EarlyStopping(Rule):
    """What the early-stopping rules share: bad epochs in a row are counted, and an epoch that improves ends the row.

    The weights of the best epoch count; without ``restore``, those of the last one, whatever its validation data say.
    """

    kept = (*Rule.kept, "bad")

    def __init__(self, lr: float, patience: int, restore: bool, **above: tuple[float, float]) -> None:
        super().__init__(lr, patience=(patience, 0.0), **above)
        if type(patience) is not int:
            raise ValueError(f"patience is a number of epochs; got {patience!r}.")
        self.patience, self.restore, self.bad = patience, restore, 0

    def update(self, loss: float, accuracy: float) -> Verdict:
        verdict = super().update(loss, accuracy)
        return verdict if self.restore else replace(verdict, improved=True)

    def after_epoch(self, improved: bool) -> None:
        self.bad = 0 if improved else self.bad + 1
        if not improved:
            self.bad_epoch()

    def bad_epoch(self) -> None:
        """Lower the learning rate or stop after ``bad`` bad epochs in a row."""
        raise NotImplementedError


class LossRule(EarlyStopping):
    """The rule of GPM, TRGP, SGP, DFGP, EWC and HAT: by validation loss.

    After ``patience`` bad epochs in a row ``lr`` is divided by ``factor``; below ``min_lr`` the task is over, at once.
    """

    def __init__(self, lr: float, patience: int, factor: float, min_lr: float, *, restore: bool = True) -> None:
        super().__init__(lr, patience, restore, factor=(factor, 1.0), min_lr=(min_lr, 0.0))
        self.factor, self.min_lr = factor, min_lr

    def score(self, loss: float, accuracy: float) -> float:
        return -loss

    def bad_epoch(self) -> None:
        if self.bad >= self.patience:
            self.lr, self.bad = self.lr / self.factor, 0
            self.stopped = self.lr < self.min_lr


class AccuracyRule(EarlyStopping):
    """The rule of CODE-CL's published code: by validation accuracy, with a second learning rate for book-keeping.

    After ``patience + 1`` bad epochs in a row the real one is divided by ``decay`` and the other by ``factor``. A bad
    epoch that does not come to that ends the task if the other is below ``threshold``: so after the last decay training
    goes on as long as every epoch is the best so far.
    """

    kept = (*EarlyStopping.kept, "book")

    def __init__(
        self, lr: float, patience: int, factor: float, threshold: float, *, decay: float = 2.0, restore: bool = True
    ) -> None:
        super().__init__(lr, patience, restore, factor=(factor, 1.0), threshold=(threshold, 0.0), decay=(decay, 1.0))
        self.factor, self.threshold, self.decay, self.book = factor, threshold, decay, float(lr)

    def bad_epoch(self) -> None:
        if self.bad <= self.patience:
            self.stopped = self.book < self.threshold
        else:
            self.lr, self.book, self.bad = self.lr / self.decay, self.book / self.factor, 0


class AnnealedRule(Rule):
    """A warm-up and half a cosine, down to nearly zero at the last step of the last epoch; nothing stops early.

    With ``S`` steps, of which ``w = round(warm_up · S)`` are the warm-up, step ``k`` from 0 on has the rate

        lr (k + 1) / w                          k < w
        lr ½ (1 + cos(π (k − w) / (S − w)))     k ≥ w

    Args:
        lr: The highest rate.
        warm_up: The share of the steps over which the rate rises to ``lr``, from 0 to below 1.
        keep: The weights that count: those of the ``"last"`` epoch, or of the ``"best"`` by validation accuracy (of
            equal ones, the later).
    """

    def __init__(self, lr: float, warm_up: float = 0.2, keep: Literal["last", "best"] = "last") -> None:
        super().__init__(lr)
        if not 0 <= warm_up < 1:
            raise ValueError(f"warm_up is a share of the steps, at least 0 and below 1; got {warm_up!r}.")
        self.warm_up, self.keep = warm_up, keep

    def rate(self, step: int, steps: int) -> float:
        """The learning rate of a step, from 0 on, of the ``steps`` that all epochs of the task have.

        >>> [round(AnnealedRule(0.1, warm_up=0.25).rate(step, 8), 3) for step in range(8)]
        [0.05, 0.1, 0.1, 0.093, 0.075, 0.05, 0.025, 0.007]
        """
        warm = round(self.warm_up * steps)
        if step < warm:
            return self.lr * ((step + 1) / warm)
        return self.lr / 2 * (1 + math.cos(math.pi * (step - warm) / (steps - warm)))

    def improves(self, score: float, best: float) -> bool:
        return self.keep == "last" or score >= best

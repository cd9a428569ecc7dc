"""What a method may do while a task is learned: see its batches, shape its gradients, add to its loss.

A projection needs nothing of this, because gradients meet it on their way back. Other methods override

    learn(closure, …)     one step: the gradients it takes
    penalty()             what is added to the loss of the task
    after_step()          after the optimizer has stepped
    end_epoch()           after a pass over the batches that ``watch`` hands out
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from codecl.attach import Forward, ProtectedWeight, call_with_first, evaluating, inputs_in, untouched_randomness

Loss = Callable[[Any, Any], Tensor]
Closure = Callable[[], Any]


def cross_entropy_with_second(output: Any, batch: Any) -> Tensor:
    """The loss unless ``loss=`` says otherwise: the output's own, or the cross entropy with the batch's second."""
    if isinstance(own := getattr(output, "loss", None), Tensor):
        return own
    if isinstance(output, Tensor) and isinstance(batch, (tuple, list)) and len(batch) > 1:
        return F.cross_entropy(output, batch[1].to(output.device))
    raise TypeError(
        f"what is the loss of an output of type {type(output).__name__} on a batch of type {type(batch).__name__}? "
        "Pass loss=, a function of both."
    )


class Learning:
    """How ``model`` learns from a batch, and the hooks around it. ``Method`` stands on this."""

    name: ClassVar[str]
    penalty_in_validation: bool = False
    """Whether early stopping sees the loss with the penalty."""
    decode: Callable[[int, Tensor], Tensor] | None = None
    """Set by a trainer: inputs of the task at a position, from what its stream stores and batches have as ``raw``."""

    def __init__(self, model: nn.Module, forward: Forward = call_with_first, loss: Loss | None = None) -> None:
        self.model, self.forward = model, forward
        self.loss: Loss = cross_entropy_with_second if loss is None else loss
        self.position, self.progress = 0.0, 0.0
        self._batch: Any = None

    def objective(self, batch: Any) -> Tensor:
        """The loss of the model on ``batch``."""
        return self.loss(self.forward(self.model, batch), batch)

    def watch(self, loader: Iterable[Any], epoch: int = 0, epochs: int = 1) -> Iterator[Any]:
        """The batches of ``loader``, seen by the method as they pass: ``for x, y in method.watch(loader)``.

        ``epoch`` of ``epochs`` says how far the task has come, for methods that change something on the way.
        """
        count = length(loader)
        try:
            for i, batch in enumerate(loader):
                self._batch = batch
                self.position = i / count if count else 0.0
                self.progress = (epoch + self.position) / epochs
                yield batch
            if self._batch is not None:
                self.end_epoch()
        finally:
            self._batch = None

    @property
    def batch(self) -> Any:
        """The batch that is being learned from."""
        if self._batch is None:
            raise RuntimeError(
                f"{self.name} looks at the batches it learns from: write `for batch in method.watch(loader):` "
                "around your training step."
            )
        return self._batch

    @property
    def takes_part_in_steps(self) -> bool:
        """Whether the method does something in a step that only a guarded optimizer tells it about."""
        hooks = ("learn", "penalty", "after_step")
        return any(getattr(type(self), hook) is not getattr(Learning, hook) for hook in hooks)

    # What a method overrides.

    def learn(self, closure: Closure, parameters: Sequence[nn.Parameter]) -> Any:
        """Leave the gradients of one step on ``parameters``, those of the optimizer that steps, and return the loss.

        ``closure()`` computes gradients and loss of the task as the user wrote them. Where the user calls
        ``optimizer.step()`` without one, they are there already and it returns None; it cannot be called again then.
        """
        loss, penalty = closure(), self.penalty()
        if penalty is None:
            return loss
        add_gradients(penalty, parameters)
        return loss if loss is None else torch.as_tensor(loss).detach() + penalty.detach()

    def penalty(self) -> Tensor | None:
        """What is added to the loss of the task, as a function of the parameters."""
        return None

    def after_step(self) -> None:
        """The optimizer has stepped."""

    def kept_state(self) -> Any:
        """What changes while a task is learned and goes on whichever epoch is the best: samples kept for replay."""
        return None

    def load_kept(self, state: Any) -> None:
        """The inverse of ``kept_state``."""

    def end_epoch(self) -> None:
        """All batches of a watched loader have been learned from; ``self.batch`` is still the last."""


def length(loader: Iterable[Any]) -> int | None:
    """How many batches ``loader`` has, if it says so; a DataLoader over an iterable dataset cannot."""
    try:
        return len(loader)  # type: ignore[arg-type]
    except (TypeError, NotImplementedError):
        return None


def inputs_of(loader: Iterable[Any]) -> int | None:
    """How many inputs ``loader`` has, if it or its dataset says so."""
    inputs = getattr(loader, "inputs", None)
    return inputs if isinstance(inputs, int) else length(getattr(loader, "dataset", ()) or ()) or None


def add_gradients(loss: Tensor, parameters: Sequence[nn.Parameter]) -> None:
    """Add the gradients of ``loss`` to those that ``parameters`` have."""
    wanted = [p for p in parameters if p.requires_grad]
    if not wanted or not loss.requires_grad:
        return
    for parameter, gradient in zip(wanted, torch.autograd.grad(loss, wanted, allow_unused=True), strict=True):
        if gradient is not None:
            parameter.grad = gradient if parameter.grad is None else parameter.grad + gradient


def loss_gradients(method: Learning, weights: dict[str, ProtectedWeight], batches: Iterable[Any]) -> dict[str, Tensor]:
    """``∂L/∂W`` of the mean loss over ``batches``, as stacks ``[g, o, d]``, and not projected.

    In evaluation mode, without a trace on gradients, flags and random states. A weight without gradient is left out.
    """
    learning = {name: weight for name, weight in weights.items() if weight.parameter.requires_grad}
    parameters = [weight.parameter for weight in learning.values()]
    sums: list[Tensor | None] = [None] * len(parameters)
    total = 0
    with evaluating(method.model), untouched_randomness(), torch.enable_grad(), unprojected(learning.values()):
        for batch in batches:
            n = inputs_in(batch) or 1
            found = torch.autograd.grad(method.objective(batch), parameters, allow_unused=True)
            sums = [a if b is None else b * n if a is None else a + b * n for a, b in zip(sums, found, strict=True)]
            total += n
    return {
        name: weight.matrices(G / total).detach()
        for (name, weight), G in zip(learning.items(), sums, strict=True)
        if G is not None
    }


@contextmanager
def unprojected(weights: Iterable[ProtectedWeight]) -> Iterator[None]:
    """Gradients of ``weights`` arrive as they are, for a while."""
    flags = [(weight, weight.projects_gradient) for weight in weights]
    try:
        for weight, _ in flags:
            weight.projects_gradient = False
        yield
    finally:
        for weight, flag in flags:
            weight.projects_gradient = flag

"""What a method of one's own may define: a few facts about itself, and hooks that ``Method`` calls.

Left as they are, nothing is protected and nothing is added to a step: plain fine-tuning.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from codecl.attach import EffectiveWeight, Mixing, ProtectedWeight
from codecl.attach.survey import LayerTable
from codecl.method.gradients import add_gradients
from codecl.method.guard import Closure
from codecl.method.state import ForeignState, check_directions

Presets = Mapping[str, Mapping[str, Any]]


class Hooks:
    """The part of ``Method`` that a subclass defines.

    ``examine`` is asked before anything is attached; ``prepare`` and ``remember`` around a task, the second being the
    only place where memory changes; ``learn``, ``penalty``, ``after_step`` and ``end_epoch`` while it is learned;
    ``memory_state``, ``load_memory`` and ``effective_weight`` for saving; ``describe`` for reports.
    """

    name: ClassVar[str] = "finetune"
    label: ClassVar[str] = ""
    """Shown beside the name in every table."""
    presets: ClassVar[Presets] = {"paper": {}, "official": {}}
    """The settings that make the method what its paper prints, and what its authors' code runs."""
    protects: ClassVar[bool] = False
    weight_type: ClassVar[type[ProtectedWeight]] = ProtectedWeight
    plain_first_task: ClassVar[bool] = True
    """Whether the first task is learned exactly as fine-tuning would learn it."""
    freezes_heads: ClassVar[bool] = True
    """Whether the heads of a multi-head model are frozen once their task has been learned."""
    distributed: ClassVar[bool] = True
    """Whether several processes can learn together; not where each would draw or keep samples of its own."""
    sharded: ClassVar[bool] = True
    """Whether it can learn models in shards (``fully_shard``); not inherited, since each method has to see to it."""
    joint: ClassVar[bool] = False
    """Whether all tasks are learned at once. A trainer begins them all, then hands out batches ``(x, y, tasks)``."""
    samples: int | None = None
    """How many inputs of a task the method looks at; None for all."""
    penalty_in_validation: bool = False
    """Whether early stopping sees the loss with the penalty."""
    decode: Callable[[int, Tensor], Tensor] | None = None
    """Inputs of the task at a position, from what its stream stores and batches have as ``raw``. A trainer sets it."""
    layers: LayerTable
    """Every weight of the model, and why it is not protected where it is not."""

    @property
    def weights(self) -> dict[str, ProtectedWeight]:
        """The protected weights by name."""
        return self.layers.protected

    def examine(self) -> None:
        """Look at the surveyed model before anything is attached; raise to refuse it, or a setting."""

    @property
    def samples_before(self) -> int | None:
        """How many inputs ``prepare`` looks at; None for all."""
        return self.samples

    def prepare(self, loader: Iterable[Any] | None) -> dict[str, EffectiveWeight]:
        """Before a task after the first: the effective weights that it sees, by weight name."""
        return {}

    def remember(self, loader: Iterable[Any] | None) -> None:
        """After a task: fold its inputs into memory. The only place where memory changes."""

    def memory_state(self) -> dict[str, Any]:
        """What ``remember`` keeps.

        Two keys are reserved for what changes while a task is learned: ``"task"``, which is restored with the best
        epoch, and ``"replay"``, which goes on whichever epoch is the best.
        """
        return {}

    def load_memory(self, state: Mapping[str, Any]) -> None:
        """The inverse of ``memory_state``; sets the projections."""

    def effective_weight(self, name: str, state: Mapping[str, Any]) -> EffectiveWeight:
        """The inverse of ``EffectiveWeight.state()`` for the weight ``name``; by default that of ``Mixing``.

        The memory has been loaded before.
        """
        check_directions(name, self.weights[name].shape, state["U"])
        g, K = len(state["U"]), state["U"].shape[-1]
        if state["M"].shape != (g, K, K):
            raise ForeignState(f"'{name}' has a mixture M {list(state['M'].shape)} of {K} directions in the state.")
        return Mixing.from_state(state, like=self.weights[name].parameter)

    def describe(self, name: str) -> dict[str, Any]:
        """Numbers, texts, and lists of them about one weight, for ``memory_summary``."""
        return {}

    def learn(self, closure: Closure, parameters: Sequence[nn.Parameter]) -> Any:
        """Leave the gradients of one step on ``parameters``, those of the optimizer that steps, and return the loss.

        ``closure()`` computes gradients and loss of the task as the user wrote them. Where the user calls
        ``optimizer.step()`` without one, they are there already and it returns None; it cannot be called again then.
        """
        loss, penalty = closure(), self.penalty()
        if penalty is None:
            return loss
        add_gradients(penalty, parameters, self.weights.values())
        return loss if loss is None else torch.as_tensor(loss).detach() + penalty.detach()

    def penalty(self) -> Tensor | None:
        """A term that is added to the loss of the task, as a function of the parameters."""
        return None

    def after_step(self) -> None:
        """The optimizer has stepped."""

    def end_epoch(self) -> None:
        """All batches of a watched loader have been learned from; ``self.batch`` is still the last."""

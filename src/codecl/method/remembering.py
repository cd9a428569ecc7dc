"""What a method does between tasks: what it remembers of each, and how the next one sees the weights.

The hooks, all optional:

    prepare(loader)       before a task after the first: the changes of weights that the task sees
    remember(loader)      after a task: fold its inputs into memory and set ``weight.projection``
    memory_state()        what ``remember`` keeps: nested dicts and lists of tensors, numbers and strings
    load_memory(state)    the inverse; sets ``weight.projection``
    describe(name)        what ``contents`` is to say of a weight beside its size, in plain numbers
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from codecl.attach import EffectiveWeight, Forward, LayerTable, Mixing, ProtectedWeight, call_with_first, take
from codecl.method.learning import Learning, Loss, loss_gradients
from codecl.method.memory_summary import summary
from codecl.method.state import check_directions

Task = int | str


class Remembering(Learning):
    """The tasks so far, and what is kept of them. ``Method`` stands on this."""

    samples: int | None = None
    """How many inputs of a task the method looks at; None for all."""

    def __init__(
        self, model: nn.Module, layers: LayerTable, forward: Forward = call_with_first, loss: Loss | None = None
    ) -> None:
        super().__init__(model, forward, loss)
        self.layers = layers
        self.tasks: list[Task] = []
        self._learning = False
        self._changes: list[dict[str, EffectiveWeight]] = []
        self._notes: dict[str, dict[str, Any]] = {}
        self._shown: int | None = None

    def contents(self) -> dict[str, dict[str, Any]]:
        """What is remembered of every protected weight, in plain numbers: what logs and figures show of a memory.

        All have ``shape``, ``[g, o, d]``, and ``bytes``, those of all tasks; one whose gradient is projected has
        ``capacity``, the share of its inputs that is protected. The rest is what the method notes and describes.
        """
        memory, notes = self.memory_state(), self._notes
        return {
            name: summary(weight, memory, self._changes) | notes.get(name, {}) | self.describe(name)
            for name, weight in self.weights.items()
        }

    # What a method overrides.

    @classmethod
    def reading(cls, preset: str) -> dict[str, Any]:
        """The settings that make the method what the paper prints (``paper``) or its authors run (``official``)."""
        return {}

    def prepare(self, loader: Iterable[Any] | None) -> dict[str, EffectiveWeight]:
        """Before a task after the first: how its view of the weights differs from the shared ones, by weight name."""
        return {}

    def remember(self, loader: Iterable[Any] | None) -> None:
        """After a task: fold its inputs into memory. The only place where memory changes."""

    def memory_state(self) -> Any:
        """What ``remember`` keeps."""
        return {}

    def load_memory(self, state: Any) -> None:
        """The inverse of ``memory_state``; sets the projections."""

    def load_change(self, name: str, state: Mapping[str, Any], memory: Any) -> EffectiveWeight:
        """The inverse of ``EffectiveWeight.state()``; ``memory`` is the ``memory_state()`` that was saved beside it."""
        check_directions(name, self.weights[name].shape, state["U"])
        return Mixing.from_state(state, like=self.weights[name].parameter)

    def describe(self, name: str) -> dict[str, Any]:
        """What ``contents`` says of one weight in addition: numbers, texts, and lists of them."""
        return {}

    # What a method uses.

    @property
    def weights(self) -> dict[str, ProtectedWeight]:
        """The protected weights by name."""
        return self.layers.protected

    @property
    def changes(self) -> dict[str, EffectiveWeight]:
        """How the task being learned sees the weights, by name; nothing between tasks."""
        return self._changes[-1] if self._learning else {}

    @property
    def latest_changes(self) -> dict[str, EffectiveWeight]:
        """How the task that was begun last sees the weights, also once it has been learned."""
        return self._changes[-1] if self._changes else {}

    def note(self, name: str, **facts: Any) -> None:
        """Keep plain numbers about a weight and the task at hand until the next one begins, for ``contents``."""
        self._notes.setdefault(name, {}).update(facts)

    @property
    def samples_before(self) -> int | None:
        """How many inputs ``prepare`` looks at; None for all."""
        return self.samples

    def sample(self, loader: Iterable[Any] | None) -> list[Any]:
        """Whole batches of ``loader``, until there are ``self.samples`` inputs."""
        return take(loader, self.samples)

    def gradients(self, batches: Iterable[Any]) -> dict[str, Tensor]:
        """``∂L/∂W`` over ``batches``, ``[g, o, d]`` by weight name, in evaluation mode and not projected."""
        return loss_gradients(self, self.weights, batches)

    @contextmanager
    def shared_weights(self) -> Iterator[None]:
        """The network on its shared weights, whatever task is current."""
        shown = self._shown
        self._show(None)
        try:
            yield
        finally:
            self._show(shown)

    def _show(self, position: int | None) -> None:
        self._shown = position
        changes = self._changes[position] if position is not None else {}
        for name, weight in self.weights.items():
            weight.change = changes.get(name)

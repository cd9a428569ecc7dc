"""How far what an old task knows has moved, on inputs of the user's choice, against what the projection leaves free."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from codecl.attach import Projection, ProtectedWeight, evaluating
from codecl.attach.capture import listening
from codecl.layers import LayerKind
from codecl.method.watch import strongly_held
from codecl.randomness import untouched_randomness
from codecl.text import table

if TYPE_CHECKING:
    from codecl.method.method import Method, Task

ROWS = 256
"""How many rows of each call are looked at, to see what is free."""


@dataclass(frozen=True)
class LayerMoved:
    """One protected weight."""

    moved: float
    """The change of what its layer puts out, relative to what it put out: ``‖Y_now − Y_then‖ / ‖Y_then‖``."""
    free: float
    """The share of its inputs, of their norm, that was not held firmly: 0 where nothing may move."""


@dataclass(frozen=True)
class PromiseReport:
    """What became of the outputs of a task. ``print`` shows it as a table."""

    task: Task
    moved: float
    """The change of the outputs, relative to what they were."""
    layers: dict[str, LayerMoved]

    @property
    def free(self) -> float:
        """The largest share of a layer's inputs that was not held firmly."""
        return max((layer.free for layer in self.layers.values()), default=0.0)

    def __str__(self) -> str:
        rows = [(name, f"{layer.moved:.2g}", f"{layer.free:.2g}") for name, layer in self.layers.items()]
        rows.append((f"outputs of task {self.task!r}", f"{self.moved:.2g}", f"{self.free:.2g}"))
        return table(("weight", "moved", "free"), rows, right=[False, True, True])


class Promise:
    """The outputs of a task, and those of all protected layers, as they are when this is made; ``check()`` compares.

    Without ``layers`` it keeps the outputs of the model alone.
    """

    def __init__(self, method: Method, task: Task, batches: Sequence[Any], layers: bool = True) -> None:
        self._method, self._task, self._batches = method, task, batches
        self._weights = method.weights if layers else {}
        self._held: dict[str, list[float]] = {}
        self._then = self._run(look=self._look)

    def check(self) -> PromiseReport:
        """How far all of it has moved since."""
        now = self._run()
        layers = {}
        for name, weight in self._weights.items():
            if name in self._held:
                held, total = self._held[name]
                free = max(0.0, 1 - held / total) ** 0.5 if total else 0.0
                module = weight.kind.module_name
                layers[name] = LayerMoved(_moved(now[module], self._then[module]), free)
        return PromiseReport(self._task, _moved(now[""], self._then[""]), layers)

    @torch.no_grad()
    def _run(self, look: Any = None) -> dict[str, list[Tensor]]:
        """What the model, under the name ``""``, and the modules of all protected weights put out."""
        method, found = self._method, dict[str, list[Tensor]]()
        modules = {kind.module_name: kind.module for weight in self._weights.values() for kind in weight.uses}
        hooks = [module.register_forward_hook(partial(_keep, found, name)) for name, module in modules.items()]
        weights = self._weights.values() if look is not None else ()
        try:
            with method.task(self._task), evaluating(method.model), untouched_randomness(), listening(weights, look):
                for batch in self._batches:
                    found.setdefault("", []).extend(_tensors(method.forward(method.model, batch)))
        finally:
            for hook in hooks:
                hook.remove()
        return found

    def _look(self, weight: ProtectedWeight, kind: LayerKind, x: Any) -> None:
        """How much of the rows of a call is held firmly by the projection in force."""
        held = self._held.setdefault(weight.name, [0.0, 0.0])
        piece = next(iter(kind.split(x)))
        for i, rows in enumerate(kind.rows(piece)):
            X = weight.projected_rows(rows[:ROWS], i).double()
            held[0] += _energy_held(X, i, weight.projection, weight.shape)
            held[1] += float(X.square().sum())


def _energy_held(X: Tensor, i: int, projection: Projection | None, shape: tuple[int, int, int]) -> float:
    """The energy of rows of matrix ``i`` that is held firmly; entry by entry nothing is held of inputs."""
    if projection is None or not projection.on_inputs:
        return 0.0
    stack = X.new_zeros(shape[0], *X.shape)
    stack[i] = X
    return float(strongly_held(stack, projection).square().sum())


def _keep(found: dict[str, list[Tensor]], name: str, _: nn.Module, __: Any, output: Any) -> None:
    found.setdefault(name, []).extend(_tensors(output))


def _tensors(output: Any) -> list[Tensor]:
    """The floating-point tensors in an output, whatever it is made of."""
    if isinstance(output, Tensor):
        return [output.detach().clone()] if output.is_floating_point() else []
    values = output.values() if hasattr(output, "values") else output if isinstance(output, (tuple, list)) else ()
    return [tensor for value in values for tensor in _tensors(value)]


def _moved(now: Sequence[Tensor], then: Sequence[Tensor]) -> float:
    change = sum(float((a - b).double().square().sum()) for a, b in zip(now, then, strict=True))
    before = sum(float(b.double().square().sum()) for b in then)
    return math.sqrt(change / before if before else change)

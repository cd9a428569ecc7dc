"""SGP: scaled gradient projection (Saha, Roy; AAAI 2023).

GPM with an importance ``λ`` for every basis vector, so that the past may still move where it mattered little:

    during task t     ∇W ← ∇W − ∇W B diag(λ) Bᵀ
    after task t      B grows as in GPM; every column b of it has s_b = ‖Rᵀ b‖, for a new one its singular value
                      λ_b ← min(1, λ_b + (α + 1) s_b / (α s_b + max s)), from λ_b = 0 for a new one

The maximum is taken over all columns, old and new. One that the inputs of a task do not touch keeps its importance.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

import torch.nn.functional as F
from torch import Tensor, nn

from codecl.algebra import Moments, Subspace
from codecl.method.settings import check
from codecl.method.state import ForeignState
from codecl.methods.gpm import GPM


class SGP(GPM):
    """Protects each direction of past inputs as strongly as it mattered to them.

    =============  ===================================================================================================
    alpha          α: how fast importance grows with energy; 0 for in proportion to s, and the larger the closer to GPM
    =============  ===================================================================================================

    The other settings are those of GPM.
    """

    name: ClassVar[str] = "sgp"
    sharded: ClassVar[bool] = True

    def __init__(self, model: nn.Module, *, alpha: float = 10.0, **gpm: Any) -> None:
        check(0 <= alpha < float("inf"), "alpha", alpha, "a finite number, 0 or more")
        super().__init__(model, **gpm)
        self.alpha = alpha
        self.importance: dict[str, list[Tensor]] = {}

    def remember(self, loader: Iterable[Any] | None) -> None:
        """The inputs of the learned task join the past, and say how much its directions matter."""
        for name, R in self._inputs(loader).items():
            before = self.importance.get(name) or [r.total.new_zeros(0) for r in R]
            B = [past.grow(r, self._energy(name), self._rule(name)) for past, r in self._with_past(name, R)]
            self.memory[name] = B
            self.importance[name] = [self._accumulate(*each) for each in zip(before, B, R, strict=True)]
        self._protect()

    def memory_state(self) -> dict[str, Any]:
        """The bases by weight, and the importance of their columns."""
        return super().memory_state() | {"importance": {name: self.importance.get(name, []) for name in self.weights}}

    def load_memory(self, state: Mapping[str, Any]) -> None:
        importance: dict[str, list[Tensor]] = {}
        for name, weight in self.weights.items():
            ranks = [[basis.shape[1]] for basis in state["bases"][name]]
            found = [list(lam.shape) for lam in state["importance"][name]]
            if found != ranks:
                raise ForeignState(f"'{name}' has importances of shape {found} in the state; its bases need {ranks}.")
            if ranks:
                importance[name] = [lam.to(weight.parameter.device) for lam in state["importance"][name]]
        self.importance = importance
        super().load_memory(state)

    def _importance(self, name: str) -> list[Tensor]:
        return self.importance[name]

    def _accumulate(self, before: Tensor, B: Subspace, R: Moments) -> Tensor:
        """``λ`` of all columns of ``B``, ``before`` being that of the old ones, which come first."""
        s = R.along(B.basis).clamp(min=0).sqrt()
        new = (self.alpha + 1) * s / (self.alpha * s + s.max()) if bool(s.any()) else s
        return (F.pad(before, (0, B.rank - len(before))) + new).clamp(max=1)

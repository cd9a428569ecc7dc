"""GPM: gradient projection memory (Saha, Garg, Roy; ICLR 2021).

For every layer, with ``R`` the inputs of the learned task as columns and ``B`` an orthonormal basis of the past:

    during task t     ∇W ← ∇W − ∇W B Bᵀ
    after task t      R̂ = R − B Bᵀ R;  B ← [B, top k of R̂], the smallest k with ‖B Bᵀ R‖² + ‖R̂_k‖² ≥ ε_th ‖R‖²

The paper counts ``k`` so that the threshold is reached. The published code does so from the second task on; of the
first task it keeps the directions whose share stays strictly below it (``first_rule="below"``). What later methods of
this school add stands in files of their own: sgp, trgp, cuber, trgp_sd, dfgp, api.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from statistics import fmean
from typing import Any, ClassVar, Literal

from torch import Tensor, nn

from codecl.algebra import Moments, Subspace
from codecl.attach import ProtectedWeight, capture_moments, project_away
from codecl.layers import LayerKind
from codecl.method.hooks import Presets
from codecl.method.method import Method
from codecl.method.settings import ByWeight, by_weight, check, check_patterns, matching, values_of
from codecl.method.state import check_directions


class GPM(Method):
    """Protects the directions that hold most of the energy of past inputs.

    =============  ===================================================================================================
    threshold      ε_th: the share of the energy of a task's inputs that is protected, after the first task
    increment      how much the threshold grows with every further task; it ends at 1
    first_rule     the first task's directions ``reach`` the threshold, or stay strictly ``below`` it
    samples        how many inputs of a task are looked at; None for all
    images         how many inputs of a batch a layer sees: a number, or a mapping from name patterns of weights
    =============  ===================================================================================================
    """

    name: ClassVar[str] = "gpm"
    sharded: ClassVar[bool] = True
    presets: ClassVar[Presets] = {"paper": {}, "official": {"first_rule": "below"}}
    protects: ClassVar[bool] = True

    def __init__(
        self,
        model: nn.Module,
        *,
        threshold: ByWeight = 0.97,
        increment: float = 0.003,
        first_rule: Literal["reach", "below"] = "reach",
        samples: int | None = 125,
        images: int | Mapping[str, int] | None = None,
        **common: Any,
    ) -> None:
        check(all(0 < share <= 1 for share in values_of(threshold)), "threshold", threshold, "a share in (0, 1]")
        check(increment >= 0, "increment", increment, "0 or more")
        check(first_rule in ("reach", "below"), "first_rule", first_rule, "'reach' or 'below'")
        check(samples is None or samples > 0, "samples", samples, "a positive number of inputs, or None for all")
        counts = [] if images is None else values_of(images)
        check(all(n > 0 for n in counts), "images", images, "a positive number of inputs, or None for all")
        self._thresholds, self.increment, self.first_rule = threshold, increment, first_rule
        self.samples, self.images = samples, images
        self.memory: dict[str, list[Subspace]] = {}
        super().__init__(model, **common)

    def examine(self) -> None:
        self.threshold = by_weight("threshold", self._thresholds, self.weights)
        if isinstance(self.images, Mapping):
            check_patterns("images", list(self.images), self.weights)

    def remember(self, loader: Iterable[Any] | None) -> None:
        """The inputs of the learned task join the past."""
        for name, R in self._inputs(loader).items():
            self.memory[name] = [B.grow(r, self._energy(name), self._rule(name)) for B, r in self._with_past(name, R)]
        self._protect()

    def memory_state(self) -> dict[str, Any]:
        """The bases by weight, none for a weight that was never called."""
        return {"bases": {name: [B.basis for B in self.memory.get(name, ())] for name in self.weights}}

    def load_memory(self, state: Mapping[str, Any]) -> None:
        memory: dict[str, list[Subspace]] = {}
        for name, weight in self.weights.items():
            if bases := [basis.to(weight.parameter.device) for basis in state["bases"][name]]:
                check_directions(name, weight.shape, bases)
                memory[name] = [Subspace(basis) for basis in bases]
        self.memory = memory
        self._protect()

    def describe(self, name: str) -> dict[str, Any]:
        return {"rank": fmean(B.rank for B in self.memory[name])} if name in self.memory else {}

    # What the methods that build on GPM use and override.

    def _importance(self, name: str) -> list[Tensor]:
        """How strongly each basis vector is held, from 0 to 1; for GPM, wholly."""
        return [B.basis.new_ones(B.rank) for B in self.memory[name]]

    def _held(self, name: str) -> tuple[list[Tensor], list[Tensor]]:
        """Orthonormal directions of every matrix, and how strongly each is held."""
        return [B.basis for B in self.memory[name]], self._importance(name)

    def _protect(self) -> None:
        """``∇W ← ∇W − ∇W B diag(λ) Bᵀ`` from here on."""
        for name, weight in self.weights.items():
            weight.projection = None
            if name in self.memory:
                bases, values = self._held(name)
                weight.projection = project_away(bases, weight.parameter, values)

    def _inputs(self, loader: Iterable[Any] | None) -> dict[str, list[Moments]]:
        """The energy of what each matrix of each weight was fed, under the shared weights."""
        with self.shared_weights():
            return capture_moments(self.model, self.weights, self.sample(loader), self.forward, self._moments)

    def _with_past(self, name: str, R: list[Moments]) -> Iterator[tuple[Subspace, Moments]]:
        """Each matrix's past, empty at first, and its new inputs."""
        past = self.memory.get(name) or [Subspace.zero(r.dim, r.total.device) for r in R]
        return zip(past, R, strict=True)

    def _energy(self, name: str) -> float:
        """``ε_th`` for the task just learned."""
        return min(1.0, self.threshold[name] + self.increment * self.current_task)

    def _rule(self, name: str) -> Literal["reach", "below"]:
        return "reach" if name in self.memory else self.first_rule

    def _moments(self, weight: ProtectedWeight, kind: LayerKind, x: Any) -> Iterator[list[Moments]]:
        """What is looked at of one call of a layer."""
        for piece in self._pieces(kind, x):
            yield kind.moments(piece)

    def _pieces(self, kind: LayerKind, x: Any) -> Iterator[Any]:
        """The call with as many inputs as ``images`` says, in pieces."""
        limit = self.images
        if isinstance(limit, Mapping):
            limit = next((limit[pattern] for pattern in matching(kind.full_name, limit)), None)
        return kind.split(x if limit is None else kind.first(x, limit))

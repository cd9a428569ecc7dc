"""TRGP with space decoupling, in the style of SD (Zhao et al.; CVPR 2023).

Of SD only the idea is public to us: the protected space is split into a *stability* space, which past and present
tasks share, and a *plasticity* space, the rest of it, and the two are held differently. This file is one reading of
that idea, and its results are SD-style, never SD's. With ``A`` the basis before the task, ``V`` that of its own
inputs, and ``Y cos Θ Zᵀ = svd(Aᵀ V)``:

    after task t      I = the columns of A Y with cos θ ≥ 1 − τ;  P = what else the memory protects
    during a task     ∇W ← ∇W − ∇W I Iᵀ − μ ∇W P Pᵀ

``μ = 1`` is TRGP. After the first task there is no past to share with: everything it used is held wholly.
``τ`` and ``μ`` are our choice; no published value is known to us.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from codecl.algebra import Moments, Subspace
from codecl.algebra.tolerances import ORTHONORMAL
from codecl.method.settings import check
from codecl.method.state import ForeignState, check_directions
from codecl.methods.trgp import TRGP


class TRGPSD(TRGP):
    """TRGP that holds firmly what tasks share, and the rest of the past less so.

    ==============  ==================================================================================================
    tolerance       τ: directions with cos θ ≥ 1 − τ are shared
    plasticity      μ: how strongly the rest of the memory is held, from 0 to 1
    ==============  ==================================================================================================

    and the settings of ``TRGP`` and ``GPM``.
    """

    name: ClassVar[str] = "trgp-sd"
    sharded: ClassVar[bool] = True
    label: ClassVar[str] = "SD-style"

    def __init__(self, model: nn.Module, *, tolerance: float = 0.1, plasticity: float = 0.9, **settings: Any) -> None:
        check(0 < tolerance < 1, "tolerance", tolerance, "1 − cos θ in (0, 1)")
        check(0 <= plasticity <= 1, "plasticity", plasticity, "a share from 0 to 1")
        super().__init__(model, **settings)
        self.tolerance, self.plasticity = tolerance, plasticity
        self.stable: dict[str, list[Tensor]] = {}

    def memory_state(self) -> dict[str, Any]:
        return super().memory_state() | {"stable": {name: self.stable.get(name, []) for name in self.weights}}

    def load_memory(self, state: Mapping[str, Any]) -> None:
        stable: dict[str, list[Tensor]] = {}
        for name, weight in self.weights.items():
            B, found = state["bases"][name], state["stable"][name]
            if not B and not found:
                continue
            check_directions(name, weight.shape, B)
            check_directions(name, weight.shape, found)
            inside = [Subspace(b).overlap(Subspace(U)) for b, U in zip(B, found, strict=True) if U.shape[1]]
            if any(share < 1 - ORTHONORMAL for share in inside):
                raise ForeignState(f"'{name}' shares directions in the state that its bases do not have.")
            stable[name] = [U.to(weight.parameter.device) for U in found]
        self.stable = stable
        super().load_memory(state)

    def _fold(self, name: str, R: list[Moments]) -> None:
        self.stable[name] = [self._shared(name, A, r) for A, r in self._with_past(name, R)]
        super()._fold(name, R)

    def _shared(self, name: str, A: Subspace, R: Moments) -> Tensor:
        """``I``: the directions of the past that the new inputs have as well; without a past, all of the memory."""
        if A.rank == 0:
            return self._choose(name, A, R)[0].basis
        V = Subspace.fit(R, self._energy(name), "reach")
        Y, cosines, _ = torch.linalg.svd(A.basis.mT @ V.basis, full_matrices=False)
        shared: Tensor = A.basis @ Y[:, cosines >= 1 - self.tolerance]
        return shared

    def _held(self, name: str) -> tuple[list[Tensor], list[Tensor]]:
        """``[I, P]`` and how strongly each direction is held, 1 or μ."""
        bases, values = [], []
        for B, shared in zip(self.memory[name], self.stable[name], strict=True):
            k, r = shared.shape[1], B.rank
            inside = torch.linalg.qr(B.basis.mT @ shared, mode="complete").Q  # I lies within the memory
            bases.append(torch.cat([shared, B.basis @ inside[:, k:]], dim=1))
            values.append(torch.cat([shared.new_ones(k), shared.new_full((r - k,), self.plasticity)]))
        return bases, values

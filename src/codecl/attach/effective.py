"""Effective weights: what one task sees in place of the shared weight ``W: [g, o, d]``.

Mixing      W + W U M Uᵀ                    CODE-CL
Own         W + B F                         CODE-CL, where a task keeps what the memory takes
Scaling     W + Σ_j W S_j (Q_j − I) S_jᵀ    TRGP
Expansion   W + Σ_s V_s Φ_sᵀ                API
Masked      W diag(a)                       HAT
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, Self, cast

import torch
from torch import Tensor, nn

from codecl.algebra.tolerances import WORKING_DTYPE
from codecl.attach.projection import Projection, times
from codecl.attach.shards import together, used, whole

if TYPE_CHECKING:
    from codecl.attach.extended import ExtendedWeight
    from codecl.attach.units.units import Units
    from codecl.attach.weight import ProtectedWeight


class EffectiveWeight(Protocol):
    """A weight as one task sees it: a function of the shared weight and of parameters that belong to the task."""

    on_inputs: bool = False
    """Whether ``rows`` is defined, and may be used in place of ``weight``."""

    def weight(self, W: Tensor) -> Tensor:
        """The effective weight, ``[g, o, d] → [g, o, d]``."""

    def rows(self, X: Tensor) -> Tensor:
        """Rows ``X'``, ``[n, d]``, with ``X' Wᵀ = X W_effᵀ``, but for ``outputs``, where ``g = 1``."""
        raise TypeError(f"{type(self).__name__} changes weights only, not rows")

    def outputs(self, X: Tensor) -> Tensor | None:
        """What is added to the outputs ``X' Wᵀ``, ``[n, o]``; None for nothing."""
        return None

    def parameters(self) -> list[nn.Parameter]:
        """What is learned."""

    def state(self) -> dict[str, Any]:
        """What it takes to make it again, as tensors, numbers and strings."""

    def follow(self, like: Tensor) -> None:
        """Go where the weight ``like`` has gone: to another device or dtype, or to other processes."""
        for parameter in self.parameters():
            parameter.data = parameter.data.to(like)


class Mixing(EffectiveWeight):
    """``W + W U M Uᵀ``: fixed directions ``U: [g, d, K]`` of the shared weight, and a learned ``M: [g, K, K]``.

        W_eff = W + W U M Uᵀ                    equation 7 of the CODE-CL paper, M from zero
        W_eff = W − W U Uᵀ + W U M Uᵀ           the published implementation (``replace``), M from a random start

    ``hold`` keeps the subtracted term out of the gradient of ``W``, as the published Linear layers do. On the input
    side the same change is ``x' = x + U M Uᵀ x``.
    """

    def __init__(self, U: Tensor, M: Tensor, replace: bool = False, hold: bool = False) -> None:
        self.U, self.M = U, nn.Parameter(M)
        self.replace, self.hold = replace, hold
        self.on_inputs = U.shape[0] == 1 and not (replace and hold)
        if replace:
            self._eye = torch.eye(M.shape[-1], dtype=M.dtype, device=M.device)

    @property
    def _core(self) -> Tensor:
        M = used(self.M)
        return M - self._eye if self.replace and not self.hold else M

    def weight(self, W: Tensor) -> Tensor:
        W_eff = W + times(times(times(W, self.U), self._core), self.U.mT)
        if self.replace and self.hold:
            W_eff = W_eff - times(times(W.detach(), self.U), self.U.mT)
        return W_eff

    def rows(self, X: Tensor) -> Tensor:
        U, core = self.U.squeeze(0), self._core.squeeze(0)
        return X + ((X @ U) @ core.mT) @ U.mT

    def parameters(self) -> list[nn.Parameter]:
        return [self.M]

    def state(self) -> dict[str, Any]:
        return {"U": self.U, "M": whole(self.M).clone(), "replace": self.replace, "hold": self.hold}

    def follow(self, like: Tensor) -> None:
        self.M, self.U = together(self.M, like), self.U.to(like)
        if self.replace:
            self._eye = self._eye.to(like)

    @classmethod
    def from_state(cls, state: Mapping[str, Any], like: Tensor) -> Self:
        """The inverse of ``state``, on the device of the weight ``like``."""
        U, M = state["U"].to(like.device), state["M"].to(like.device, copy=True)
        return cls(U, M, bool(state["replace"]), bool(state["hold"]))


class Own(EffectiveWeight):
    """``W + B F``: fixed directions ``F: [g, k, d]``, and weights of the task's own in them, ``B: [g, o, k]``."""

    def __init__(self, F: Tensor, B: Tensor) -> None:
        self.F, self.B = F, nn.Parameter(B)
        self.on_inputs = F.shape[0] == 1

    def added(self) -> Tensor:
        """``B F``, ``[g, o, d]``, in double precision and without a gradient."""
        wide = (X.cpu() if X.device.type == "mps" else X for X in (whole(self.B), self.F))  # no float64 there
        return times(*(X.to(WORKING_DTYPE) for X in wide))

    def weight(self, W: Tensor) -> Tensor:
        return W + times(used(self.B), self.F)

    def rows(self, X: Tensor) -> Tensor:
        return X

    def outputs(self, X: Tensor) -> Tensor:
        return (X @ self.F.squeeze(0).mT) @ used(self.B).squeeze(0).mT

    def parameters(self) -> list[nn.Parameter]:
        return [self.B]

    def state(self) -> dict[str, Any]:
        return {"F": self.F, "B": whole(self.B).clone()}

    def follow(self, like: Tensor) -> None:
        self.B, self.F = together(self.B, like), self.F.to(like)

    @classmethod
    def from_state(cls, state: Mapping[str, Any], like: Tensor) -> Self:
        """The inverse of ``state``, on the device of the weight ``like``."""
        return cls(state["F"].to(like.device), state["B"].to(like.device, copy=True))


class Scaling(EffectiveWeight):
    """``W + Σ_j W S_j (Q_j − I) S_jᵀ``: what the weight does to the inputs of trusted tasks, scaled by learned ``Q``.

    The ``S_j`` overlap: a column of several is kept, and multiplied, once, as one of ``U``; ``S_j = U[:, columns_j]``.
    """

    def __init__(
        self,
        tasks: Sequence[int],
        bases: Sequence[Tensor],
        Q: Sequence[Tensor] | None = None,
        of: ProtectedWeight | None = None,
    ) -> None:
        self.tasks = list(tasks)
        self.U, self.columns = distinct_columns(bases)  # [g, d, k], and [r_j] for each task
        eyes = (torch.eye(S.shape[2], dtype=S.dtype, device=S.device).expand(len(S), -1, -1) for S in bases)
        self.Q = [nn.Parameter(q.clone()) for q in (eyes if Q is None else Q)]  # [g, r_j, r_j]
        self.on_inputs = len(self.U) == 1
        self._of, self._asked, self._removed = of, cast(Projection | None, None), False

    @property
    def bases(self) -> list[Tensor]:
        """The ``S_j``, ``[g, d, r_j]``."""
        return [self.U[..., columns] for columns in self.columns]

    def weight(self, W: Tensor) -> Tensor:
        source = W.detach() if self._is_removed() else W
        return W + times(self._scaled(times(source, self.U)), self.U.mT)

    def rows(self, X: Tensor) -> Tensor:
        Z = (X @ self.U.squeeze(0)).unsqueeze(0)
        return X + self._scaled(Z, transposed=True).squeeze(0) @ self.U.squeeze(0).mT

    def parameters(self) -> list[nn.Parameter]:
        return self.Q

    def state(self) -> dict[str, Any]:
        return {"tasks": list(self.tasks), "Q": [whole(Q).clone() for Q in self.Q]}

    def follow(self, like: Tensor) -> None:
        self.Q = [together(Q, like) for Q in self.Q]
        self.U, self.columns = self.U.to(like), [columns.to(like.device) for columns in self.columns]

    def _is_removed(self) -> bool:
        """Whether the projection removes all gradient that reaches ``W`` through ``U``: then it is not computed."""
        if self._of is None or not self._of.learns_projected:
            return False
        if self._asked is not self._of.projection:
            self._asked = self._of.projection
            self._removed = self._asked is not None and self._asked.removes(self.U)
        return self._removed

    def _scaled(self, Z: Tensor, transposed: bool = False) -> Tensor:
        """``Σ_j Z_j (Q_j − I)`` with ``Z_j`` the columns of task ``j``, and the result in their places."""
        scaled = torch.zeros_like(Z)
        for columns, Q in zip(self.columns, map(used, self.Q), strict=True):
            Z_j = Z.index_select(2, columns)
            scaled = scaled.index_add(2, columns, times(Z_j, Q.mT if transposed else Q) - Z_j)
        return scaled


def distinct_columns(bases: Sequence[Tensor]) -> tuple[Tensor, list[Tensor]]:
    """The columns of all ``bases: [g, d, r_j]``, each once, and which of them each of the bases has.

    Columns of a stack are the same if they are in all of its matrices.
    """
    every = torch.cat(list(bases), dim=2)
    U, places = torch.unique(every.flatten(0, 1), dim=1, return_inverse=True)
    return U.unflatten(0, every.shape[:2]), list(torch.split(places, [S.shape[2] for S in bases]))


class Expansion(EffectiveWeight):
    """More inputs for a weight, mixtures of those that are there.

        W_eff x = W x + Σ_s V_s Φ_sᵀ x  = [W, V_1, …] [x, Φ_1ᵀ x, …]

    ``Φ: [g, c, E]`` mixes the ``c`` channels, ``V: [g, o, E k]`` has the columns of the new ones, where ``k`` is the
    size of the kernel, under which all positions are mixed alike. For a Linear layer ``k = 1`` and ``c = d``.

    ``weight.columns`` are the ``V`` and ``Phi`` the ``Φ`` of all tasks. The task knows the first ``count``, and the
    last of these is its own if it is ``new``.
    """

    def __init__(self, weight: ExtendedWeight, Phi: list[nn.Parameter], count: int, new: bool) -> None:
        self.count, self.new = count, new
        self.on_inputs = weight.shape[0] == 1
        self._weight, self._Phi, self._kernel = weight, Phi, math.prod(weight.kind.kernel)

    def weight(self, W: Tensor) -> Tensor:
        Phi, (g, o, d) = self._mixtures, self._weight.shape
        E = Phi.shape[2]
        V = W[..., d : d + E * self._kernel].reshape(g, o, E, self._kernel)
        return W[..., :d] + torch.einsum("goek,gce->gock", V, Phi).reshape(g, o, d)

    def rows(self, X: Tensor) -> Tensor:
        return self.widen(X, 0)

    def widen(self, X: Tensor, i: int) -> Tensor:
        """Rows ``[n, d]`` of matrix ``i`` beside their mixtures, ``[x, Φ_1ᵀ x, …]``."""
        channels = X.reshape(len(X), -1, self._kernel)
        mixed = torch.einsum("nck,ce->nek", channels, self._mixtures[i])
        return torch.cat([X, mixed.flatten(1)], dim=1)

    def parameters(self) -> list[nn.Parameter]:
        """All columns known, and the task's own mixtures."""
        own = self._Phi[self.count - 1 : self.count] if self.new else []
        return [*self._weight.columns[: self.count], *own]

    def state(self) -> dict[str, Any]:
        return {"count": self.count, "new": self.new}

    def follow(self, like: Tensor) -> None:
        for parameter in (*self._weight.columns, *self._Phi):
            parameter.data = parameter.data.to(like)

    @property
    def _mixtures(self) -> Tensor:
        return torch.cat(cast(list[Tensor], self._Phi[: self.count]), dim=2)


class Masked(EffectiveWeight):
    """``W diag(a)``: a weight as one task sees it, through the masks of the units it reads.

    Args:
        task: The position of the task.
        reads: How the inputs of the weight carry units; None where they carry none, and nothing is masked.
        mask: The mask ``a`` of a group of units.
        learned: The parameters of the masks that belong to this weight.
    """

    def __init__(
        self,
        task: int,
        reads: Units | None,
        mask: Callable[[str], Tensor],
        learned: Callable[[], list[nn.Parameter]],
    ) -> None:
        self.task, self._reads, self._mask, self._learned = task, reads, mask, learned

    def weight(self, W: Tensor) -> Tensor:
        x = self._reads
        return W if x is None else W * x.columns(self._mask(x.group), W.shape).to(W.dtype)

    def parameters(self) -> list[nn.Parameter]:
        return self._learned()

    def state(self) -> dict[str, Any]:
        return {"task": self.task}

    def follow(self, like: Tensor) -> None:
        """Masks are in single precision at least, and ``weight`` makes of them what it needs."""
        for parameter in self.parameters():
            parameter.data = parameter.data.to(like.device)

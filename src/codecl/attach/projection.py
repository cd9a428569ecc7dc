"""Multiplication by ``I − C``, and the two places where a gradient can meet it.

For ``Y = X Wᵀ`` the gradient is ``G = δᵀ X``, so ``G (I − C) = δᵀ (X (I − C))``: one product, two associations. The
*gradient side* projects the ``o`` rows of ``G``; the *input side* projects the ``n`` rows of ``X``. They agree, and
cost ``o`` and ``n`` rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, cast

import torch
from torch import Tensor

from codecl.algebra import Conceptor
from codecl.algebra.tolerances import ORTHONORMAL


class Projection:
    """``A ↦ A (I − C)`` for a stack ``A: [g, m, d]``, in the dtype and on the device of the weight.

    ``C`` is ``U diag(s) Uᵀ`` with ``rest`` outside ``U``. It is held as ``U``, ``[g, d, k]`` padded with zeros to the
    largest rank, or as the matrix ``I − C`` once that is cheaper, ``2k > d``. Narrow dtypes are projected in float32:
    bfloat16 rows leak 5e-3.
    """

    def __init__(self, bases: Sequence[Tensor], values: Sequence[Tensor], rests: Sequence[int], like: Tensor) -> None:
        dtype = torch.promote_types(like.dtype, torch.float32)
        g, d = len(bases), bases[0].shape[0]
        k = max(basis.shape[1] for basis in bases)
        U = torch.zeros(g, d, k, dtype=torch.float64, device=bases[0].device)
        s = torch.zeros(g, 1, k, dtype=torch.float64, device=bases[0].device)
        for i, (basis, value, rest) in enumerate(zip(bases, values, rests, strict=True)):
            U[i, :, : basis.shape[1]] = basis
            s[i, 0, : basis.shape[1]] = value - rest
        outside = 1.0 - torch.tensor(rests, dtype=torch.float64, device=U.device).reshape(g, 1, 1)
        self.matrix: Tensor | None = None
        if 2 * k > d:
            eye = torch.eye(d, dtype=torch.float64, device=U.device)
            self.matrix = (outside * eye - (U * s) @ U.mT).to(like.device, dtype)
            self.rank = d
            return
        self.basis, self.values = U.to(like.device, dtype), s.to(like.device, dtype)
        self.outside: Tensor | None = None if all(r == 0 for r in rests) else outside.to(like.device, dtype)
        self.rank = k

    @classmethod
    def of_conceptors(cls, conceptors: Sequence[Conceptor], like: Tensor) -> Projection:
        """``I − C`` with a conceptor for each matrix of the stack."""
        return cls(
            [c.basis for c in conceptors],
            [c.singular_values for c in conceptors],
            [c.rest for c in conceptors],
            like,
        )

    @classmethod
    def of_matrices(cls, P: Tensor, like: Tensor) -> Projection:
        """``A ↦ A P`` for a stack ``P: [g, d, d]``: the tensor itself where dtype and device are right, or a copy."""
        projection = cls.__new__(cls)
        projection.matrix = P.to(like.device, torch.promote_types(like.dtype, torch.float32))
        projection.rank = P.shape[-1]
        return projection

    def __call__(self, A: Tensor) -> Tensor:
        """``A (I − C)``, ``[g, m, d] → [g, m, d]``."""
        narrow, A = A.dtype, A.to(self._dtype)
        with unrounded(A):
            if self.matrix is not None:
                return times(A, self.matrix).to(narrow)
            inside = times(times(A, self.basis) * self.values, self.basis.mT)
            return (A - inside if self.outside is None else A * self.outside - inside).to(narrow)

    def removes(self, U: Tensor) -> bool:
        """Whether nothing is left of directions ``U: [g, d, k]`` but rounding."""
        return bool((self(U.mT).abs() <= ORTHONORMAL).all())

    @property
    def _dtype(self) -> torch.dtype:
        return self.basis.dtype if self.matrix is None else self.matrix.dtype


def unrounded(A: Tensor) -> AbstractContextManager[Any]:
    """Without autocast, also where a backward pass runs inside of it: its bfloat16 products would leak."""
    device = A.device.type
    return torch.autocast(device, enabled=False) if torch.is_autocast_enabled(device) else nullcontext()


def times(A: Tensor, B: Tensor) -> Tensor:
    """``A B`` for stacks, as one plain product where there is one matrix only, and entry by entry where each is one."""
    if B.shape[-2:] == (1, 1):
        return A * B
    return (A.squeeze(0) @ B.squeeze(0)).unsqueeze(0) if len(A) == 1 else A @ B


class ProjectedWeight(torch.autograd.Function):
    """The gradient side: ``W`` as it is, ``G ↦ G (I − C)`` on the way back."""

    @staticmethod
    def forward(W: Tensor, projection: Projection) -> Tensor:
        return W.view_as(W)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Projection], output: Tensor) -> None:
        ctx.projection = inputs[1]

    @staticmethod
    def backward(ctx: Any, G: Tensor) -> tuple[Tensor, None]:
        return ctx.projection(G), None


def projected_weight(W: Tensor, projection: Projection) -> Tensor:
    """``W``, whose gradient arrives as ``G (I − C)``."""
    return cast(Tensor, ProjectedWeight.apply(W, projection))  # type: ignore[no-untyped-call]


class ProjectedLinear(torch.autograd.Function):
    """The input side: ``Y = X Wᵀ + b`` whose weight gradient is ``δᵀ (X (I − C))``; ``X: [n, d]``, ``W: [o, d]``."""

    @staticmethod
    def forward(X: Tensor, W: Tensor, bias: Tensor | None, projection: Projection) -> Tensor:
        return torch.nn.functional.linear(X, W, bias)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor | None, Projection], output: Tensor) -> None:
        X, W, _, ctx.projection = inputs
        ctx.save_for_backward(X, W)

    @staticmethod
    def backward(ctx: Any, delta: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None, None]:
        X, W = ctx.saved_tensors
        wants_X, wants_W, wants_bias, _ = ctx.needs_input_grad
        with unrounded(delta):
            # Differentiated again (a gradient penalty), dX gives W a gradient too: projected, like every other.
            dX = delta @ projected_weight(W, ctx.projection) if wants_X else None
            dW = delta.mT @ ctx.projection(X.unsqueeze(0)).squeeze(0) if wants_W else None
        return dX, dW, delta.sum(0) if wants_bias else None, None


def projected_linear(X: Tensor, W: Tensor, bias: Tensor | None, projection: Projection) -> Tensor:
    """``X Wᵀ + b``, where the gradient of ``W`` is ``δᵀ (X (I − C))``."""
    return cast(Tensor, ProjectedLinear.apply(X, W, bias, projection))  # type: ignore[no-untyped-call]

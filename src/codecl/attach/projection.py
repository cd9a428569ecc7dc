"""Multiplication by ``I − C``, and the two places where a gradient can meet it.

For ``Y = X Wᵀ`` the gradient is ``G = δᵀ X``, so ``G (I − C) = δᵀ (X (I − C))``: one product, two associations. The
*gradient side* projects the ``o`` rows of ``G``; the *input side* projects the ``n`` rows of ``X``. They agree, and
cost ``o`` and ``n`` rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol, cast

import torch
from torch import Tensor

from codecl.algebra import Conceptor
from codecl.algebra.tolerances import ORTHONORMAL


class Projection(Protocol):
    """``A ↦ A (I − C)`` for a stack ``A: [g, m, d]``: what a gradient passes before it reaches its weight.

    ``project_away`` and ``project_conceptors`` make one.
    """

    on_inputs: bool = True
    """Whether every row is projected alike, so that rows of inputs can be projected in place of those of gradients."""

    def __call__(self, A: Tensor) -> Tensor:
        """``A (I − C)``, ``[g, m, d] → [g, m, d]``."""

    @property
    def capacity(self) -> float:
        """``tr(C)/d``, the mean over all matrices: 0 if nothing is protected, 1 if everything is."""

    def removes(self, U: Tensor) -> bool:
        """Whether nothing but rounding is left of directions ``U: [g, d, k]``."""
        return bool((self(U.mT).abs() <= ORTHONORMAL).all())


class LowRank(Projection):
    """``C = U diag(s) Uᵀ + rest (I − U Uᵀ)``, kept as ``basis``: ``U: [g, d, k]``, ``values``: ``s − rest: [g, 1, k]``
    and ``outside``: ``1 − rest: [g, 1, 1]``, or None where every rest is 0.
    """

    def __init__(self, basis: Tensor, values: Tensor, outside: Tensor | None = None) -> None:
        self.basis, self.values, self.outside = basis, values, outside

    def __call__(self, A: Tensor) -> Tensor:
        narrow, A = A.dtype, A.to(self.basis.dtype)
        with unrounded(A):
            inside = times(times(A, self.basis) * self.values, self.basis.mT)
            return (A - inside if self.outside is None else A * self.outside - inside).to(narrow)

    @property
    def capacity(self) -> float:
        g, d, _ = self.basis.shape
        inside = float(self.values.double().sum()) / (g * d)
        return inside if self.outside is None else inside + float((1 - self.outside.double()).mean())


class Dense(Projection):
    """``A ↦ A P`` for a stack ``matrix``: ``P = I − C: [g, d, d]``, which may be changed in place."""

    def __init__(self, matrix: Tensor) -> None:
        self.matrix = matrix

    def __call__(self, A: Tensor) -> Tensor:
        narrow, A = A.dtype, A.to(self.matrix.dtype)
        with unrounded(A):
            return times(A, self.matrix).to(narrow)

    @property
    def capacity(self) -> float:
        return 1 - float(self.matrix.diagonal(dim1=-2, dim2=-1).double().mean())


class Entrywise(Projection):
    """``G ↦ G ∘ kept`` for a gradient ``G: [g, o, d]`` and a factor from 0 to 1 for each of its entries."""

    on_inputs = False

    def __init__(self, kept: Tensor) -> None:
        self.kept = kept

    def __call__(self, A: Tensor) -> Tensor:
        return A * self.kept.to(A.dtype)

    @property
    def capacity(self) -> float:
        return 1 - float(self.kept.double().mean())

    def removes(self, U: Tensor) -> bool:
        return False


NOISE = 8.0
"""What a projection leaves of a row of gradients is noise where it is no more than ``NOISE · eps`` of the row's length.

Of rows that are projected away wholly, entries of up to 2.2 eps are left, in either precision and at any width up to
1024; directions below 8 eps of the largest are taken for noise as inputs are captured.
"""


class WithoutNoise(Projection):
    """A projection whose rounding is zero: adaptive optimizers would make full steps of it."""

    def __init__(self, projection: Projection) -> None:
        self.projection, self.on_inputs = projection, projection.on_inputs

    def __call__(self, A: Tensor) -> Tensor:
        left = self.projection(A)
        floor = NOISE * torch.finfo(wide_dtype(A)).eps * torch.linalg.vector_norm(A, dim=-1, keepdim=True)
        return left.masked_fill(left.abs() <= floor, 0.0)

    @property
    def capacity(self) -> float:
        return self.projection.capacity


def project_away(
    bases: Sequence[Tensor],
    like: Tensor,
    values: Sequence[Tensor] | None = None,
    rests: Sequence[int] | None = None,
) -> LowRank | Dense:
    """``A ↦ A (I − C)`` with ``C = U diag(s) Uᵀ + rest (I − U Uᵀ)`` for each matrix of a stack.

    It is kept as ``U``, padded with zeros to the largest rank, or as the matrix ``I − C`` once that is cheaper,
    ``2k > d``. Narrow dtypes are projected in float32: bfloat16 rows leak 5e-3.

    Args:
        bases: ``U: [d, k]``, orthonormal, one for each matrix.
        like: The weight, for its dtype and device.
        values: ``s: [k]`` of each, from 0 to 1; by default 1, which removes these directions wholly.
        rests: 0 or 1 for each; by default 0, which leaves all other directions alone.

    >>> projection = project_away([torch.eye(3)[:, :1]], like=torch.zeros(1))
    >>> projection(torch.ones(1, 1, 3)).tolist()
    [[[0.0, 1.0, 1.0]]]
    """
    g, d, k = len(bases), bases[0].shape[0], max(basis.shape[1] for basis in bases)
    U = torch.zeros(g, d, k, dtype=torch.float64, device=bases[0].device)
    s = torch.zeros(g, 1, k, dtype=torch.float64, device=bases[0].device)
    rests = [0] * g if rests is None else rests
    for i, basis in enumerate(bases):
        U[i, :, : basis.shape[1]] = basis
        s[i, 0, : basis.shape[1]] = (1 if values is None else values[i]) - rests[i]
    outside = 1.0 - torch.tensor(rests, dtype=torch.float64, device=U.device).reshape(g, 1, 1)
    dtype = wide_dtype(like)
    if 2 * k > d:
        eye = torch.eye(d, dtype=torch.float64, device=U.device)
        return Dense((outside * eye - (U * s) @ U.mT).to(like.device, dtype))
    U, s, outside = (tensor.to(like.device, dtype) for tensor in (U, s, outside))
    return LowRank(U, s, outside if any(rests) else None)


def project_conceptors(conceptors: Sequence[Conceptor], like: Tensor) -> LowRank | Dense:
    """``A ↦ A (I − C)`` with a conceptor for each matrix of the stack; ``like`` is the weight."""
    values = [C.singular_values for C in conceptors]
    return project_away([C.basis for C in conceptors], like, values, [C.rest for C in conceptors])


def wide_dtype(like: Tensor) -> torch.dtype:
    """The dtype of ``like``, in single precision at least."""
    return torch.promote_types(like.dtype, torch.float32)


def is_narrow(like: Tensor) -> bool:
    """Whether the dtype of ``like`` is narrower than single precision."""
    return wide_dtype(like) != like.dtype


def unrounded(A: Tensor) -> AbstractContextManager[Any]:
    """Without autocast, also where a backward pass runs inside of it: its bfloat16 products would leak."""
    device = A.device.type
    return torch.autocast(device, enabled=False) if torch.is_autocast_enabled(device) else nullcontext()


def times(A: Tensor, B: Tensor) -> Tensor:
    """``A B`` for stacks, as one plain product where there is one matrix only, and entry by entry where each is one."""
    if B.shape[-2:] == (1, 1):
        return A * B
    return (A.squeeze(0) @ B.squeeze(0)).unsqueeze(0) if len(A) == 1 else A @ B


Deliver = Callable[[Tensor], None]
"""Is told of every gradient that reaches a weight projected, ``[g, o, d]`` or ``[o, d]``."""


def ignore(D: Tensor) -> None:
    """Nobody wants to know."""


class ProjectedWeight(torch.autograd.Function):
    """The gradient side: ``W`` as it is, ``G ↦ G (I − C)`` on the way back."""

    @staticmethod
    def forward(W: Tensor, projection: Projection, deliver: Deliver) -> Tensor:
        return W.view_as(W)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Projection, Deliver], output: Tensor) -> None:
        _, ctx.projection, ctx.deliver = inputs

    @staticmethod
    def backward(ctx: Any, G: Tensor) -> tuple[Tensor, None, None]:
        D = ctx.projection(G)
        ctx.deliver(D)
        return D, None, None


def projected_weight(W: Tensor, projection: Projection, deliver: Deliver = ignore) -> Tensor:
    """``W``, whose gradient arrives as ``G (I − C)``; ``deliver`` is told of it."""
    return cast(Tensor, ProjectedWeight.apply(W, projection, deliver))  # type: ignore[no-untyped-call]


class ProjectedLinear(torch.autograd.Function):
    """The input side: ``Y = X Wᵀ + b`` whose weight gradient is ``δᵀ (X (I − C))``; ``X: [n, d]``, ``W: [o, d]``.

    Under autocast ``Y`` and ``dX`` are narrow products, as they are without us. The weight gradient is one of ``X`` and
    ``W`` as they are stored: rounded rows would lie in directions that were projected away.
    """

    @staticmethod
    def forward(X: Tensor, W: Tensor, bias: Tensor | None, projection: Projection, deliver: Deliver) -> Tensor:
        return torch.nn.functional.linear(X, W, bias)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        X, W, _, ctx.projection, ctx.deliver = inputs
        ctx.save_for_backward(X, W)

    @staticmethod
    def backward(ctx: Any, delta: Tensor) -> tuple[Tensor | None, ...]:
        X, W = ctx.saved_tensors
        wants_X, wants_W, wants_bias, *_ = ctx.needs_input_grad
        with unrounded(delta):
            # Differentiated again (a gradient penalty), dX gives W a gradient too: projected, like every other.
            V = projected_weight(W, ctx.projection, ctx.deliver).to(delta.dtype) if wants_X else None
            dX = None if V is None else (delta @ V).to(X.dtype)
            dW = delta.to(W.dtype).mT @ ctx.projection(X.unsqueeze(0)).squeeze(0) if wants_W else None
            db = delta.to(W.dtype).sum(0) if wants_bias else None
        if dW is not None:
            ctx.deliver(dW)
        return dX, dW, db, None, None


def projected_linear(
    X: Tensor, W: Tensor, bias: Tensor | None, projection: Projection, deliver: Deliver = ignore
) -> Tensor:
    """``X Wᵀ + b``, where the gradient of ``W`` is ``δᵀ (X (I − C))``; ``deliver`` is told of it."""
    return cast(Tensor, ProjectedLinear.apply(X, W, bias, projection, deliver))  # type: ignore[no-untyped-call]

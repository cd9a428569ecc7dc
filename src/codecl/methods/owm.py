"""OWM: orthogonal weights modification (Zeng, Chen, Cui, Yu; Nature Machine Intelligence 2019).

For every layer, with ``r`` the mean input of a mini-batch, as a column, and ``P = I`` before the first:

    k = P r;   P ← P − k kᵀ / (α + rᵀk)
    ∇W ← ∇W P

as the published code does it: in every mini-batch of every task, also of the first, and with the ``P`` just updated.
This is recursive least squares; after any number of batches

    P = (I + Σ r rᵀ/α)⁻¹ = I − C,   C the conceptor whose odds are Σ r rᵀ/α

so that OWM is a disjunction of conceptors, ``C ← C ∨ C_r`` with the odds ``r rᵀ/α`` of each batch. A convolution has
a row ``r`` for each patch of the mean input map. Taken one after another, as published, or all at once, ``R: [n, d]``,

    P ← P − P Rᵀ (α I + R P Rᵀ)⁻¹ R P

they give the same. In the published code for MNIST ``P`` starts at ``I/α``, which only rescales the learning rate.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from codecl.algebra.tolerances import WORKING_DTYPE, relative_rank_floor
from codecl.attach import EffectiveWeight, ProtectedWeight, listen, take
from codecl.attach.projection import Dense, wide_dtype
from codecl.layers import LayerKind
from codecl.method.guard import Closure
from codecl.method.hooks import Presets
from codecl.method.method import Method
from codecl.method.settings import ByWeight, by_weight, check, values_of
from codecl.method.state import check_directions

NOISE = relative_rank_floor(WORKING_DTYPE)


class OWM(Method):
    """Protects the mean inputs of all mini-batches so far, those of the task being learned included.

    =============  ===================================================================================================
    alpha          α: how little a mean input is protected; a number, or a mapping from name patterns of weights
    alpha_end      the α that ``alpha`` falls to within each task, geometrically in ``progress``; None: it stays.
                   Published for a CNN: 1 falls to 1e-5 (convolutions), 1e-4, 1e-2, 0.1 (three Linear layers)
    update         when P takes up inputs: at every training ``batch``, or once a ``task`` has been learned, from the
                   batches of ``end_task``, so that a task is not projected by its own inputs. Published: ``batch``;
                   the paper's own list of steps, as we remember it and could not check, reads as ``task``
    patch_stride   the stride at which patches are taken; None for that of the layer. Published: 2, at layers of 1
    clip           the norm to which all gradients of a step are clipped after projection; None: never. Published: 10
    =============  ===================================================================================================

    Every forward pass in training mode with gradients counts as a mini-batch: each part of an accumulated one, and
    the second pass of a closure or of activation checkpointing too. A weight that is used several times before
    ``backward`` takes up the inputs of all uses, and its whole gradient meets the ``P`` that has them all.

    A head that all tasks share is projected like any layer, unless it is named in ``heads``. ``P`` belongs to what
    the task learns: restoring the best epoch restores it, where the published code keeps that of the last.
    ``P`` is kept in float64: in float32, α + rᵀk turns negative where inputs are large and α is small.
    """

    name: ClassVar[str] = "owm"
    presets: ClassVar[Presets] = {"paper": {}, "official": {"patch_stride": 2, "clip": 10.0}}
    protects: ClassVar[bool] = True
    plain_first_task: ClassVar[bool] = False
    samples_before = 32
    """How many inputs are looked at before the first task, to see that rows describe all uses of the weights."""

    def __init__(
        self,
        model: nn.Module,
        *,
        alpha: ByWeight = 1.0,
        alpha_end: ByWeight | None = None,
        update: Literal["batch", "task"] = "batch",
        patch_stride: int | None = None,
        clip: float | None = None,
        **common: Any,
    ) -> None:
        for setting, value in (("alpha", alpha), ("alpha_end", alpha if alpha_end is None else alpha_end)):
            check(all(0 < a < float("inf") for a in values_of(value)), setting, value, "a finite number above 0")
        check(update in ("batch", "task"), "update", update, "'batch' or 'task'")
        check(update == "batch" or alpha_end is None, "alpha_end", alpha_end, "None with update='task'")
        stride = patch_stride is None or (isinstance(patch_stride, int) and patch_stride > 0)
        check(stride, "patch_stride", patch_stride, "a positive number of positions, or None for the layer's own")
        check(clip is None or clip > 0, "clip", clip, "a norm above 0, or None for no clipping")
        self._alphas, self._alpha_ends = alpha, alpha_end
        self.update, self.patch_stride, self.clip = update, patch_stride, clip
        super().__init__(model, **common)
        self.memory = {name: _identity(weight) for name, weight in self.weights.items()}
        self._heard = False
        self._protect(self.memory)
        if update == "batch":
            for weight in self.weights.values():
                weight.listeners.append(self._hear)

    def examine(self) -> None:
        self.alpha = by_weight("alpha", self._alphas, self.weights)
        self.alpha_end: dict[str, float] | None = None
        if self._alpha_ends is not None:
            self.alpha_end = by_weight("alpha_end", self._alpha_ends, self.weights)

    def prepare(self, loader: Iterable[Any] | None) -> dict[str, EffectiveWeight]:
        """Before a task: ``P`` goes where the model is now, and hears what comes."""
        if loader is not None and not self.tasks:  # nothing later would notice a use that has no rows
            self.check_uses(take(loader, self.samples_before))
        self._protect(self.memory)
        self._heard = False
        return {}

    def learn(self, closure: Closure, parameters: Sequence[nn.Parameter]) -> Any:
        """The gradients that arrive here are projected already."""
        loss = super().learn(closure, parameters)
        if self.update == "batch" and self.is_learning and not self._heard and self._has_gradients():
            raise RuntimeError(
                "owm learns from inputs that it did not see: it hears forward passes in training mode. "
                "Call model.train() before the training step."
            )
        if self.clip is not None:
            nn.utils.clip_grad_norm_(parameters, self.clip)
        return loss

    def remember(self, loader: Iterable[Any] | None) -> None:
        """With ``update="task"``, the batches of the learned task join the past."""
        if self.update == "task":
            listen(self.model, self.weights, self.sample(loader), self._take_up, self.forward)

    def memory_state(self) -> dict[str, Any]:
        """``P`` by weight, ``[g, d, d]``, which changes while a task is learned."""
        return {"task": {"P": {name: P.clone() for name, P in self.memory.items()}}}

    def load_memory(self, state: Mapping[str, Any]) -> None:
        memory = {name: state["task"]["P"][name] for name in self.weights}
        for name, P in memory.items():
            check_directions(name, self.weights[name].shape, P)
        self._protect(memory)

    def _protect(self, memory: Mapping[str, Tensor]) -> None:
        """``∇W ← ∇W P`` from here on, with copies of ``memory``."""
        for name, weight in self.weights.items():
            P = self.memory[name] = _identity(weight).copy_(memory[name])
            weight.projection = Dense(P.to(weight.parameter.device, wide_dtype(weight.parameter)))

    def _hear(self, weight: ProtectedWeight, kind: LayerKind, x: Any) -> None:
        if self.is_learning and self.model.training and torch.is_grad_enabled():
            self._take_up(weight, kind, x, together=True)
            self._heard = True

    @torch.no_grad()
    def _take_up(self, weight: ProtectedWeight, kind: LayerKind, x: Any, together: bool = False) -> None:
        """Protect the mean input of a call, ``together`` with the calls of other processes."""
        P, projection = self.memory[weight.name], weight.projection
        for rows in self._mean_rows(kind, x):
            # Groups may differ in their number of rows; those of zeros change nothing.
            R = (rows if isinstance(rows, Tensor) else pad_sequence(list(rows), batch_first=True)).to(P)
            R = self.replicas.mean_over_inputs(R, kind.inputs(x)) if together else R
            if bool(torch.isfinite(R).all()):  # otherwise the loss is not either, and says so
                absorb(P, R, self._alpha(weight.name))
        assert isinstance(projection, Dense)
        projection.matrix.copy_(P)  # in place: calls that wait for their gradients see it too

    def _mean_rows(self, kind: LayerKind, x: Any) -> Iterator[Any]:
        """The means of the rows over the inputs of the call, place by place."""
        if not kind.kernel:
            n = kind.inputs(x)
            for piece in kind.split(x):
                yield [rows.reshape(n, -1, rows.shape[-1]).mean(0, dtype=wide_dtype(rows)) for rows in kind.rows(piece)]
            return
        if x.ndim > len(kind.kernel) + 1:  # otherwise an unbatched input
            x = x.mean(0, keepdim=True, dtype=wide_dtype(x))  # patches of the mean are means of the patches
        yield kind.rows(x) if self.patch_stride is None else kind.patches(x, self.patch_stride)

    def _alpha(self, name: str) -> float:
        """``α (α_end/α)^progress``."""
        alpha = self.alpha[name]
        if self.alpha_end is None:
            return alpha
        _ = self.batch  # without watch() there is no progress, and this says so
        return alpha * math.pow(self.alpha_end[name] / alpha, self.progress)

    def _has_gradients(self) -> bool:
        return any(weight.parameter.grad is not None for weight in self.weights.values())


def absorb(P: Tensor, R: Tensor, alpha: float) -> None:
    """``P ← (P⁻¹ + RᵀR/α)⁻¹``, in place, for stacks ``P: [g, d, d]`` and ``R: [g, n, d]``.

    α is taken to be no smaller than ``8 ε ‖R‖²``: ``R P Rᵀ`` is known no better.
    """
    if R.shape[-2] > R.shape[-1]:  # as few rows with the same RᵀR
        R = torch.linalg.qr(R, mode="r").R
    K = R @ P
    S = K @ R.mT
    rounding = NOISE * R.square().sum((-2, -1)).unsqueeze(-1)
    S.diagonal(dim1=-2, dim2=-1).add_(rounding.clamp(min=alpha))
    K = torch.linalg.solve_triangular(torch.linalg.cholesky(S), K, upper=False)
    P.baddbmm_(K.mT, K, alpha=-1)


def _identity(weight: ProtectedWeight) -> Tensor:
    """``I`` for each matrix of the weight, on its device if that has float64."""
    g, _, d = weight.shape
    device = "cpu" if weight.parameter.device.type == "mps" else weight.parameter.device
    return torch.eye(d, dtype=WORKING_DTYPE, device=device).repeat(g, 1, 1)

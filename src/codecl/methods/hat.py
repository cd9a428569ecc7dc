"""HAT: hard attention to the task (Serrà, Surís, Miron, Karatzoglou; ICML 2018).

Every task has an embedding ``e`` of each unit, a feature of a Linear layer or a channel of a convolution, and sees it
through the mask ``a``; ``A`` is the largest mask of past tasks:

    mask              a = σ(s e),  s = 1/s_max + (s_max − 1/s_max) (b − 1)/(B − 1) for batch b of B; s_max in evaluation
    during task t     L + c Σ a (1 − A) / Σ (1 − A)
                      ∇W_ij ← ∇W_ij (1 − min(A_i, A_j)), i the unit that W_ij writes, j the one it reads
                      ∇e ← ∇e · s_max/s · (cosh(s e) + 1)/(cosh(e) + 1);  after the step, e is cut to [−6, 6]
    after task t      A ← max(A, σ(s_max e))

A mask stands where units are read, after norm, activation, dropout and pooling: there it scales columns of the next
weight, ``W diag(a)``, or the inputs of the head. Inputs of the network and the outputs of a head that tasks share have
no mask; ``A = 1`` for them.

The authors mask plain stacks of layers without norms. For other networks these are our decisions: what is summed in a
residual network shares one mask; a norm that mixes units (LayerNorm, LocalResponseNorm) would let unused ones reach
old outputs, so that units before it are masked where they arise as well; what cannot be followed is refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from codecl.attach import EffectiveWeight, Masked, inputs_in
from codecl.attach.batches import inputs_of, length
from codecl.attach.projection import Entrywise, wide_dtype
from codecl.attach.survey import Policy
from codecl.attach.units.follow import follow_units
from codecl.attach.units.gates import Gates
from codecl.method.guard import Closure
from codecl.method.hooks import Presets
from codecl.method.method import Method, Task
from codecl.method.settings import check
from codecl.method.state import ForeignState, size
from codecl.randomness import method_seed

LARGEST = 6.0
"""Embeddings are cut to this; beyond it a mask does not change any more."""
LARGEST_COSH = 50.0
"""The argument at which the compensation is cut, so that it stays finite."""


class HAT(Method):
    """Gives every task a mask over the units, and holds the weights between units that past tasks use.

    =====================  ===========================================================================================
    smax                   s_max: how hard masks become
    annealing              how far an epoch has come: by ``batches``, (b − 1)/(B − 1), as printed, or by ``inputs``, the
                           share of all that came before the batch, as published; masks of a single batch stay soft then
    c                      how strongly the use of new units is penalised
    clip                   the norm to which all gradients of a step are clipped; None: never
    penalty_in_validation  whether early stopping sees the loss with the penalty. Published
    bias                   biases train and are held as the units they belong to, 1 − A_i (``free``), or as elsewhere
    seed                   of the embeddings, which start as normal numbers
    =====================  ===========================================================================================

    Parameters of norms are held after the first task, as by all methods; with ``norm="free"`` they train like biases,
    but running statistics then follow the current task. Batches must be watched, for the position in the epoch:
    ``for batch in method.watch(loader)``.
    """

    name: ClassVar[str] = "hat"
    presets: ClassVar[Presets] = {"paper": {}, "official": {"annealing": "inputs"}}
    protects: ClassVar[bool] = True
    plain_first_task: ClassVar[bool] = False

    def __init__(
        self,
        model: nn.Module,
        *,
        smax: float = 400.0,
        annealing: Literal["batches", "inputs"] = "batches",
        c: float = 0.75,
        clip: float | None = 1e4,
        penalty_in_validation: bool = True,
        bias: Policy = "free",
        seed: int = 0,
        **common: Any,
    ) -> None:
        check(1 <= smax < float("inf"), "smax", smax, "a finite number, 1 or more")
        check(annealing in ("batches", "inputs"), "annealing", annealing, "'batches' or 'inputs'")
        check(0 <= c < float("inf"), "c", c, "a finite number, 0 or more")
        check(clip is None or clip > 0, "clip", clip, "a norm above 0, or None for no clipping")
        self.smax, self.annealing, self.c, self.clip = smax, annealing, c, clip
        self.penalty_in_validation, self.seed = penalty_in_validation, seed
        self.embeddings: list[dict[str, nn.Parameter]] = []
        """By task: ``e`` of each group of units."""
        self.A: dict[str, Tensor] | None = None
        """The largest mask of past tasks, by group of units."""
        self._annealed = 0.0
        """How far this epoch has come."""
        self._kept: dict[nn.Parameter, Tensor] = {}
        self._before: dict[nn.Parameter, Tensor] = {}
        super().__init__(model, bias=bias, **common)
        free = [role for role, policy in self.layers.policies.items() if policy == "free"]
        self._vectors = [row.parameter for row in self.layers.of_role(*free)]
        rows = (replace(row, note="free: held as its units are") if row.role in free else row for row in self.layers)
        self.layers = replace(self.layers, rows=tuple(rows))
        self._gates = Gates(model, self.layers, self.channels, self._shown_mask)
        self._gates.put()
        self._protect()

    def examine(self) -> None:
        """Follow the units of the model."""
        try:
            self.channels = follow_units(self.model, self.layers, self.forward)
        except ValueError as error:
            raise type(error)(
                f"hat masks units, and cannot mask those of this model: {error} It can where each unit goes its own "
                "way from layer to layer, as in stacks of layers and residual networks; attention mixes them. Use "
                "another method, or set requires_grad = False in that part and name it in skip=[…]."
            ) from error

    def mask(self, task: int, group: str) -> Tensor:
        """``a = σ(s e)``: how the task at a position sees the units of ``group``."""
        return torch.sigmoid(self._s(task) * self.embeddings[task][group])

    def prepare(self, loader: Iterable[Any] | None) -> dict[str, EffectiveWeight]:
        """Before a task: its embeddings, and the weights seen through them."""
        t = len(self.tasks)
        self.embeddings[t:] = [{group: self._start(group, n) for group, n in self.channels.units.items()}]
        self._gates.put()
        return {name: self._masked(t, name) for name in self.weights}

    def penalty(self) -> Tensor | None:
        """``c Σ a (1 − A) / Σ (1 − A)``; none where no unit is left."""
        if not self.is_learning or self._room == 0:
            return None
        masks = {group: self.mask(self.current_task, group) for group in self.channels.units}
        new = [a if self.A is None else a * (1 - self.A[group]) for group, a in masks.items()]
        return self.c / self._room * torch.cat(new).sum()

    def watch(self, loader: Iterable[Any], epoch: int = 0, epochs: int = 1) -> Iterator[Any]:
        B = length(loader)
        if B is None:
            raise TypeError(
                f"hat hardens its masks over an epoch, and {type(loader).__name__} does not say how many batches it "
                "has: pass a loader with a length."
            )
        return self._hardening(super().watch(loader, epoch, epochs), B, inputs_of(loader))

    def _hardening(self, batches: Iterator[Any], B: int, N: int | None) -> Iterator[Any]:
        seen = 0
        for i, batch in enumerate(batches):
            n = inputs_in(batch) or 1
            if self.annealing == "inputs":
                N = N or B * n  # where nobody says it, batches are taken to be as large as the first
                self._annealed = min(1.0, seen / N)
            else:
                self._annealed = i / (B - 1) if B > 1 else 1.0
            seen += n
            yield batch

    def learn(self, closure: Closure, parameters: Sequence[nn.Parameter]) -> Any:
        """The gradients of weights arrive masked; biases wait for ``after_step``."""
        if self.is_learning and not (self.batch is not None and self.model.training):
            raise RuntimeError("hat hardens its masks in training mode: call model.train() before the training step.")
        loss, stepping = super().learn(closure, parameters), set(parameters)
        for parameter in self._kept.keys() & stepping:
            self._before.setdefault(parameter, parameter.detach().clone())
        for e in self.parameters():
            if e in stepping and e.grad is not None:
                e.grad *= self._compensation(e.detach())
        if self.clip is not None:
            nn.utils.clip_grad_norm_(parameters, self.clip)
        return loss

    @torch.no_grad()
    def after_step(self) -> None:
        """Embeddings stay in range, and biases of used units where they were, whatever optimizer stepped."""
        for e in self.parameters():
            e.clamp_(-LARGEST, LARGEST)
        for parameter, old in self._before.items():
            parameter.copy_(old + self._kept[parameter] * (parameter - old))
        self._before = {}

    @torch.no_grad()
    def remember(self, loader: Iterable[Any] | None) -> None:
        """``A ← max(A, σ(s_max e))``."""
        a = {group: torch.sigmoid(self.smax * e) for group, e in self.embeddings[-1].items()}
        self.A = a if self.A is None else {group: torch.maximum(A, a[group]) for group, A in self.A.items()}
        self._protect()

    def memory_state(self) -> dict[str, Any]:
        embeddings = [{group: e.detach().clone() for group, e in of.items()} for of in self.embeddings]
        return {"A": None if self.A is None else dict(self.A), "embeddings": embeddings}

    def load_memory(self, state: Mapping[str, Any]) -> None:
        A = state["A"]
        for of in (*state["embeddings"], *([] if A is None else [A])):
            theirs = {group: len(value) for group, value in of.items()}
            if theirs != self.channels.units:
                raise ForeignState(f"the state has the units {theirs}; here they are {self.channels.units}.")
        self.A = None if A is None else {group: of.to(self._like(group)) for group, of in A.items()}
        self.embeddings = [
            {group: nn.Parameter(e.to(self._like(group), copy=True)) for group, e in of.items()}
            for of in state["embeddings"]
        ]
        self._protect()
        self._gates.put()

    def effective_weight(self, name: str, state: Mapping[str, Any]) -> EffectiveWeight:
        return self._masked(int(state["task"]), name)

    def bytes(self) -> dict[str, int]:
        found = super().bytes()
        of_task = size(self.embeddings) // max(1, len(self.embeddings))
        return {**found, "per_task": found["per_task"] + of_task}

    def export(self, task: Task, into: nn.Module | None = None) -> nn.Module:
        """A plain copy of the model as ``task`` knows it, with its masks in weights, biases and head."""
        self._gates.take_away()
        try:
            plain = super().export(task, into)
        finally:
            self._gates.put()
        with self.task(task):
            self._gates.bake(plain)
        return plain

    def detach(self) -> None:
        self._gates.take_away()
        super().detach()

    # Masks.

    def _s(self, task: int) -> float:
        """``s``: it grows within each epoch in which the task learns, and is ``s_max`` otherwise."""
        current = self.is_learning and task == self.current_task
        if not (current and self.model.training and self.is_watching):
            return self.smax
        return 1 / self.smax + (self.smax - 1 / self.smax) * self._annealed

    def _compensation(self, e: Tensor) -> Tensor:
        """What the gradient of ``e`` would be at ``s = 1``, relative to what it is, times ``s_max``."""
        s = self._s(self.current_task)
        return self.smax / s * (torch.cosh((s * e).clamp(-LARGEST_COSH, LARGEST_COSH)) + 1) / (torch.cosh(e) + 1)

    def _start(self, group: str, n: int) -> nn.Parameter:
        """Normal numbers from a stream of their own for each seed, task and group, so that nothing needs saving."""
        generator = torch.Generator().manual_seed(method_seed(self.seed, len(self.tasks), group))
        return nn.Parameter(torch.randn(n, generator=generator).to(self._like(group)))

    def _like(self, group: str) -> Tensor:
        """A tensor of the device and dtype of the masks of a group: in single precision at least."""
        like = self.weights[group].parameter
        return like.new_empty(0, dtype=wide_dtype(like))

    def _masked(self, task: int, name: str) -> Masked:
        """A weight as the task at a position sees it; a group of units belongs to the weight it is named after."""

        def learned() -> list[nn.Parameter]:
            return [self.embeddings[task][name]] if name in self.channels.units else []

        return Masked(task, self.channels.reads[name], partial(self.mask, task), learned)

    def _shown_mask(self, group: str) -> Tensor | None:
        return None if self.per_task.shown is None else self.mask(self.per_task.shown, group)

    # Holding what past tasks use.

    def _protect(self) -> None:
        """``∇W ← ∇W (1 − min(A_i, A_j))`` from here on, and ``1 − A_i`` for biases."""
        A = self.A
        self._room = float(sum(self.channels.units.values()) if A is None else sum((1 - a).sum() for a in A.values()))
        for name, weight in self.weights.items():
            i, j = self.channels.writes[name], self.channels.reads[name]
            weight.projection = None
            if A is not None:
                ones = weight.parameter.new_ones(weight.shape, dtype=wide_dtype(weight.parameter))
                A_i = ones if i is None else A[i.group].reshape(*weight.shape[:2], 1)
                A_j = ones if j is None else j.columns(A[j.group], weight.shape)
                weight.projection = Entrywise(1 - torch.minimum(A_i, A_j))
        self._kept = {} if A is None else {parameter: self._kept_of(parameter, A) for parameter in self._vectors}

    def _kept_of(self, parameter: nn.Parameter, A: dict[str, Tensor]) -> Tensor:
        """``1 − A_i`` of a bias; 0 where every task uses it."""
        x = self.channels.vectors.get(parameter)
        if x is None:
            return torch.zeros_like(parameter)
        return (1 - x.spread(A[x.group], parameter.numel())).reshape(parameter.shape).to(parameter.dtype)

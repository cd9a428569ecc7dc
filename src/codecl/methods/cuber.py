"""CUBER: beneficial backward knowledge transfer (Lin, Yang, Fan, Zhang; NeurIPS 2022).

On top of TRGP, with ``g_j`` the gradient that task ``j`` had when it was learned, and ``g`` the new task's at the same
weights. In each layer an old task ``j`` is in one of three regimes:

    R1    ‖g S_j S_jᵀ‖ ≤ ε₁ ‖g‖                        unrelated
    R2    above, and ⟨g_j, g⟩ ≤ ε₂ ‖g_j‖ ‖g‖           related, but what helps the new task hurts the old one
    R3    above, and ⟨g_j, g⟩ > ε₂ ‖g_j‖ ‖g‖           what helps the new task helps the old one too

    during task t     L + λ Σ_{j ∈ R3} ‖(W − W^{t−1}) S_j S_jᵀ‖, with the scaling of TRGP for R2 and R3;
                      ∇W ← ∇W − ∇W O Oᵀ, O a basis of the inputs of all tasks in R1 and R2
    now and then      a task of R3 whose ⟨g_j, g⟩ has fallen below ε₂ ‖g_j‖ ‖g‖ moves to R2, and stays there

At most two tasks of a layer are in R2 or R3, those with the largest share; the others are in R1. Without R3 this is
TRGP. No code was published that we know of. Not in the paper, and so our choice: λ is 2 (a constant left over in the
code of TRGP), ``g`` is tested after each epoch on its last batch, ``O`` spans the *union* of the inputs, all columns
of ``B`` that these tasks have (the paper writes a sum of projections, which for overlapping tasks is none), and
``g_j`` is taken through the effective weights of its task.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from codecl.attach import EffectiveWeight, ProtectedWeight, Scaling, project_away
from codecl.attach.projection import Deliver, times
from codecl.method.hooks import Presets
from codecl.method.settings import check
from codecl.method.state import ForeignState
from codecl.methods.trgp import TRGP


class Open(NamedTuple):
    """The columns ``U: [g, d, k]`` of all ``S_j`` in R3, what a step can change of them, and which are whose."""

    U: Tensor
    U_open: Tensor  # (I − O Oᵀ) U
    columns: list[Tensor]


class Transfer(Scaling):
    """The scaling of TRGP, and which of its tasks may gain: ``in_R3``, one flag each, and the weight they knew."""

    def __init__(
        self,
        tasks: Sequence[int],
        bases: Sequence[Tensor],
        in_R3: Tensor,
        W_before: Tensor,
        Q: Sequence[Tensor] | None = None,
        of: ProtectedWeight | None = None,
    ) -> None:
        super().__init__(tasks, bases, Q, of)
        self.in_R3, self.W_before = in_R3, W_before  # W_before: [g, o, d], empty once the task has been learned
        self.open: Open | None = None
        """If a task is in R3, what it may gain in."""

    def gaining(self) -> list[int]:
        """The tasks in R3."""
        return [j for j, flag in zip(self.tasks, self.in_R3.tolist(), strict=True) if flag]

    def state(self) -> dict[str, Any]:
        return super().state() | {"in_R3": self.in_R3.clone(), "W_before": self.W_before}


class _Moved(torch.autograd.Function):
    """``(W − W^{t−1}) U``, whose gradient reaches ``W`` projected: ``δ Uᵀ (I − O Oᵀ)``, at the price of ``U`` alone."""

    @staticmethod
    def forward(W: Tensor, W_before: Tensor, U: Tensor, U_open: Tensor, deliver: Deliver) -> Tensor:
        return times(W - W_before, U)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        *_, U_open, ctx.deliver = inputs
        ctx.save_for_backward(U_open)

    @staticmethod
    def backward(ctx: Any, delta: Tensor) -> tuple[Tensor | None, ...]:
        (U_open,) = ctx.saved_tensors
        D = times(delta, U_open.mT)
        ctx.deliver(D)
        return D, None, None, None, None


class CUBER(TRGP):
    """TRGP that also changes what old tasks know, where that helps them.

    ============  ====================================================================================================
    trust         ε₁, as in TRGP
    agreement     ε₂: the cosine of new and old gradient above which a trusted task may gain
    strength      λ: how much the change of the inputs of such a task costs
    ============  ====================================================================================================

    and the settings of ``TRGP`` and ``GPM``.
    """

    name: ClassVar[str] = "cuber"
    presets: ClassVar[Presets] = {"paper": {}, "official": {"first_rule": "below"}}

    def __init__(self, model: nn.Module, *, agreement: float = 0.0, strength: float = 2.0, **settings: Any) -> None:
        check(-1 <= agreement <= 1, "agreement", agreement, "a cosine, from −1 to 1")
        check(strength >= 0, "strength", strength, "0 or more")
        super().__init__(model, **settings)
        self.agreement, self.strength = agreement, strength
        self.past_gradients: list[dict[str, Tensor]] = []

    def prepare(self, loader: Iterable[Any] | None) -> dict[str, EffectiveWeight]:
        """The regimes of all old tasks, layer by layer."""
        changes = super().prepare(loader)
        self._project_out(changes)
        return changes

    def penalty(self) -> Tensor | None:
        """``λ Σ ‖(W − W^{t−1}) S_j S_jᵀ‖`` over the tasks that may gain; its gradient is projected as any other."""
        costs = []
        for name, change in self._transfers(self.effective).items():
            if change.open is not None:
                W, (U, U_open, columns) = self.weights[name], change.open
                back = U_open if W.learns_projected else U
                moved = _Moved.apply(W.matrices(), change.W_before, U, back, W.deliver)  # type: ignore[no-untyped-call]
                costs += [torch.linalg.vector_norm(moved[..., of_task]) for of_task in columns]
        if not costs:
            return None
        _ = self.batch  # without watch() no epoch ends and no regime is tested, and this says so
        return self.strength * torch.stack(costs).sum()

    def end_epoch(self) -> None:
        """Tasks that no longer gain are protected from here on."""
        transfers = {name: change for name, change in self._transfers(self.effective).items() if change.gaining()}
        if not transfers:
            return
        before = [len(change.gaining()) for change in transfers.values()]
        G = self.gradients([self.batch])
        for name, change in transfers.items():
            hurt = [name in G and self._agreement(name, j, G[name]) < 0 for j in change.tasks]
            change.in_R3 &= ~torch.tensor(hurt)
        if [len(change.gaining()) for change in transfers.values()] != before:
            self._project_out(transfers)
            self.forget_optimizer_state()  # a momentum from before would go on in what is protected now

    def remember(self, loader: Iterable[Any] | None) -> None:
        """As TRGP, and the gradient of the learned task."""
        batches = list(self.sample(loader))
        G = self.gradients(batches)
        if bad := [name for name, g_t in G.items() if not bool(torch.isfinite(g_t).all())]:
            raise ValueError(
                f"the gradient of '{bad[0]}' holds NaN or infinite values. Find where the network diverged (a learning "
                "rate too high, a division by zero) before the task ends."
            )
        super().remember(batches)
        self.past_gradients.append(G)
        for change in self._transfers(self.effective).values():
            change.W_before, change.open = change.W_before[:0].clone(), None  # a view would keep all of it

    def memory_state(self) -> dict[str, Any]:
        """The gradients of all tasks too; and the regimes, which change within a task."""
        gradients = [dict(of_task) for of_task in self.past_gradients]
        learning = self._transfers(self.effective) if self.is_learning else {}
        regimes = {name: change.in_R3.clone() for name, change in learning.items()}
        return super().memory_state() | {"gradients": gradients, "task": {"in_R3": regimes}}

    def load_memory(self, state: Mapping[str, Any]) -> None:
        for name, g_j in (item for of_task in state["gradients"] for item in of_task.items()):
            self._check_shape(name, "a gradient", g_j)
        if len(state["gradients"]) != len(state["chosen"]):
            raise ForeignState(
                f"the state is incomplete: it has gradients of {len(state['gradients'])} tasks, "
                f"and inputs of {len(state['chosen'])}."
            )
        super().load_memory(state)
        self.past_gradients = [
            {name: g_j.to(self.weights[name].parameter) for name, g_j in of_task.items()}
            for of_task in state["gradients"]
        ]
        for name, change in self._transfers(self.effective).items():  # those of a whole state are made after this
            if name in state["task"]["in_R3"]:
                change.in_R3 = state["task"]["in_R3"][name].clone()

    def effective_weight(self, name: str, state: Mapping[str, Any]) -> Transfer:
        scaling = super().effective_weight(name, state)
        in_R3, W_before = state["in_R3"], state["W_before"].to(self.weights[name].parameter)
        if len(in_R3) != len(scaling.tasks):
            raise ForeignState(f"'{name}' has {len(in_R3)} regimes in the state, and {len(scaling.tasks)} tasks.")
        if len(W_before):
            self._check_shape(name, "a weight", W_before)
        return Transfer(scaling.tasks, scaling.bases, in_R3.clone(), W_before, scaling.Q, self.weights[name])

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        if self.is_learning:
            self._project_out(self.effective)

    def _scaling(self, name: str, tasks: Sequence[int], G: Tensor) -> Transfer:
        in_R3 = torch.tensor([self._agreement(name, j, G) > 0 for j in tasks])
        W_before = self.weights[name].matrices().detach()[: len(G) if bool(in_R3.any()) else 0].clone()
        return Transfer(tasks, [self._basis(name, j) for j in tasks], in_R3, W_before, of=self.weights[name])

    def _agreement(self, name: str, task: int, G: Tensor) -> float:
        """``⟨g_j, g⟩ − ε₂ ‖g_j‖ ‖g‖``, and 0 for a task that had no gradient."""
        g_j = self.past_gradients[task].get(name)
        if g_j is None:
            return 0.0
        norms = torch.linalg.vector_norm(g_j) * torch.linalg.vector_norm(G)
        return float((g_j * G).sum() - self.agreement * norms)

    def _project_out(self, changes: Mapping[str, EffectiveWeight]) -> None:
        """``∇W ← ∇W − ∇W O Oᵀ``: of the memory, what belongs to no task but those that may gain is open."""
        for name, change in self._transfers(changes).items():
            gaining = change.gaining()
            held = [of_task[name] for j, of_task in enumerate(self.chosen) if name in of_task and j not in gaining]
            bases = []
            for i, B in enumerate(self.memory[name]):
                columns = set[int]().union(*(chosen[i]["columns"].tolist() for chosen in held))
                bases.append(B.basis[:, sorted(columns)])
            projection = self.weights[name].projection = project_away(bases, self.weights[name].parameter)
            change.open = None
            if gaining:
                theirs = [columns for j, columns in zip(change.tasks, change.columns, strict=True) if j in gaining]
                every = torch.cat(theirs).unique()  # type: ignore[no-untyped-call]
                U = change.U[..., every]
                change.open = Open(U, projection(U.mT).mT, [torch.searchsorted(every, of_task) for of_task in theirs])

    def _check_shape(self, name: str, what: str, value: Tensor) -> None:
        if value.shape != self.weights[name].shape:
            expected = list(self.weights[name].shape)
            raise ForeignState(f"'{name}' has {what} of shape {list(value.shape)} in the state; here it is {expected}.")

    @staticmethod
    def _transfers(changes: Mapping[str, EffectiveWeight]) -> dict[str, Transfer]:
        return {name: change for name, change in changes.items() if isinstance(change, Transfer)}

"""TRGP: trust region gradient projection (Lin, Yang, Fan, Zhang; ICLR 2022).

On top of GPM, with ``B`` the basis of all past tasks and ``S_j`` that of task ``j``, some of the columns of ``B``:

    before task t     task j is trusted in a layer if ‖∇W S_j S_jᵀ‖ > ε ‖∇W‖; the two largest are used
                      W_eff = W + Σ_j W S_j (Q_j − I) S_jᵀ,  Q_j from I
    during task t     ∇W ← ∇W − ∇W B Bᵀ;  Q_j is free
    after task t      of the columns of B, with the energy δ_i = ‖Rᵀ b_i‖² each, and the residual directions,
                      with σ² each, the strongest that hold ε_th of ‖R‖² are S_t; the new ones join B

A grouped convolution is one layer: its norms are taken over all groups. Where the published code differs, ``official``
does as it does: its strongest residual direction is in ``S_t`` but never joins ``B`` (``off_by_one``), the whole
network is scaled only if its first layer is (``gate``), shortcuts never are (``closed``); in some of its scripts the
third task may trust the second only (``third_task``), and the one for CIFAR-100 trains batch norms in all tasks
(``norm="free"``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from codecl.algebra import Moments, Subspace
from codecl.attach import EffectiveWeight, Scaling, take
from codecl.method.hooks import Presets
from codecl.method.settings import check, check_patterns, matching
from codecl.method.state import ForeignState
from codecl.methods.gpm import GPM

Chosen = list[dict[str, Tensor]]
"""For each matrix of a weight: the columns of B that are a task's (``columns``), and others it has (``beside``)."""


class TRGP(GPM):
    """GPM that lets a new task scale what old tasks know, where its gradient points into their inputs.

    =================  ===============================================================================================
    trust              ε: the share of the gradient's norm in a task's inputs above which that task is trusted
    most_trusted       how many tasks a layer may trust
    gradient_samples   how many inputs the gradient before a task is taken over; None for all
    off_by_one         the strongest residual direction of a task does not join B
    gate               ``layer``: each for itself; ``first``: none is scaled unless the first is
    third_task         the third task may trust ``any`` earlier one, or the ``second`` only
    closed             name patterns of weights that are never scaled
    =================  ===============================================================================================

    and the settings of ``GPM``.
    """

    name: ClassVar[str] = "trgp"
    sharded: ClassVar[bool] = True
    presets: ClassVar[Presets] = {
        "paper": {},
        "official": {"first_rule": "below", "off_by_one": True, "gate": "first", "closed": ("*shortcut*",)},
    }

    def __init__(
        self,
        model: nn.Module,
        *,
        trust: float = 0.5,
        most_trusted: int = 2,
        gradient_samples: int | None = 125,
        off_by_one: bool = False,
        gate: Literal["layer", "first"] = "layer",
        third_task: Literal["any", "second"] = "any",
        closed: Sequence[str] = (),
        **settings: Any,
    ) -> None:
        check(0 <= trust <= 1, "trust", trust, "a share in [0, 1]")
        check(most_trusted >= 0, "most_trusted", most_trusted, "a number of tasks, 0 or more")
        some = gradient_samples is None or gradient_samples > 0
        check(some, "gradient_samples", gradient_samples, "a positive number of inputs, or None for all")
        check(gate in ("layer", "first"), "gate", gate, "'layer' or 'first'")
        check(third_task in ("any", "second"), "third_task", third_task, "'any' or 'second'")
        self.closed = closed
        super().__init__(model, **settings)
        self.trust, self.most_trusted, self.gradient_samples = trust, most_trusted, gradient_samples
        self.off_by_one, self.gate, self.third_task = off_by_one, gate, third_task
        self.chosen: list[dict[str, Chosen]] = []

    def examine(self) -> None:
        super().examine()
        check_patterns("closed", self.closed, self.weights)

    @property
    def samples_before(self) -> int | None:
        return self.gradient_samples

    def prepare(self, loader: Iterable[Any] | None) -> dict[str, EffectiveWeight]:
        """Whom each layer trusts."""
        with self.shared_weights():
            G = self.gradients(take(loader, self.gradient_samples))
        trusted = {name: self._trusted(name, G[name]) for name in self.weights if name in G}
        if self.gate == "first" and not trusted.get(next(iter(self.weights)), ()):
            return {}
        return {
            name: self._scaling(name, tasks, G[name])
            for name, tasks in trusted.items()
            if tasks and not matching(name, self.closed)
        }

    def remember(self, loader: Iterable[Any] | None) -> None:
        """Which columns of B, old and new, are the learned task's own."""
        inputs = self._inputs(loader)
        self.chosen.append({})
        for name, R in inputs.items():
            self._fold(name, R)
        self._protect()

    def memory_state(self) -> dict[str, Any]:
        """The basis of all tasks, and which of its columns are whose."""
        return super().memory_state() | {"chosen": [dict(of_task) for of_task in self.chosen]}

    def load_memory(self, state: Mapping[str, Any]) -> None:
        super().load_memory(state)
        self.chosen = [dict(of_task) for of_task in state["chosen"]]
        for name, of_weight in (item for of_task in self.chosen for item in of_task.items()):
            check_chosen(name, state["bases"][name], of_weight)

    def effective_weight(self, name: str, state: Mapping[str, Any]) -> Scaling:
        weight, like = self.weights[name], self.weights[name].here
        if unknown := [j for j in state["tasks"] if not 0 <= j < len(self.chosen)]:
            raise ForeignState(
                f"'{name}' trusts the tasks {unknown} in the state, whose memory has {len(self.chosen)}."
            )
        bases = [self._basis(name, j) for j in state["tasks"]]
        found, expected = [list(Q.shape) for Q in state["Q"]], [[len(S), S.shape[2], S.shape[2]] for S in bases]
        if found != expected:
            raise ForeignState(f"'{name}' has Q of shape {found} in the state; its tasks need {expected}.")
        return Scaling(state["tasks"], bases, [Q.to(like) for Q in state["Q"]], weight)

    def describe(self, name: str) -> dict[str, Any]:
        change = self.effective.get(name)
        return super().describe(name) | {"trusted": list(change.tasks) if isinstance(change, Scaling) else []}

    def _fold(self, name: str, R: list[Moments]) -> None:
        """The inputs of the learned task join the past of one weight."""
        found = [self._choose(name, B, r) for B, r in self._with_past(name, R)]
        self.memory[name], self.chosen[-1][name] = [B for B, _ in found], [chosen for _, chosen in found]

    def _choose(self, name: str, B: Subspace, R: Moments) -> tuple[Subspace, dict[str, Tensor]]:
        """The basis with the new task's directions, and those that are the task's."""
        energy = self._energy(name)
        if name not in self.memory:
            B = B.grow(R, energy, self.first_rule)
            return B, {"columns": torch.arange(B.rank), "beside": B.basis.new_zeros(B.dim, 0)}
        U, sigma = B.residual(R)
        pool, order = torch.cat([R.along(B.basis), sigma.square()]).sort(descending=True, stable=True)
        held = pool.cumsum(0) - pool  # before each is added
        wanted = order[(held < energy * R.total) & (pool > R.floor**2 * R.total)].cpu()  # no noise, if ε_th is 1
        old, k = wanted[wanted < B.rank], int((wanted >= B.rank).sum())  # k of U, the strongest
        dropped = min(k, 1) if self.off_by_one else 0
        grown = B.extend(U[:, dropped:k])
        columns = torch.cat([old, torch.arange(B.rank, grown.rank)])
        return grown, {"columns": columns, "beside": U[:, :dropped].clone()}  # a view would keep all of U

    def _shares(self, name: str, G: Tensor) -> dict[int, float]:
        """``‖G S_j S_jᵀ‖ / ‖G‖`` for every past task; there is none without a gradient."""
        norm = float(torch.linalg.vector_norm(G))
        past = [j for j, of_task in enumerate(self.chosen) if name in of_task] if norm > 0 else []
        return {j: float(torch.linalg.vector_norm(G @ self._basis(name, j))) / norm for j in past}

    def _trusted(self, name: str, G: Tensor) -> list[int]:
        """The tasks that the layer trusts, the one with the largest share first."""
        shares = self._shares(name, G)
        if self.third_task == "second" and len(self.tasks) == 2:
            shares = {j: share for j, share in shares.items() if j == 1}
        largest = sorted(shares, key=lambda j: -shares[j])[: self.most_trusted]
        return [j for j in largest if shares[j] > self.trust]

    def _scaling(self, name: str, tasks: Sequence[int], G: Tensor) -> Scaling:
        """The change of a weight that trusts ``tasks``, before anything is learned."""
        return Scaling(tasks, [self._basis(name, j) for j in tasks], of=self.weights[name])

    def _basis(self, name: str, task: int) -> Tensor:
        """``S_j`` of every matrix of the weight, ``[g, d, r_j]`` padded with zeros."""
        B = [of_matrix.basis for of_matrix in self.memory[name]]
        return task_basis(B, self.chosen[task][name], self.weights[name].here)


def task_basis(B: Sequence[Tensor], chosen: Chosen, like: Tensor) -> Tensor:
    """``S_j`` of every matrix as a stack in the dtype of the weight, from the columns of ``B`` that are the task's."""
    own = [
        torch.cat([b[:, of["columns"].to(b.device)], of["beside"].to(b.device)], dim=1)
        for b, of in zip(B, chosen, strict=True)
    ]
    S = like.new_zeros(len(own), own[0].shape[0], max(columns.shape[1] for columns in own))
    for i, columns in enumerate(own):
        S[i, :, : columns.shape[1]] = columns
    return S


def check_chosen(name: str, B: Sequence[Tensor], chosen: Chosen) -> None:
    """Refuse columns that the bases ``B`` of the weight ``name`` do not have."""
    if len(B) != len(chosen):
        raise ForeignState(f"'{name}' has {len(B)} bases in the state, and columns of {len(chosen)}.")
    for b, of in zip(B, chosen, strict=True):
        columns, beside, (d, r) = of["columns"], of["beside"], b.shape
        if strange := columns[(columns < 0) | (columns >= r)].tolist():
            raise ForeignState(f"'{name}' has a basis of {r} columns in the state, of which a task has {strange[:3]}.")
        if len(beside) != d:
            raise ForeignState(f"'{name}' has directions of {len(beside)} inputs in the state, and of {d} here.")

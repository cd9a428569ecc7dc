"""API: adaptive plasticity improvement (Liang, Li; CVPR 2023).

GPM that adds inputs to a layer where the protected ones leave a new task too little to learn with. For every layer of
``c`` inputs, with ``P`` the projector onto the protected space:

    before task t     ρ_l = mean over batches of ‖∇W (I − P)‖ / ‖∇W‖
                      E = min(⌈max((ρ − ρ_l) K, 0)⌉, c) more inputs, mixtures Φ_tᵀ x of the c that are there,
                      Φ_t from their E strongest directions, and columns V_t beside W
    during task t     W_eff x = W x + Σ_{s ≤ t} V_s Φ_sᵀ x
                      ∇[W, V_1, …] ← ∇[W, V_1, …] (I − P);  V_t and Φ_t are free
    after task t      P grows as in GPM, by the inputs [x, Φ_1ᵀ x, …, Φ_tᵀ x];  Φ_t is held, V_t shared like W

The inputs of a convolution are its channels (``attach/effective.py``). The groups of a grouped one mix their own
channels, all of them into equally many, the largest ``E`` that a group asks for.

``P`` is kept as DualGPM keeps it (``algebra/dual.py``). Two habits of the published code are not reproduced: a first
basis to retain that lacks the directions which no input showed, and early stopping within the warm-up.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from statistics import fmean
from typing import Any, ClassVar, cast

import torch
from torch import Tensor, nn

from codecl.algebra import Moments, Subspace
from codecl.algebra.dual import DualSubspace
from codecl.attach import (
    EffectiveWeight,
    Expansion,
    ExtendedWeight,
    ProtectedWeight,
    capture_moments,
    in_mode,
    project_away,
    take,
    untouched_buffers,
    untouched_randomness,
)
from codecl.attach.projection import wide_dtype
from codecl.layers import LayerKind, moments_of
from codecl.method.gradients import unprojected
from codecl.method.settings import check, check_patterns, matching
from codecl.method.state import ForeignState, size
from codecl.methods.gpm import GPM
from codecl.randomness import method_seed


class API(GPM):
    """GPM whose layers get more inputs where too little of a new task's gradient is left.

    =============  ===================================================================================================
    rho            ρ: the share of the gradient's norm that is to be left
    channels       K: how many inputs are added for each unit of it that is missing
    warm_up        how many epochs of projected SGD come before ρ_l is measured, and count in it; the model keeps what
                   it learns in them. Published for CIFAR-100 in 20 tasks: 5
    warm_up_lr     their learning rate
    closed         name patterns of weights that never get more inputs; published for LeNet: its Linear layers
    seed           of the new columns, and of dropout while ρ_l is measured
    =============  ===================================================================================================

    The other settings are those of GPM. ρ_l is measured in training mode, over all batches that ``begin_task`` gets:
    give it the batches of training. New columns and mixtures never decay.
    """

    name: ClassVar[str] = "api"
    weight_type: ClassVar[type[ProtectedWeight]] = ExtendedWeight
    memory: dict[str, list[DualSubspace]]  # type: ignore[assignment]  # whatever GPM does with its own is overridden

    def __init__(
        self,
        model: nn.Module,
        *,
        rho: float = 0.5,
        channels: float = 10.0,
        warm_up: int = 0,
        warm_up_lr: float = 0.01,
        closed: Sequence[str] = (),
        seed: int = 0,
        **gpm: Any,
    ) -> None:
        check(0 <= rho <= 1, "rho", rho, "a share in [0, 1]")
        check(0 <= channels < math.inf, "channels", channels, "a finite number, 0 or more")
        check(warm_up >= 0, "warm_up", warm_up, "a number of epochs, 0 or more")
        check(0 < warm_up_lr < math.inf, "warm_up_lr", warm_up_lr, "a finite number above 0")
        self.closed = closed
        super().__init__(model, **gpm)
        self.rho, self.channels, self.seed = rho, channels, seed
        self.warm_up, self.warm_up_lr = warm_up, warm_up_lr
        self.Phi: dict[str, list[nn.Parameter]] = {name: [] for name in self.weights}

    @property
    def weights(self) -> dict[str, ExtendedWeight]:  # type: ignore[override]
        return cast(dict[str, ExtendedWeight], super().weights)

    def examine(self) -> None:
        super().examine()
        check_patterns("closed", self.closed, self.weights)

    @property
    def samples_before(self) -> int | None:
        return None

    def prepare(self, loader: Iterable[Any] | None) -> dict[str, EffectiveWeight]:
        """Which layers get more inputs, and how many."""
        if isinstance(loader, Iterator):  # it is read several times
            loader = take(loader, None)
        sample = self.sample(loader)
        assert loader is not None
        for weight in self.weights.values():
            for column in weight.columns:
                column.requires_grad_()
        retained = self._retained(loader)
        E = {name: missing for name, rho_l in retained.items() if (missing := self._missing(name, rho_l))}
        short = {name: self.weights[name] for name in E}
        norms = capture_moments(self.model, short, sample, self.forward, self._channel_norms)
        added = {name: self._new(self.weights[name], E[name], of_weight) for name, of_weight in norms.items()}
        for name, (Phi, V) in added.items():
            self.Phi[name].append(nn.Parameter(Phi))
            self.weights[name].columns.append(nn.Parameter(V))
        self._protect()
        return {
            name: Expansion(weight, self.Phi[name], len(weight.columns), new=name in added)
            for name, weight in self.weights.items()
            if weight.columns
        }

    def remember(self, loader: Iterable[Any] | None) -> None:
        """The inputs of the learned task, and their mixtures, join the past."""
        for name, R in self._inputs(loader).items():
            past = self.memory.get(name) or [DualSubspace(Subspace.zero(r.dim, r.total.device)) for r in R]
            energy, rule = self._energy(name), self._rule(name)
            self.memory[name] = [B.widen(r.dim).grow(r, energy, rule) for B, r in zip(past, R, strict=True)]
        self._protect()

    def memory_state(self) -> dict[str, Any]:
        """The bases by weight, none for a weight that was never called; and all expansions."""
        return {
            "bases": {
                name: [{"basis": B.held.basis, "retains": B.retains} for B in self.memory.get(name, ())]
                for name in self.weights
            },
            "V": {name: [V.detach().clone() for V in weight.columns] for name, weight in self.weights.items()},
            "Phi": {name: [Phi.detach().clone() for Phi in several] for name, several in self.Phi.items()},
        }

    def load_memory(self, state: Mapping[str, Any]) -> None:
        memory: dict[str, list[DualSubspace]] = {}
        for name, weight in self.weights.items():
            self._check_sizes(name, state)
            device = weight.parameter.device
            if held := state["bases"][name]:
                memory[name] = [DualSubspace(Subspace(B["basis"].to(device)), bool(B["retains"])) for B in held]
        self.memory = memory
        for name, weight in self.weights.items():
            device = weight.parameter.device
            weight.columns[:] = [nn.Parameter(V.to(device, copy=True)) for V in state["V"][name]]
            self.Phi[name][:] = [nn.Parameter(Phi.to(device, copy=True)) for Phi in state["Phi"][name]]
        self._protect()

    def effective_weight(self, name: str, state: Mapping[str, Any]) -> EffectiveWeight:
        known, count = len(self.Phi[name]), int(state["count"])
        if not 1 <= count <= known:
            raise ForeignState(f"a task of the state sees {count} expansions of '{name}', of which it has {known}.")
        return Expansion(self.weights[name], self.Phi[name], count, bool(state["new"]))

    def describe(self, name: str) -> dict[str, Any]:
        """How many inputs were added, by the last task and by all, beside the rank."""
        change, added = self.effective.get(name), [Phi.shape[-1] for Phi in self.Phi[name]]
        new = isinstance(change, Expansion) and change.new
        ranks = [B.dim - B.held.rank if B.retains else B.held.rank for B in self.memory.get(name, ())]
        rank = {"rank": fmean(ranks)} if ranks else {}
        return rank | {"added": added[-1] if new else 0, "expansion": sum(added)}

    def bytes(self) -> dict[str, int]:
        """What a further task adds includes its ``V_t`` and ``Φ_t``."""
        found, state = super().bytes(), self.memory_state()
        added = size([state["V"], state["Phi"]])
        return found | {"per_task": found["per_task"] + added // max(1, len(self.tasks))}

    def _protect(self) -> None:
        """``∇[W, V_1, …] ← ∇[W, V_1, …] (I − P)`` from here on; in columns newer than ``P`` nothing is protected."""
        for name, weight in self.weights.items():
            weight.projection = None
            if name in self.memory:
                P = [B.widen(weight.width) for B in self.memory[name]]
                bases, rests = [B.held.basis for B in P], [int(B.retains) for B in P]
                inside = [basis.new_full(basis.shape[1:], 1 - rest) for basis, rest in zip(bases, rests, strict=True)]
                weight.projection = project_away(bases, weight.parameter, inside, rests)

    def _inputs(self, loader: Iterable[Any] | None) -> dict[str, list[Moments]]:
        """The energy of what each matrix of each weight was fed, under the weights of the learned task."""
        return capture_moments(self.model, self.weights, self.sample(loader), self.forward, self._moments)

    def _moments(self, weight: ProtectedWeight, kind: LayerKind, x: Any) -> Iterator[list[Moments]]:
        change = weight.change
        if not isinstance(change, Expansion):
            yield from super()._moments(weight, kind, x)
            return
        for piece in self._pieces(kind, x):
            yield moments_of([change.widen(X, i) for i, X in enumerate(kind.rows(piece))])

    def _channel_norms(self, weight: ProtectedWeight, kind: LayerKind, x: Any) -> Iterator[list[Moments]]:
        """How large each channel is in each patch, ``[n, c]``: its spectral norm where the kernel has two axes.

        With one or three axes, which are not published, it is the Frobenius norm; for a Linear layer the absolute
        value.
        """
        kernel = kind.kernel or (1,)
        for piece in self._pieces(kind, x):
            patches = [X.reshape(len(X), -1, *kernel).to(wide_dtype(X)) for X in kind.rows(piece)]
            if len(kernel) == 2:
                yield moments_of([torch.linalg.matrix_norm(X, ord=2) for X in patches])
            else:
                yield moments_of([X.flatten(2).norm(dim=2) for X in patches])

    def _retained(self, loader: Iterable[Any]) -> dict[str, Tensor]:
        """``ρ_l`` of every matrix of every protected weight, ``[g]``, after the warm-up."""
        watched = {name: weight for name, weight in self.weights.items() if weight.projection is not None}
        learning = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        learning += [column for weight in self.weights.values() for column in weight.columns]
        ratios: dict[str, list[Tensor]] = {name: [] for name in watched}

        def projected(batch: Any) -> dict[nn.Parameter, Tensor]:
            """The gradients of ``batch``, projected; what is left of them goes on record."""
            found = torch.autograd.grad(self.objective(batch), learning, allow_unused=True, materialize_grads=True)
            gradients = dict(zip(learning, found, strict=True))
            for name, weight in watched.items():
                before = [gradients[tensor] for tensor in weight.tensors]
                after = weight.project_all(before)
                gradients |= zip(weight.tensors, after, strict=True)
                ratios[name].append(_ratio(weight.join(after), weight.join(before)))
            return gradients

        with (
            untouched_randomness(),
            in_mode(self.model, training=True),
            torch.enable_grad(),
            unprojected(watched.values()),
        ):
            torch.manual_seed(method_seed(self.seed, len(self.tasks), "dropout"))
            for _ in range(self.warm_up):
                for batch in loader:
                    gradients = projected(batch)
                    with torch.no_grad():
                        for tensor, gradient in gradients.items():
                            tensor.sub_(gradient, alpha=self.warm_up_lr)
            with untouched_buffers(self.model):
                for batch in loader:
                    projected(batch)
        return {name: torch.stack(several).mean(0) for name, several in ratios.items()}

    def _missing(self, name: str, rho_l: Tensor) -> int:
        """``E``: how many inputs the weight gets."""
        if matching(name, self.closed):
            return 0
        c = self.weights[name].shape[2] // math.prod(self.weights[name].kind.kernel)
        return min(math.ceil(max((self.rho - float(rho_l.min())) * self.channels, 0)), c)

    def _new(self, weight: ExtendedWeight, E: int, norms: list[Moments]) -> tuple[Tensor, Tensor]:
        """``Φ_t``, the top ``E`` directions of the norms of channels, and ``V_t``, drawn as torch draws new layers."""
        (g, o, _), like = weight.shape, weight.parameter
        Phi = torch.stack([_top(of_matrix, E) for of_matrix in norms]).to(like.device, like.dtype)
        V = torch.empty(g, o, E * math.prod(weight.kind.kernel), dtype=like.dtype)
        bound = (weight.width + V.shape[2]) ** -0.5
        generator = torch.Generator().manual_seed(method_seed(self.seed, len(self.tasks), weight.name))
        V.uniform_(-bound, bound, generator=generator)
        return Phi, V.to(like.device)

    def _check_sizes(self, name: str, state: Any) -> None:
        """Refuse expansions and bases that cannot be of the weight."""
        (g, o, d), k = self.weights[name].shape, math.prod(self.weights[name].kind.kernel)
        E = [Phi.shape[-1] for Phi in state["Phi"][name]]
        found = [list(tensor.shape) for tensor in (*state["Phi"][name], *state["V"][name])]
        expected = [[g, d // k, e] for e in E] + [[g, o, e * k] for e in E]
        if found != expected:
            raise ForeignState(f"'{name}' has expansions of shapes {found} in the state; {expected} would fit here.")
        held = [B["basis"].shape[0] for B in state["bases"][name]]
        widths = list(accumulate([d, *(e * k for e in E)]))
        if held and held not in [[width] * g for width in widths]:
            raise ForeignState(f"'{name}' has directions of {held} inputs in the state, {g} of one of {widths} here.")


def _ratio(left: Tensor, G: Tensor) -> Tensor:
    """``‖left‖ / ‖G‖`` of every matrix, ``[g]``; where there is no gradient, none is lost."""
    norm = G.flatten(1).norm(dim=1)
    return torch.where(norm > 0, left.flatten(1).norm(dim=1) / norm, 1.0)


def _top(norms: Moments, E: int) -> Tensor:
    """The leading ``E`` directions, ``[c, E]``; where there are fewer, filled up with others orthogonal to them."""
    U = norms.spectrum()[0][:, :E]
    return U if U.shape[1] == E else torch.cat([U, Subspace(U).complement().basis], dim=1)[:, :E]

"""API on a bare network and dense float64 matrices: slow, and what ours is compared with.

Effective weights are written with Kronecker products, the memory is one plain basis as in GPM, and nothing is folded,
cached or projected on the way back.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.algebra import dense
from tests.methods.cases import Batches
from tests.methods.gpm_reference import LAYERS, rows_of


def channel_norms(X: Tensor, kernel: tuple[int, ...]) -> Tensor:
    """The largest singular value of every channel of every patch, ``[c, n]``."""
    patches = X.reshape(len(X), -1, *kernel)
    return torch.stack([torch.stack([torch.linalg.svdvals(p)[0] for p in row]) for row in patches]).mT


@dataclass
class SlowAPI:
    """The settings carry the names that API gives them."""

    model: nn.Module
    lr: float
    threshold: float
    rho: float
    channels: float
    warm_up: int = 0
    warm_up_lr: float = 0.01
    first_rule: str = "reach"
    learned: int = 0
    bases: dict[str, list[Tensor]] = field(default_factory=dict)
    V: dict[str, list[Tensor]] = field(default_factory=lambda: {name: [] for name in LAYERS})
    Phi: dict[str, list[Tensor]] = field(default_factory=lambda: {name: [] for name in LAYERS})
    known: list[dict[str, int]] = field(default_factory=list)
    """How many expansions of each layer a task has seen."""

    def kernel(self, name: str) -> tuple[int, ...]:
        return getattr(self.model.get_submodule(name), "kernel_size", (1, 1))

    def mixing(self, name: str, s: int, i: int) -> Tensor:
        """``Φ_s ⊗ I`` of matrix ``i``, ``[d, E k]``."""
        k = math.prod(self.kernel(name))
        return torch.kron(self.Phi[name][s][i].contiguous(), torch.eye(k, dtype=torch.float64))

    def effective(self, name: str, count: int) -> Tensor:
        """``W + Σ_{s < count} V_s (Φ_s ⊗ I)ᵀ``."""
        module = self.model.get_submodule(name)
        parts = []
        for i, part in enumerate(module.weight.chunk(getattr(module, "groups", 1))):
            matrix = part.flatten(1)
            for s in range(count):
                matrix = matrix + self.V[name][s][i] @ self.mixing(name, s, i).mT
            parts.append(matrix.reshape(part.shape))
        return torch.cat(parts)

    def outputs(self, x: Tensor, known: dict[str, int]) -> Tensor:
        weights = {f"{name}.weight": self.effective(name, known[name]) for name in LAYERS}
        return torch.func.functional_call(self.model, weights, (x,))

    def everything(self) -> dict[str, int]:
        return {name: len(self.V[name]) for name in LAYERS}

    def joined(self, name: str, W: Tensor, V: list[Tensor]) -> list[Tensor]:
        """``[W, V_1, …]`` of each matrix, from tensors of their shapes."""
        module = self.model.get_submodule(name)
        parts = W.chunk(getattr(module, "groups", 1))
        return [torch.cat([part.flatten(1), *(v[i] for v in V)], dim=1) for i, part in enumerate(parts)]

    def gradients(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        """Of everything that could learn, by name; not projected."""
        of = {n: p for n, p in self.model.named_parameters() if self.learned == 0 or not self.is_held(n)}
        for name in LAYERS:
            of |= {f"{name}.V{s}": v for s, v in enumerate(self.V[name])}
            of |= {f"{name}.Phi{s}": phi for s, phi in enumerate(self.Phi[name])}
        loss = F.cross_entropy(self.outputs(x, self.everything()), y)
        return dict(zip(of, torch.autograd.grad(loss, list(of.values())), strict=True))

    @staticmethod
    def is_held(name: str) -> bool:
        return name in [f"{layer}.bias" for layer in LAYERS]

    def projected(self, name: str, G: dict[str, Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        """``∇[W, V_1, …]`` of each matrix of a layer, before and after ``(I − P)``; new columns are not protected."""
        before = self.joined(name, G[f"{name}.weight"], [G[f"{name}.V{s}"] for s in range(len(self.V[name]))])
        after = []
        for i, matrix in enumerate(before):
            B = self.bases[name][i]
            P = torch.zeros(matrix.shape[1], matrix.shape[1], dtype=torch.float64)
            P[: len(B), : len(B)] = B @ B.mT
            after.append(matrix - matrix @ P)
        return before, after

    def step(self, x: Tensor, y: Tensor, lr: float | None = None, held: bool = False) -> dict[str, list[float]]:
        """One step, and the share of its gradient that is left in every matrix; ``held`` keeps ``Φ`` as it is."""
        G, lr, ratios = self.gradients(x, y), self.lr if lr is None else lr, {}
        for name in LAYERS if self.learned else ():
            before, after = self.projected(name, G)
            ratios[name] = [float(a.norm() / b.norm()) for a, b in zip(after, before, strict=True)]
            widths = [after[0].shape[1] - sum(v.shape[2] for v in self.V[name]), *(v.shape[2] for v in self.V[name])]
            pieces = [matrix.split(widths, dim=1) for matrix in after]
            G[f"{name}.weight"] = torch.cat([piece[0] for piece in pieces]).reshape(G[f"{name}.weight"].shape)
            for s in range(len(self.V[name])):
                G[f"{name}.V{s}"] = torch.stack([piece[s + 1] for piece in pieces])
        parameters = dict(self.model.named_parameters())
        with torch.no_grad():
            for key, gradient in G.items():
                layer, _, kind = key.rpartition(".")
                if key in parameters:
                    parameters[key] -= lr * gradient
                elif kind.startswith("V"):
                    self.V[layer][int(kind[1:])] -= lr * gradient
                elif not held and self.is_new(layer, int(kind[3:])):
                    self.Phi[layer][int(kind[3:])] -= lr * gradient
        return ratios

    def is_new(self, name: str, s: int) -> bool:
        before = self.known[-2] if len(self.known) > 1 else dict.fromkeys(LAYERS, 0)
        return s >= before[name]

    def begin(self, batches: Batches) -> dict[str, tuple[int, list[Tensor]]]:
        """Of layers that are short of plasticity: ``E``, and the directions that ``Φ`` starts from."""
        seen: dict[str, list[list[float]]] = {name: [] for name in LAYERS}
        for epoch in range(self.warm_up + 1 if self.learned else 0):
            for x, y in batches:
                lr = self.warm_up_lr if epoch < self.warm_up else 0.0
                for name, ratios in self.step(x, y, lr, held=True).items():
                    seen[name].append(ratios)
        wanted = {}
        for name, ratios in seen.items():
            if not ratios:
                continue
            c = self.rows(name, batches)[0].shape[1] // math.prod(self.kernel(name))
            means = [sum(r[i] for r in ratios) / len(ratios) for i in range(len(ratios[0]))]
            E = max(min(math.ceil(max((self.rho - mean) * self.channels, 0)), c) for mean in means)
            if E:
                norms = [channel_norms(X, self.kernel(name)) for X in self.rows(name, batches)]
                wanted[name] = E, [torch.linalg.svd(M)[0][:, :E] for M in norms]
        return wanted

    def expand(self, new: dict[str, tuple[Tensor, Tensor]]) -> None:
        """The task begins, with these ``Φ`` and ``V`` in some layers."""
        for name, (Phi, V) in new.items():
            self.Phi[name].append(Phi.detach().clone().requires_grad_())
            self.V[name].append(V.detach().clone().requires_grad_())
        self.known.append(self.everything())

    def rows(self, name: str, batches: Batches) -> list[Tensor]:
        seen: list[list[Tensor]] = []
        module = self.model.get_submodule(name)
        hook = module.register_forward_hook(lambda module, args, _: seen.append(rows_of(module, args[0])))
        with torch.no_grad():
            for x, _ in batches:
                self.outputs(x, self.everything())
        hook.remove()
        return [torch.cat(parts) for parts in zip(*seen, strict=True)]

    def expanded_rows(self, name: str, batches: Batches) -> Iterator[Tensor]:
        for i, X in enumerate(self.rows(name, batches)):
            yield torch.cat([X, *(X @ self.mixing(name, s, i) for s in range(len(self.V[name])))], dim=1).detach()

    def end(self, batches: Batches) -> None:
        for name in LAYERS:
            rows = list(self.expanded_rows(name, batches))
            old = self.bases.get(name, [torch.zeros(0, 0, dtype=torch.float64) for _ in rows])
            old = [F.pad(B, (0, 0, 0, X.shape[1] - len(B))) for B, X in zip(old, rows, strict=True)]
            first = self.learned == 0 and self.first_rule == "below"
            self.bases[name] = [
                dense.gpm_first_task(X, self.threshold) if first else dense.gpm_later_task(B, X, self.threshold)
                for B, X in zip(old, rows, strict=True)
            ]
        self.learned += 1

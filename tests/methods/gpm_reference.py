"""GPM, SGP and DFGP on a bare network and dense float64 matrices, as loops: slow, and what ours are compared with.

The network is trained by autograd, without a line of codecl. ``layers`` names its protected modules; rows are cut out
with ``F.unfold``, the channels of each group for themselves.
"""

from collections import OrderedDict
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from hypothesis import strategies as st
from torch import Tensor, nn

from tests.algebra import dense
from tests.methods.cases import CLASSES, Batches, seeded

LAYERS = ("conv", "hidden")


@st.composite
def networks(draw) -> nn.Sequential:
    """A convolution, grouped or dilated or neither, and a linear layer, for inputs ``[n, 4, 6, 5]``."""
    torch.manual_seed(draw(st.integers(0, 99)))
    conv = nn.Conv2d(
        4,
        4,
        draw(st.sampled_from([(2, 2), (3, 1)])),
        stride=draw(st.sampled_from([1, 2])),
        padding=draw(st.sampled_from([0, (1, 0)])),
        dilation=draw(st.sampled_from([(1, 2), 1, 2])),
        groups=draw(st.sampled_from([2, 1, 4])),
    )
    features = conv(torch.zeros(1, 4, 6, 5)).numel()
    modules = [("conv", conv), ("tanh", nn.Tanh()), ("flat", nn.Flatten()), ("hidden", nn.Linear(features, 7))]
    return nn.Sequential(OrderedDict([*modules, ("relu", nn.ReLU()), ("head", nn.Linear(7, CLASSES))])).double()


def one_layer(d: int) -> nn.Sequential:
    """A network whose first layer sees the inputs as they are."""
    return nn.Sequential(OrderedDict([("a", nn.Linear(d, 3)), ("head", nn.Linear(3, CLASSES))])).double()


@st.composite
def streams(draw) -> tuple[list[Tensor], float]:
    """Rows of three tasks, some rank-deficient, some huge or tiny, and a threshold.

    Their singular values are well apart, so that the directions are well defined.
    """
    d, generator = draw(st.integers(1, 9)), seeded(draw(st.integers(0, 2**31)))
    scale = draw(st.sampled_from([1e-60, 1.0, 1e60]))
    tasks = []
    for _ in range(3):
        n = draw(st.integers(1, 2 * d))
        k = draw(st.integers(1, min(n, d)))
        U, V = (torch.linalg.qr(torch.randn(m, k, generator=generator, dtype=torch.float64)).Q for m in (n, d))
        tasks.append(scale * (U * 0.7 ** torch.arange(k, dtype=torch.float64)) @ V.mT)
    return tasks, draw(st.sampled_from([0.31, 0.72, 0.913, 0.974, 0.9973]))


def images(task: int, n: int = 12, batch: int = 4) -> Batches:
    """Inputs that lie close to a space of 9 dimensions, another one for each task."""
    generator = seeded(500 + task)
    X = torch.randn(n, 9, generator=generator, dtype=torch.float64)
    X = X @ torch.randn(9, 4 * 6 * 5, generator=generator, dtype=torch.float64) / 3
    X = X + 0.05 * torch.randn(X.shape, generator=generator, dtype=torch.float64)
    y = torch.randint(0, CLASSES, (n,), generator=generator)
    return list(zip(X.reshape(n, 4, 6, 5).split(batch), y.split(batch), strict=True))


def rows_of(module: nn.Module, x: Tensor) -> list[Tensor]:
    """What each matrix of the module multiplies, ``[n, d]``."""
    if isinstance(module, nn.Linear):
        return [x.reshape(-1, x.shape[-1])]
    unfold = [module.kernel_size, module.dilation, module.padding, module.stride]
    return [F.unfold(part, *unfold).mT.flatten(0, 1) for part in x.chunk(module.groups, dim=1)]


def projector(B: Tensor) -> Tensor:
    return B @ B.mT


@dataclass
class SlowGPM:
    """The settings carry the names that GPM gives them."""

    model: nn.Module
    lr: float
    threshold: float
    increment: float = 0.0
    first_rule: str = "reach"
    images: dict[str, int] = field(default_factory=dict)
    bases: dict[str, list[Tensor]] = field(default_factory=dict)
    learned: int = 0

    def importance(self, name: str) -> list[Tensor]:
        return [torch.ones(B.shape[1], dtype=B.dtype) for B in self.bases[name]]

    def learning(self) -> dict[str, nn.Parameter]:
        """All parameters, but no biases after the first task."""
        kept = dict(self.model.named_parameters())
        if self.learned:
            for name in LAYERS:
                del kept[f"{name}.bias"]
        return kept

    def projected(self, name: str, G: Tensor) -> Tensor:
        """``G − G B diag(λ) Bᵀ`` for each matrix of the parameter ``name``."""
        module, _, kind = name.rpartition(".")
        if kind != "weight" or module not in self.bases:
            return G
        parts = []
        for B, lam, part in zip(
            self.bases[module], self.importance(module), G.chunk(len(self.bases[module])), strict=True
        ):
            matrix = part.flatten(1)
            parts.append((matrix - matrix @ B @ torch.diag(lam) @ B.mT).reshape(part.shape))
        return torch.cat(parts)

    def gradients(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        loss = F.cross_entropy(self.model(x), y)
        of = self.learning()
        return dict(zip(of, torch.autograd.grad(loss, list(of.values())), strict=True))

    def step(self, x: Tensor, y: Tensor) -> None:
        gradients = self.gradients(x, y)
        with torch.no_grad():
            for name, parameter in self.learning().items():
                parameter -= self.lr * self.projected(name, gradients[name])

    def rows(self, batches: Batches) -> dict[str, list[Tensor]]:
        seen: dict[str, list[list[Tensor]]] = {name: [] for name in LAYERS}

        def listen(name: str):
            return lambda module, args, _: seen[name].append(rows_of(module, args[0][: self.images.get(name)]))

        hooks = [self.model.get_submodule(name).register_forward_hook(listen(name)) for name in LAYERS]
        with torch.no_grad():
            for x, _ in batches:
                self.model(x)
        for hook in hooks:
            hook.remove()
        return {name: [torch.cat(parts) for parts in zip(*several, strict=True)] for name, several in seen.items()}

    def end(self, batches: Batches) -> None:
        threshold = min(1.0, self.threshold + self.increment * self.learned)
        for name, several in self.rows(batches).items():
            old = self.bases.get(name, [torch.zeros(X.shape[1], 0, dtype=X.dtype) for X in several])
            self.bases[name] = [
                dense.gpm_first_task(X, threshold)
                if self.learned == 0 and self.first_rule == "below"
                else dense.gpm_later_task(B, X, threshold)
                for B, X in zip(old, several, strict=True)
            ]
            self.weigh(name, [B.shape[1] for B in old], several)
        self.learned += 1

    def weigh(self, name: str, ranks: list[int], rows: list[Tensor]) -> None:
        """What becomes of importances; ``ranks`` are those of the bases before they grew."""


@dataclass
class SlowSGP(SlowGPM):
    alpha: float = 10.0
    lam: dict[str, list[Tensor]] = field(default_factory=dict)

    def importance(self, name: str) -> list[Tensor]:
        return self.lam[name]

    def weigh(self, name: str, ranks: list[int], rows: list[Tensor]) -> None:
        before = self.lam.get(name, [torch.zeros(0)] * len(rows))
        self.lam[name] = [
            accumulated(old, B[:, :r], B[:, r:], X, self.alpha)
            for old, B, r, X in zip(before, self.bases[name], ranks, rows, strict=True)
        ]


def accumulated(old: Tensor, B: Tensor, new: Tensor, X: Tensor, alpha: float) -> Tensor:
    """SGP: the importance of ``[B, new]``, of which ``B`` had ``old``, after the rows ``X``."""
    residual = X - X @ B @ B.mT
    s = [sum(float(x @ b) ** 2 for x in X) ** 0.5 for b in B.mT]
    s += torch.linalg.svdvals(residual)[: new.shape[1]].tolist()
    largest = max(s, default=0.0)
    mapped = [(alpha + 1) * value / (alpha * value + largest) if largest > 0 else 0.0 for value in s]
    clipped = [min(1.0, a + b) for a, b in zip(old.tolist(), mapped, strict=False)]
    return torch.tensor([*clipped, *mapped[len(clipped) :]], dtype=torch.float64)


@dataclass
class SlowDFGP(SlowGPM):
    alpha: float = 20.0
    mixup: float = 0.1
    eta: float = 0.05
    rho: float = 0.05
    swapped: bool = False
    seed: int = 0
    """Of the global random state before a step: the permutation is drawn first, then λ."""
    returned: float = 0.0
    """The loss of the batch at the weights before the last step."""

    def loss(self, x: Tensor, y: Tensor, order: Tensor, lam: Tensor) -> Tensor:
        mixed = torch.stack([(1 - share) * a + share * b for share, a, b in zip(lam, x, x[order], strict=True)])
        shares = lam.detach().tolist()
        of_y, of_other = sum(1 - share for share in shares) / len(shares), sum(shares) / len(shares)
        if self.swapped:
            of_y, of_other = of_other, of_y
        on_mixed = of_y * F.cross_entropy(self.model(mixed), y)
        on_mixed = on_mixed + of_other * F.cross_entropy(self.model(mixed), y[order])
        return F.cross_entropy(self.model(x), y) + self.mixup * on_mixed

    def gradients(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        torch.manual_seed(self.seed)
        order = torch.randperm(len(x))
        lam = torch.distributions.Beta(self.alpha, self.alpha).sample((len(x),)).double().requires_grad_()
        of = self.learning()
        ascent = torch.autograd.grad(self.loss(x, y, order, lam), [lam, *of.values()])
        self.returned = float(F.cross_entropy(self.model(x), y).detach())
        lam, slope = lam.detach(), ascent[0]
        if slope.norm() > 0:
            lam = (lam + self.eta * slope / slope.square().sum().sqrt()).clamp(0, 1)
        length = sum(float(g.square().sum()) for g in ascent[1:]) ** 0.5
        before = [parameter.detach().clone() for parameter in of.values()]
        with torch.no_grad():
            for parameter, g in zip(of.values(), ascent[1:], strict=True):
                parameter += self.rho * g / length
        descent = torch.autograd.grad(self.loss(x, y, order, lam), list(of.values()))
        with torch.no_grad():
            for parameter, value in zip(of.values(), before, strict=True):
                parameter.copy_(value)
        return dict(zip(of, descent, strict=True))

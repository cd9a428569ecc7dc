"""DFGP: data-augmented flatness-aware gradient projection (Yang et al.; ICCV 2023).

GPM on the gradient of a flatter loss, from the first task on. On a batch ``(x, y)``, with the loss ``ℓ``, a
permutation ``π``, and ``λ ~ Beta(α, α)`` for each input,

    x_mix = (1 − λ) x + λ x_π
    L(W, λ) = ℓ(f(x), y) + w [mean(1 − λ) ℓ(f(x_mix), y) + mean(λ) ℓ(f(x_mix), y_π)]

mixing and weights both take a step that makes it worse, and the weights learn from where that leads:

    λ' = λ + η ∇_λ L / ‖∇_λ L‖, in [0, 1];  W' = W + ρ ∇_W L / ‖∇_W L‖, over all parameters together
    ∇W = ∇_W L(W', λ') (I − B Bᵀ)

``W'`` follows the gradient as it is, not projected: it looks for what is worst, and is taken back after the step. ``λ``
moves through ``x_mix`` alone, and counts in the labels as a constant. Written after the published code; the weights
of the labels are those of the inputs here, and the other way round there (``swapped``). That code also perturbs norms
that it holds; held parameters have no gradient here, and stay.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.distributions import Beta

from codecl.method.gradients import add_gradients, unprojected
from codecl.method.guard import Closure
from codecl.method.hooks import Presets
from codecl.method.settings import ByWeight, check
from codecl.methods.gpm import GPM

TINY = 1e-16
"""What is added to a norm before dividing by it, as the published code does: where there is no gradient, no step."""


class DFGP(GPM):
    """Projects the gradient at perturbed weights, on inputs as they are and mixed for the worst.

    =============  ===================================================================================================
    alpha          α: how the mixing λ is drawn, Beta(α, α); the larger, the closer to one half
    mixup          w: the weight of the loss on mixed inputs
    eta            η: how far λ moves, over a whole batch
    rho            ρ: how far the weights move before their gradient is taken
    swapped        the label of the input that has the share λ counts 1 − λ, as in the published code
    =============  ===================================================================================================

    The other settings are those of GPM. A step takes four passes through the network; running statistics of norms see
    them all. It computes its own losses, by ``forward`` and ``loss``: gradients that stand there are replaced, a
    closure is not called, and ``optimizer.step(closure)`` returns ``ℓ(f(x), y)`` from before the step. Batches are
    pairs of floating-point inputs and labels, and ``forward`` looks at the inputs only.
    """

    name: ClassVar[str] = "dfgp"
    presets: ClassVar[Presets] = {
        "paper": {},
        "official": {"first_rule": "below", "swapped": True},
    }
    plain_first_task: ClassVar[bool] = False

    def __init__(
        self,
        model: nn.Module,
        *,
        threshold: ByWeight = 0.95,
        increment: float = 0.0,
        alpha: float = 20.0,
        mixup: float = 0.1,
        eta: float = 0.05,
        rho: float = 0.05,
        swapped: bool = False,
        **gpm: Any,
    ) -> None:
        infinity = float("inf")
        check(1e-6 <= alpha <= 1e6, "alpha", alpha, "a number from 1e-6 to 1e6")
        check(0 <= mixup < infinity, "mixup", mixup, "a finite number, 0 or more")
        check(0 <= eta < infinity, "eta", eta, "a finite number, 0 or more")
        check(0 <= rho < infinity, "rho", rho, "a finite number, 0 or more")
        super().__init__(model, threshold=threshold, increment=increment, **gpm)
        self.alpha, self.mixup, self.eta, self.rho, self.swapped = alpha, mixup, eta, rho, swapped

    def learn(self, closure: Closure, parameters: Sequence[nn.Parameter]) -> Any:
        """Leave ``∇_W L(W', λ')`` on ``parameters``; returns ``ℓ(f(x), y)`` at ``W``."""
        wanted = [parameter for parameter in parameters if parameter.requires_grad]
        if not wanted:
            return closure()
        x, y = self.replicas.joined(self._pair())
        order = self.replicas.first_of(torch.randperm(len(x), device=x.device))
        lam = self.replicas.first_of(self._draw(x)).requires_grad_()
        for parameter in parameters:
            parameter.grad = None
        with unprojected(self.weights.values()):
            L, plain = self._loss(x, y, order, lam)
            found = torch.autograd.grad(L, [lam, *wanted], allow_unused=True, materialize_grads=True)
            of_lam, *of_W = map(self.replicas.mean_of, found)
        lam = (lam.detach() + self.eta * of_lam / (of_lam.norm() + TINY)).clamp(0, 1)
        with perturbed(wanted, of_W, self.rho):
            add_gradients(self._loss(x, y, order, lam)[0], wanted)
        self.replicas.average(wanted)
        return plain.detach()

    def _loss(self, x: Tensor, y: Tensor, order: Tensor, lam: Tensor) -> tuple[Tensor, Tensor]:
        """``L`` at the weights as they stand, and its first term: the share of this process of both."""
        share = lam.reshape(-1, *[1] * (x.ndim - 1))
        x_mix, y_pi = (1 - share) * x + share * x[order], y[order.to(y.device)]
        (x, y, x_mix, y_pi), weight = self.replicas.share((x, y, x_mix, y_pi))
        plain = self.objective((x, y))
        output = self.forward(self.model, (x_mix, y))
        mean = lam.detach().mean()
        of_y, of_y_pi = (mean, 1 - mean) if self.swapped else (1 - mean, mean)
        mixed = of_y * self.loss(output, (x_mix, y)) + of_y_pi * self.loss(output, (x_mix, y_pi))
        return weight * (plain + self.mixup * mixed), weight * plain

    def _draw(self, x: Tensor) -> Tensor:
        """``λ`` for each input, from the random state that dropout draws from too."""
        alpha = torch.full((len(x),), float(self.alpha), device=x.device)
        return Beta(alpha, alpha).sample().to(x.dtype)

    def _pair(self) -> tuple[Tensor, Tensor]:
        """The batch as inputs and labels, which must be something that can be mixed."""
        batch = self.batch
        pair = isinstance(batch, (tuple, list)) and len(batch) == 2 and all(isinstance(part, Tensor) for part in batch)
        if not pair or not batch[0].is_floating_point() or len(batch[0]) != len(batch[1]):
            found = [_describe(part) for part in batch] if isinstance(batch, (tuple, list)) else _describe(batch)
            raise TypeError(
                "dfgp mixes the inputs of a batch, so a batch must be (inputs, labels): floating-point inputs, and as "
                f"many labels; got {found}."
            )
        return batch[0], batch[1]


@contextmanager
def perturbed(parameters: Sequence[nn.Parameter], gradients: Sequence[Tensor], rho: float) -> Iterator[None]:
    """``W + ρ g / ‖g‖`` for a while, and the same bits as before afterwards; the norm is of all ``g`` together."""
    kept = [parameter.detach().clone() for parameter in parameters]
    norm = torch.stack([g.norm() for g in gradients]).norm()
    try:
        with torch.no_grad():
            for parameter, g in zip(parameters, gradients, strict=True):
                parameter.add_(g * (rho / (norm + TINY)))
        yield
    finally:
        with torch.no_grad():
            for parameter, value in zip(parameters, kept, strict=True):
                parameter.copy_(value)


def _describe(part: Any) -> str:
    return f"{part.dtype}{list(part.shape)}" if isinstance(part, Tensor) else type(part).__name__

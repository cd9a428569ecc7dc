"""EWC: elastic weight consolidation (Kirkpatrick et al.; PNAS 2017).

With ``θ`` all parameters that tasks share, and ``θ*`` their values when a task had been learned:

    during task t     L(θ) + λ/2 Σ F (θ − θ*)²
    after task t      F_t = (1/N) Σ_b n_b g_b²,  g_b the gradient of the mean loss of batch b, of n_b inputs

``F`` is the diagonal of the empirical Fisher information: exact in batches of one input, and in larger ones an estimate
that counts gradients all inputs agree on too often; at a minimum there are none. How the ``F_t`` of several tasks
become one is where versions of EWC part:

    mean      F ← (t F + F_t)/(t + 1), around the latest θ*        the code most tables come from, that of HAT
    sum       Σ_t F_t (θ − θ_t*)², each task around its own θ*      the paper: its sum of quadratic penalties
    online    F ← γ F + F_t, around the latest θ*                   Schwarz et al., ICML 2018
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from codecl.attach import in_mode, inputs_in, taking, untouched_buffers, untouched_randomness
from codecl.attach.batches import rebatched
from codecl.attach.projection import wide_dtype
from codecl.method.guard import Closure
from codecl.method.hooks import Presets
from codecl.method.method import Method
from codecl.method.settings import check
from codecl.method.state import ForeignState
from codecl.randomness import method_seed


@dataclass(frozen=True)
class Quadratic:
    """``Σ F (θ − θ*)² + rest``."""

    F: Tensor
    anchor: Tensor
    rest: float = 0.0

    def __call__(self, theta: Tensor) -> Tensor:
        return (self.F * (theta - self.anchor) ** 2).sum() + self.rest

    def __add__(self, other: Quadratic) -> Quadratic:
        """The sum of two is one: the anchors meet in their mean, weighted by F, and leave a constant."""
        F, apart = self.F + other.F, other.anchor - self.anchor
        share = torch.where(F > 0, other.F / F, 1.0)  # where nothing holds, the latest anchor
        constant = self.rest + other.rest + float((self.F * share * apart**2).sum())
        return Quadratic(F, self.anchor + share * apart, constant)


class EWC(Method):
    """Holds each parameter as firmly as it mattered to past tasks, and none of them wholly.

    =====================  ===========================================================================================
    strength               λ
    fisher                 how tasks are joined: ``mean``, ``sum`` or ``online``, see above
    gamma                  γ of ``online``
    samples                how many inputs of a task F is measured on, in whole batches of the loader; None for all
    fisher_batch           how many inputs share a gradient; a single input that would be left over joins the last batch
    fisher_mode            the network whose F it is: in ``eval`` mode the function that is to be kept, as it is tested;
                           in ``train`` mode, as published, the same with dropout and batch statistics
    clip                   the norm to which the gradients of a step are clipped while there is a penalty; None: never
    penalty_in_validation  whether early stopping sees the loss with the penalty, which is what is minimised. Published
    seed                   of what dropout draws in ``train`` mode
    =====================  ===========================================================================================

    Norms and biases are parameters like others; running statistics go on with the current task. Heads belong to one
    task each and stand still after it: they are not held, nor is what ``skip`` names.
    """

    name: ClassVar[str] = "ewc"
    presets: ClassVar[Presets] = {"paper": {}, "official": {"fisher_mode": "train"}}

    def __init__(
        self,
        model: nn.Module,
        *,
        strength: float = 5000.0,
        fisher: Literal["mean", "sum", "online"] = "mean",
        gamma: float = 0.95,
        samples: int | None = None,
        fisher_batch: int = 20,
        fisher_mode: Literal["eval", "train"] = "eval",
        clip: float | None = 100.0,
        penalty_in_validation: bool = True,
        seed: int = 0,
        **common: Any,
    ) -> None:
        check(0 <= strength < float("inf"), "strength", strength, "a finite number, 0 or more")
        check(fisher in ("mean", "sum", "online"), "fisher", fisher, "'mean', 'sum' or 'online'")
        check(0 <= gamma <= 1, "gamma", gamma, "a share in [0, 1]")
        check(samples is None or samples > 0, "samples", samples, "a positive number of inputs, or None for all")
        check(fisher_batch > 0, "fisher_batch", fisher_batch, "a positive number of inputs")
        check(fisher_mode in ("eval", "train"), "fisher_mode", fisher_mode, "'eval' or 'train'")
        check(clip is None or clip > 0, "clip", clip, "a norm above 0, or None for no clipping")
        super().__init__(model, **common)
        self.strength, self.fisher, self.gamma = strength, fisher, gamma
        self.samples, self.fisher_batch, self.fisher_mode = samples, fisher_batch, fisher_mode
        self.clip, self.penalty_in_validation, self.seed = clip, penalty_in_validation, seed
        self.shared = {row.name: row.parameter for row in self.layers.of_role("free")}
        self.memory: dict[str, Quadratic] = {}

    def penalty(self) -> Tensor | None:
        """``λ/2 Σ F (θ − θ*)²``."""
        terms = [held(self.shared[name]) for name, held in self.memory.items()]
        return self.strength / 2 * torch.stack(terms).sum() if terms else None

    def learn(self, closure: Closure, parameters: Sequence[nn.Parameter]) -> Any:
        loss = super().learn(closure, parameters)
        if self.clip is not None and self.memory:
            nn.utils.clip_grad_norm_(parameters, self.clip)
        return loss

    def remember(self, loader: Iterable[Any] | None) -> None:
        """What mattered to the learned task is held from here on."""
        new = {n: Quadratic(F, self.shared[n].detach().to(F.dtype, copy=True)) for n, F in self._fisher(loader).items()}
        if bad := [n for n, q in new.items() if not bool(torch.isfinite(q.F).all())]:
            raise ValueError(f"the gradient of '{bad[0]}' is NaN or infinite, and would be for ever in the penalty.")
        self.memory |= {n: self._joined(self.memory[n], q) if n in self.memory else q for n, q in new.items()}

    def memory_state(self) -> dict[str, Any]:
        """The penalty of each parameter."""
        return {"penalty": {name: {"F": q.F, "anchor": q.anchor, "rest": q.rest} for name, q in self.memory.items()}}

    def load_memory(self, state: Mapping[str, Any]) -> None:
        penalty = state["penalty"]
        if penalty and penalty.keys() != self.shared.keys():
            raise ForeignState(f"the state holds {sorted(penalty)}; this model shares {sorted(self.shared)}.")
        memory = {}
        for name, saved in penalty.items():
            F, anchor, theta = saved["F"], saved["anchor"], self.shared[name]
            if F.shape != theta.shape or anchor.shape != theta.shape:
                raise ForeignState(f"'{name}' is {list(theta.shape)} here and {list(F.shape)} in the state.")
            memory[name] = Quadratic(F.to(theta.device), anchor.to(theta.device), float(saved["rest"]))
        self.memory = memory

    def _joined(self, past: Quadratic, new: Quadratic) -> Quadratic:
        """What holds for the past, and for the task just learned."""
        if self.fisher == "sum":
            return past + new
        t = self.current_task
        F = (t * past.F + new.F) / (t + 1) if self.fisher == "mean" else self.gamma * past.F + new.F
        return Quadratic(F, new.anchor)

    def _fisher(self, loader: Iterable[Any] | None) -> dict[str, Tensor]:
        """``F`` of the learned task, by parameter name. The model and all random states stay as they are."""
        F = {name: torch.zeros_like(p, dtype=wide_dtype(p)) for name, p in self.shared.items()}
        learning = {name: p for name, p in self.shared.items() if p.requires_grad}
        N = 0
        mode = in_mode(self.model, training=self.fisher_mode == "train")
        with mode, untouched_randomness(), untouched_buffers(self.model), torch.enable_grad():
            torch.manual_seed(method_seed(self.seed, len(self.tasks), "fisher"))
            for batch in rebatched(taking(loader, self.samples), self.fisher_batch):
                n = inputs_in(batch) or 1
                g = torch.autograd.grad(self.objective(batch), list(learning.values()), allow_unused=True)
                for name, of_name in zip(learning, g, strict=True):
                    if of_name is not None:
                        F[name] += n * of_name.to(F[name].dtype) ** 2
                N += n
        return {name: value / N for name, value in F.items()}

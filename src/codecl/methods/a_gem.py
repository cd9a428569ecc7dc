"""A-GEM: averaged gradient episodic memory (Chaudhry, Ranzato, Rohrbach, Elhoseiny; ICLR 2019).

In every step after the first task, with ``g`` the gradient of the task and ``g_ref`` that of the mean loss on samples
drawn from the memory of all past tasks, over everything that trains, heads and norms included:

    if gᵀ g_ref < 0:   g ← g − (gᵀ g_ref / g_refᵀ g_ref) g_ref

The memory is a ring for each class of each task: the last samples seen of it. As in the published code, it is filled
while the task is learned and used once the task has ended, and both gradients are taken in training mode. That code
learns in one epoch; here the rings take in the first (see ``replay``).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from codecl.attach import untouched_randomness
from codecl.method.guard import Closure
from codecl.method.mixed_tasks import mixed_loss
from codecl.method.settings import check
from codecl.methods.replay import Replay, Sample
from codecl.randomness import method_seed


class AGEM(Replay):
    """Turns a gradient that would raise the loss on stored samples of past tasks, just so far that it does not.

    ================  ================================================================================================
    memory_per_class  how many samples of each class of each task are kept: 13 in the published code. Tables of later
                      papers are said to use as many as make 2000 on CIFAR-100 (20), 500 on miniImageNet (5), 3000 on
                      5-Datasets (60) and 1000 on Permuted MNIST (10); this is not verified
    reference         how many of them are drawn for ``g_ref`` in a step, or all if there are fewer
    seed              of what is drawn
    ================  ================================================================================================
    """

    name: ClassVar[str] = "a-gem"

    def __init__(
        self, model: nn.Module, *, memory_per_class: int = 13, reference: int = 256, seed: int = 0, **common: Any
    ) -> None:
        check(memory_per_class > 0, "memory_per_class", memory_per_class, "a positive number of samples")
        check(reference > 0, "reference", reference, "a positive number of samples")
        super().__init__(model, seed=seed, **common)
        self.memory_per_class, self.reference = memory_per_class, reference
        self.room = "memory_per_class", memory_per_class
        self.rings: dict[tuple[int, int], deque[Sample]] = {}

    def learn(self, closure: Closure, parameters: Sequence[nn.Parameter]) -> Any:
        self.check_optimizer(parameters)
        loss = super().learn(closure, parameters)
        if past := [sample for (t, _), ring in self.rings.items() if t < self.current_task for sample in ring]:
            learning = [p for p in parameters if p.requires_grad]
            project(learning, self._reference_gradient(self.draw(past, self.reference), learning))
        return loss

    def insert(self, sample: Sample) -> None:
        """A full ring lets its oldest sample go."""
        if sample.y.ndim or sample.y.is_floating_point() or sample.y.is_complex():
            raise TypeError(
                "a-gem keeps samples class by class: a label must be one whole number; "
                f"got {list(sample.y.shape)} of {sample.y.dtype}."
            )
        self.rings.setdefault((sample.task, int(sample.y)), deque(maxlen=self.memory_per_class)).append(sample)

    def samples_kept(self) -> list[Sample]:
        return [sample for ring in self.rings.values() for sample in ring]

    def restore(self, samples: list[Sample]) -> None:
        self.rings = {}
        for sample in samples:
            self.insert(sample)

    def bytes(self) -> dict[str, int]:
        """A further task adds the rings of its classes."""
        memory = super().bytes()["memory"]
        return {"memory": memory, "per_task": memory // max(1, len(self.tasks))}

    def _reference_gradient(self, samples: Sequence[Sample], parameters: Sequence[nn.Parameter]) -> list[Tensor | None]:
        x, y, tasks = self.batch_of(samples)
        with untouched_randomness():  # what dropout draws for the task is what it would be without a memory
            torch.manual_seed(method_seed(self.seed, self.steps, "reference"))
            return list(torch.autograd.grad(mixed_loss(self, (x, y), tasks), parameters, allow_unused=True))


@torch.no_grad()
def project(parameters: Sequence[nn.Parameter], g_ref: Sequence[Tensor | None]) -> None:
    """``g ← g − (gᵀ g_ref / g_refᵀ g_ref) g_ref`` on the gradients of ``parameters``, if ``gᵀ g_ref < 0``."""
    along = [(p, r) for p, r in zip(parameters, g_ref, strict=True) if r is not None]
    dot = sum(_dot(p.grad, r) for p, r in along if p.grad is not None)
    square = sum(_dot(r, r) for _, r in along)
    if dot >= 0 or square == 0:
        return
    scale = dot / square
    for p, r in along:
        p.grad = -scale * r if p.grad is None else p.grad - scale * r


def _dot(a: Tensor, b: Tensor) -> float:
    """``aᵀb`` in double precision: the square of a small gradient is nothing in single."""
    return float(a.double().flatten() @ b.double().flatten())

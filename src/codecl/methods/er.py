"""ER: experience replay with a reservoir (Chaudhry et al., "On tiny episodic memories in continual learning", 2019).

Every step, from the first task on, is taken on the current batch ``B`` and some samples ``B_M`` of the memory at once,

    L = 1/(|B| + |B_M|) Σ_{(x, y) ∈ B ∪ B_M} ℓ(f(x), y),         each sample with the head of its task

after which the samples of ``B`` are offered to the memory, a reservoir of fixed size ``M``: with ``s`` samples seen
before, a new one goes to slot ``s`` while ``s < M``, and then to slot ``j``, uniform in ``{0, …, s}``, if ``j < M``.
All samples seen are then kept with the same probability ``M/s``. The published code draws ``j`` from ``{0, …, s − 1}``,
which prefers later samples a little (``reservoir="published"``); it learns in one epoch, and how samples are counted
over several is a choice of ours (see ``replay``).
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

import torch
from torch import nn

from codecl.method.gradients import add_gradients
from codecl.method.guard import Closure
from codecl.method.hooks import Presets
from codecl.method.mixed_tasks import mixed_loss
from codecl.method.settings import check
from codecl.methods.replay import Replay, Sample, pair

Rule = Literal["standard", "published"]


class ER(Replay):
    """Learns from a few stored samples of all tasks beside every batch.

    The step is on the method's own loss, ``forward=`` and ``loss=``, of the batch that ``watch`` handed out: a closure
    is called only while the memory is empty, and gradients that are there already are replaced.

    ===========  =====================================================================================================
    memory       M: how many samples are kept. The published code has 13 for each class; tables of later papers are said
                 to use 2000 on CIFAR-100, 500 on miniImageNet, 3000 on 5-Datasets and 1000 on
                 Permuted MNIST, which is not verified
    replay       how many of them join a batch, or all if there are fewer
    reservoir    the ``standard`` rule for the slot of a new sample, or the ``published`` one
    every_epoch  whether a sample is offered to the memory in every epoch, and not in the first alone
    seed         of what is drawn and where samples go
    ===========  =====================================================================================================
    """

    name: ClassVar[str] = "er"
    presets: ClassVar[Presets] = {"paper": {}, "official": {"reservoir": "published"}}
    plain_first_task: ClassVar[bool] = False

    def __init__(
        self,
        model: nn.Module,
        *,
        memory: int = 2000,
        replay: int = 10,
        reservoir: Rule = "standard",
        every_epoch: bool = False,
        seed: int = 0,
        **common: Any,
    ) -> None:
        check(memory > 0, "memory", memory, "a positive number of samples")
        check(replay > 0, "replay", replay, "a positive number of samples")
        check(reservoir in ("standard", "published"), "reservoir", reservoir, "'standard' or 'published'")
        super().__init__(model, seed=seed, **common)
        self.replay, self.every_epoch = replay, every_epoch
        self.room = "memory", memory
        self.reservoir = Reservoir(memory, reservoir)
        self.slots: list[Sample] = []

    def learn(self, closure: Closure, parameters: Sequence[nn.Parameter]) -> Any:
        self.check_optimizer(parameters)
        if (new := len(self.new_batches)) > 1:
            warnings.warn(
                f"er computes the gradients of a step from one batch, and {new} came since the last step: "
                "the last of them counts. Step after every batch; for larger ones, let the loader make them.",
                stacklevel=3,
            )
        if not self.slots:
            return super().learn(closure, parameters)
        x, y = self.replicas.joined(pair(self.name, self.batch))
        old_x, old_y, old_tasks = self.batch_of(self.draw(self.slots, self.replay))
        tasks = torch.cat([torch.full((len(y),), self.current_task), old_tasks])
        for parameter in parameters:
            parameter.grad = None
        both = torch.cat([x, old_x.to(x.device)]), torch.cat([y, old_y.to(y.device)])
        (x, y, tasks), weight = self.replicas.share((*both, tasks))
        loss = mixed_loss(self, (x, y), tasks) * weight
        add_gradients(loss, parameters)
        self.replicas.average(parameters)
        return loss.detach()

    def after_step(self) -> None:
        self.reservoir.generator = self.random("slots")
        super().after_step()

    def insert(self, sample: Sample) -> None:
        slot = self.reservoir.place()
        if slot is not None:
            self.slots[slot : slot + 1] = [sample]

    def samples_kept(self) -> list[Sample]:
        return self.slots

    def restore(self, samples: list[Sample]) -> None:
        self.slots = samples

    def memory_state(self) -> dict[str, Any]:
        return {"replay": super().memory_state()["replay"] | {"seen": self.reservoir.seen}}

    def load_memory(self, state: Mapping[str, Any]) -> None:
        super().load_memory(state)
        self.reservoir.seen = int(state["replay"]["seen"])


class Reservoir:
    """Which of ``size`` slots each of a stream of samples goes to."""

    def __init__(self, size: int, rule: Rule = "standard") -> None:
        self.size, self.rule, self.seen = size, rule, 0
        self.generator: torch.Generator | None = None

    def place(self) -> int | None:
        """The slot of the next sample, or None."""
        slot = self.seen
        if slot >= self.size:
            end = self.seen + 1 if self.rule == "standard" else self.seen
            slot = int(torch.randint(end, (), generator=self.generator))
        self.seen += 1
        return slot if slot < self.size else None

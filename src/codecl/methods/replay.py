"""Keeping samples of past tasks, and learning from them again: what A-GEM and ER share.

Samples are kept as the stream stores them, uint8 images where it has such (``batch.raw``), and made into inputs as they
are drawn (``method.decode``, which the trainer sets). In a loop of one's own they are kept as batches bring them: to
keep small ones, let batches be uint8 and normalise in ``forward=``. They stay on the CPU.

A task's samples are taken in during its first epoch, the first pass over ``watch``. The published codes see every
sample once; with more epochs the task being learned would be counted over and over. What is drawn comes from a stream
of its own for each step, so that it changes nothing that the network draws, and needs no state.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from codecl.method.method import Method
from codecl.method.mixed_tasks import check_heads
from codecl.method.state import ForeignState
from codecl.randomness import method_seed


class Sample(NamedTuple):
    """An input as it is stored, its label, and the position of its task."""

    x: Tensor
    y: Tensor
    task: int


class Replay(Method):
    """A method that keeps samples: ``insert`` takes one in, ``samples_kept`` and ``restore`` are its memory as a list.

    Heads of earlier tasks go on training, each with the samples of its own task. One optimizer must train everything.
    """

    freezes_heads: ClassVar[bool] = False
    every_epoch: bool = False
    """Whether samples are taken in again in later epochs."""
    room: tuple[str, int]
    """The setting that says how many samples are kept, and its value: a state of another size is refused."""

    def __init__(self, model: nn.Module, *, seed: int = 0, **common: Any) -> None:
        check_heads(self.name, common.get("heads", ()))
        super().__init__(model, **common)
        self.seed = seed
        self._raw: set[int] = set()
        """The tasks, by position, whose samples are kept as their stream stores them."""
        self._passes, self.steps = 0, 0
        """Passes over batches in this task; steps since the beginning."""
        self.new_batches: list[Any] = []
        """The batches since the last step."""

    # What a method overrides.

    def insert(self, sample: Sample) -> None:
        """Take in a sample, or not."""
        raise NotImplementedError

    def samples_kept(self) -> list[Sample]:
        """All samples, in an order that ``restore`` understands."""
        raise NotImplementedError

    def restore(self, samples: list[Sample]) -> None:
        """The inverse of ``samples_kept``."""
        raise NotImplementedError

    # What a method uses.

    def draw(self, samples: Sequence[Sample], count: int) -> list[Sample]:
        """``count`` of ``samples`` without repetition, or all if there are no more."""
        if len(samples) <= count:
            return list(samples)
        return [samples[i] for i in torch.randperm(len(samples), generator=self.random("draw"))[:count].tolist()]

    def random(self, use: str) -> torch.Generator:
        """Random numbers for one use in this step."""
        return torch.Generator().manual_seed(method_seed(self.seed, self.steps, use))

    def batch_of(self, samples: Sequence[Sample]) -> tuple[Tensor, Tensor, Tensor]:
        """Inputs as the model takes them, labels, and positions of tasks."""
        inputs, labels, tasks = [], [], []
        for t, of_task in _by_task(samples):
            x = torch.stack([sample.x for sample in of_task])
            inputs.append(self._decoded(t, x) if t in self._raw else x)
            labels += [sample.y for sample in of_task]
            tasks += [t] * len(of_task)
        return torch.cat(inputs), torch.stack(labels), torch.tensor(tasks)

    def check_optimizer(self, parameters: Sequence[nn.Parameter]) -> None:
        """Refuse an optimizer that trains a part of the model."""
        given = set(parameters)
        if missing := [name for name, p in self.model.named_parameters() if p.requires_grad and p not in given]:
            more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
            raise ValueError(
                f"{self.name} makes one step of all that trains, and this optimizer lacks {missing[:3]}{more}. Give "
                "all parameters to one optimizer, or turn requires_grad off where nothing is to be learned."
            )

    # Memory.

    def watch(self, loader: Iterable[Any], epoch: int = 0, epochs: int = 1) -> Iterator[Any]:
        self._passes = max(self._passes, epoch) + 1
        self.new_batches = []
        for batch in super().watch(loader, epoch, epochs):
            self.new_batches.append(batch)
            yield batch

    def after_step(self) -> None:
        """Offer the samples of all batches since the last step: of several, if gradients are accumulated."""
        if self._passes <= 1 or self.every_epoch:
            for batch in self.new_batches or [self.batch]:
                for sample in self._samples_of(self._of_all(batch)):
                    self.insert(sample)
        self.new_batches = []
        self.steps += 1

    def remember(self, loader: Iterable[Any] | None) -> None:
        self._passes = 0

    def memory_state(self) -> dict[str, Any]:
        """The samples and what counts them: all of it goes on whichever epoch is the best."""
        kept = {"samples": pack(self.samples_kept()), "raw": sorted(self._raw), "room": list(self.room)}
        return {"replay": kept | {"passes": self._passes, "steps": self.steps}}

    def load_memory(self, state: Mapping[str, Any]) -> None:
        state = state["replay"]
        if tuple(state["room"]) != self.room:
            theirs, ours = (f"{setting} = {value}" for setting, value in (state["room"], self.room))
            raise ForeignState(f"the samples in the state were kept with {theirs}; here it is {ours}.")
        self.restore(unpack(state["samples"]))
        self._raw, self._passes, self.steps = set(state["raw"]), int(state["passes"]), int(state["steps"])

    def _decoded(self, t: int, x: Tensor) -> Tensor:
        if self.decode is None:
            raise RuntimeError(
                f"{self.name} holds samples of task {self.tasks[t]!r} as the stream of a trainer stores them, and not "
                "as the model takes them: go on with a Trainer, or set method.decode, a function of the position of a "
                "task and its stored inputs."
            )
        return self.decode(t, x)

    def _of_all(self, batch: Any) -> Any:
        """The batch with those of all other processes, where each has a share: all keep the same samples."""
        return (
            self.replicas.joined(pair(self.name, batch))
            if self.replicas.several and not self.replicas.same_batches
            else batch
        )

    def _samples_of(self, batch: Any) -> Iterator[Sample]:
        x, y = pair(self.name, batch)
        t = self.current_task
        if self.decode is not None and (raw := getattr(batch, "raw", None)) is not None:
            x = raw
            self._raw.add(t)
        if known := next((sample for sample in self.samples_kept() if sample.task == t), None):
            for what, new, old in (("inputs", x[0], known.x), ("labels", y[0], known.y)):
                if (new.shape, new.dtype) != (old.shape, old.dtype):
                    raise ValueError(
                        f"{self.name} keeps the samples of a task together, and its {what} must be alike: "
                        f"{list(old.shape)} {old.dtype} before, {list(new.shape)} {new.dtype} now. "
                        "Bring them to one shape, texts to one length."
                    )
        for i in range(len(y)):
            yield Sample(x[i].detach().to("cpu", copy=True), y[i].detach().to("cpu", copy=True), t)


def pair(method: str, batch: Any) -> tuple[Tensor, Tensor]:
    """The inputs and labels of ``batch``."""
    values = list(batch) if isinstance(batch, (tuple, list)) else []
    if len(values) == 2 and all(isinstance(v, Tensor) and v.ndim for v in values) and len(values[0]) == len(values[1]):
        return values[0], values[1]
    got = type(batch).__name__ + (f" of {len(values)} elements" if values else "")
    raise TypeError(
        f"{method} keeps single samples: a batch must be a tensor of inputs and one of as many labels; got {got}."
    )


def pack(samples: Sequence[Sample]) -> dict[str, list[Any]]:
    """Samples as one tensor for each task; inputs of different tasks may have different shapes."""
    places = {id(sample): i for i, sample in enumerate(samples)}
    groups = list(_by_task(samples))
    return {
        "task": [t for t, _ in groups],
        "x": [torch.stack([sample.x for sample in of]) for _, of in groups],
        "y": [torch.stack([sample.y for sample in of]) for _, of in groups],
        "place": [torch.tensor([places[id(sample)] for sample in of]) for _, of in groups],
    }


def unpack(packed: dict[str, list[Any]]) -> list[Sample]:
    """The inverse of ``pack``."""
    found: dict[int, Sample] = {}
    for t, xs, ys, places in zip(packed["task"], packed["x"], packed["y"], packed["place"], strict=True):
        for x, y, place in zip(xs, ys, places.tolist(), strict=True):
            found[place] = Sample(x.to("cpu", copy=True), y.to("cpu", copy=True), t)
    return [found[place] for place in sorted(found)]


def _by_task(samples: Sequence[Sample]) -> Iterator[tuple[int, list[Sample]]]:
    for t, of_task in groupby(sorted(samples, key=lambda sample: sample.task), lambda sample: sample.task):
        yield t, list(of_task)

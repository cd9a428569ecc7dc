"""The loop in which every method learns a stream of tasks.

For each task: begin it, train epoch by epoch, restore the epoch that counts, end the task, and measure a row of the
accuracy matrix. A joint method learns all tasks as if they were one. Random numbers are derived from the seed, the task
and the epoch, so that a run that was stopped after any epoch goes on to the same numbers.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from codecl.method.learning import cross_entropy_with_second
from codecl.methods import Method
from codecl.randomness import generator, seeded
from codecl.training.plan import Plan
from codecl.training.schedule import Diverged, Rule
from codecl.training.stream import Batch, BatchLoader, JointPart, Part, Stream

Tree = dict[str, Any]
Observer = Callable[[Tree], None]


class Store(Protocol):
    """Where a run keeps what it needs to go on."""

    def save_task(self, task: int, tree: Tree) -> None: ...
    def save_epoch(self, task: int, epoch: int, tree: Tree) -> None: ...
    def latest(self) -> tuple[Tree, Tree | None] | None: ...


@dataclass
class Progress:
    """How far a run has come: its accuracy matrix and where the time went."""

    accuracy: list[list[float | None]] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=lambda: {"train": 0.0, "between_tasks": 0.0, "evaluate": 0.0})
    epochs: list[int] = field(default_factory=list)


class Trainer:
    """Trains a method on the tasks of a stream.

    Args:
        method: The method, attached to its model. The model is on ``plan.device`` already.
        stream: The tasks, in their order.
        plan: Epochs, batches, learning rate, seed.
        store: Where states are kept so that ``run`` can be interrupted and go on; None keeps none.
        observers: Called with every event, a dict: ``epoch``, ``task``, ``resume`` and ``notice``.
    """

    def __init__(
        self,
        method: Method,
        stream: Stream,
        plan: Plan,
        store: Store | None = None,
        observers: tuple[Observer, ...] = (),
    ) -> None:
        self.method, self.model, self.stream, self.plan = method, method.model, stream, plan
        self.store, self.observers = store, observers
        self.progress = Progress()
        method.decode = stream.decode

    def run(self) -> Progress:
        """Learn all tasks, or those that are left if the store has a state of an earlier run."""
        every = range(len(self.stream))
        task, state = self._resume()
        if self.method.joint:
            seen = f"{self.method.name} sees the data of all tasks at once"
            self._tell("notice", text=f"{seen}: an upper bound, not continual learning.")
        for tasks in [every] if self.method.joint else [every[t : t + 1] for t in every[task:]]:
            if state is None:
                self._begin(tasks)
            self._train(tasks, state)
            state = None
            self._end(tasks)
        return self.progress

    def _resume(self) -> tuple[int, Tree | None]:
        """The task to go on with, and the state of its last epoch; an empty one if only its beginning was saved."""
        found = self.store.latest() if self.store is not None else None
        if found is None:
            return 0, None
        task, epoch = found
        self.model.load_state_dict(task["model"])
        self.method.load_state_dict(task["method"])
        self.progress = Progress(task["accuracy"], dict((epoch or task)["seconds"]), task["epochs"])
        at = {"task": task["task"], "epoch": epoch["epoch"] if epoch else 0, "epochs": list(task["epochs"])}
        self._tell("resume", **at, **self._together)
        return task["task"], epoch or {}

    def _begin(self, tasks: Sequence[int]) -> None:
        """Begin the tasks that are learned together, mostly one, and save the state."""
        for t in tasks:
            with self._timed("between_tasks"), seeded(self.plan.seed, "init", t):
                self.method.begin_task(t, self._sample(t, "before"))
        if self.store is not None:
            tree = {"task": tasks[-1], "model": self.model.state_dict(), "method": self.method.state_dict()}
            self.store.save_task(tasks[-1], tree | self._progress_state())

    def _train(self, tasks: Sequence[int], state: Tree | None) -> None:
        """Train until the rule says stop. Tasks that are learned together go by the number of the last."""
        t, parts = tasks[-1], [self.stream.tasks[t].train for t in tasks]
        part: Part = JointPart(parts) if len(parts) > 1 else parts[0]
        rule, optimizer = self.plan.new_rule(), self.plan.new_optimizer(self.model.parameters())
        self.method.guard(optimizer)
        best, epoch, stop = self._load_epoch(state, optimizer, rule) if state else (self._snapshot(), 0, False)
        while epoch < self.plan.epochs and not stop:
            begin = time.perf_counter()
            with self._timed("train"):
                loss = self._epoch(t, part, epoch, optimizer, rule)
            with self._timed("evaluate"):
                validation_loss, accuracy = self._validate(tasks)
            verdict = rule.update(validation_loss, accuracy)
            best = self._snapshot() if verdict.improved else best
            epoch, stop = epoch + 1, verdict.stop
            self._tell(
                "epoch", task=t, epoch=epoch, of=self.plan.epochs, loss=loss, validation_loss=validation_loss,
                validation_accuracy=accuracy, lr=optimizer.param_groups[0]["lr"],
                seconds=time.perf_counter() - begin, **self._together,
            )  # fmt: skip
            if self.store is not None:
                tree = {"epoch": epoch, "stop": stop, "best": best, "rule": rule.state_dict()} | self._snapshot()
                tree |= {"optimizer": optimizer.state_dict(), "kept": self.method.kept_state()}
                self.store.save_epoch(t, epoch, tree | self._progress_state())
        self._restore(best)
        self.progress.epochs.append(epoch)

    def _load_epoch(self, state: Tree, optimizer: torch.optim.Optimizer, rule: Rule) -> tuple[Tree, int, bool]:
        """Go back to an epoch that was saved: the best so far, the epochs done, and whether the task is over."""
        self._restore(state)
        self.method.load_kept(state.get("kept"))
        optimizer.load_state_dict(state["optimizer"])
        rule.load_state_dict(state["rule"])
        return state["best"], state["epoch"], state["stop"]

    def _epoch(self, t: int, part: Part, epoch: int, optimizer: torch.optim.Optimizer, rule: Rule) -> float:
        """One pass over the training part; the mean loss."""
        order = torch.randperm(len(part), generator=generator(self.plan.seed, "order", t, epoch))
        total = torch.zeros((), dtype=torch.float64)
        self.model.train()
        with seeded(self.plan.seed, "dropout", t, epoch):
            loader = BatchLoader(part, self.plan.batch_size, self.plan.device, order)
            for i, batch in enumerate(self.method.watch(loader, epoch, self.plan.epochs)):
                rate = rule.rate(epoch * len(loader) + i, self.plan.epochs * len(loader))
                for group in optimizer.param_groups:
                    group["lr"] = rate

                def closure(batch: Batch = batch) -> Tensor:
                    optimizer.zero_grad()
                    loss = self.method.objective(batch)
                    loss.backward()  # type: ignore[no-untyped-call]
                    return loss

                loss = optimizer.step(closure)  # type: ignore[arg-type]
                total += loss.detach().double().cpu() * len(batch[1])  # type: ignore[attr-defined]
        mean = float(total) / len(part)
        if not math.isfinite(mean):
            raise Diverged(
                f"the training loss of task {t} became {mean} in epoch {epoch + 1}, at learning rate "
                f"{optimizer.param_groups[0]['lr']:g}. What was computed before is kept. "
                "Run again with a lower one (--set lr=…) and another --out."
            )
        return mean

    def _end(self, tasks: Sequence[int]) -> None:
        """End the task and test all tasks so far."""
        t = tasks[-1]
        with self._timed("between_tasks"):
            self.method.end_task(self._sample(t, "after"))
        row: list[float | None] = [None] * len(self.stream)
        with self._timed("evaluate"):
            for seen in range(t + 1):
                with self.method.task(seen):
                    row[seen] = self.evaluate(self.stream.tasks[seen].test)[1]
        self.progress.accuracy.append(row)
        name = "all tasks" if self.method.joint else self.stream.tasks[t].name
        remembered = {"bytes": self.method.bytes(), "layers": self.method.contents()}
        self._tell("task", task=t, name=name, accuracy=row, **remembered, **self._together)

    def evaluate(self, part: Part) -> tuple[float, float]:
        """Mean loss and accuracy in %.

        Batches have a fixed size and order, because both matter to norms that keep no running statistics.
        """
        loss, right = self._measure(part)
        return loss / len(part), 100 * right / len(part)

    @torch.no_grad()
    def _measure(self, part: Part) -> tuple[float, int]:
        """The sum of all losses, by the method's own ``forward`` and ``loss``, and the inputs classified right."""
        self.model.eval()
        loss, right = 0.0, 0
        with seeded(self.plan.seed, "evaluate"):
            for batch in BatchLoader(part, self.plan.evaluation_batch, self.plan.device):
                output = self.method.forward(self.model, batch)
                loss += self._summed_loss(output, batch)
                logits = output if isinstance(output, Tensor) else output.logits
                right += int((logits.argmax(1) == batch[1]).sum())
        return loss, right

    def _summed_loss(self, output: Any, batch: Batch) -> float:
        """The mean loss of a batch, times its inputs; cross entropies are summed directly, to the last bit."""
        if self.method.loss is cross_entropy_with_second and isinstance(output, Tensor):
            return float(F.cross_entropy(output, batch[1], reduction="sum"))
        return float(self.method.loss(output, batch)) * len(batch[1])

    def _validate(self, tasks: Sequence[int]) -> tuple[float, float]:
        """What the rule sees: validation loss, with the method's penalty if it asks for that, and accuracy in %."""
        total, right, count = 0.0, 0, 0
        for t in tasks:
            part = self.stream.tasks[t].validation
            with self.method.task(t):
                loss, hits = self._measure(part)
            total, right, count = total + loss, right + hits, count + len(part)
        with torch.no_grad():
            penalty = self.method.penalty() if self.method.penalty_in_validation else None
        return total / count + (0.0 if penalty is None else float(penalty)), 100 * right / count

    def _sample(self, t: int, when: Literal["before", "after"]) -> Iterable[Batch]:
        """The training inputs that a method sees around a task: one batch of as many as it asks for, or all of them."""
        part = self.stream.tasks[t].train
        order = torch.randperm(len(part), generator=generator(self.plan.seed, "sample", t, when))
        samples = self.method.samples_before if when == "before" else self.method.samples
        size = self.plan.batch_size if samples is None else samples
        return BatchLoader(part, size, self.plan.device, order[:samples])

    def _snapshot(self) -> Tree:
        """What training changes: the model and what the task learns beside it."""
        return {
            "model": {name: value.detach().clone() for name, value in self.model.state_dict().items()},
            "learning": self.method.learning_state(),
        }

    def _restore(self, snapshot: Tree) -> None:
        """The inverse of ``_snapshot``."""
        self.model.load_state_dict(snapshot["model"])
        self.method.load_learning_state(snapshot["learning"])

    @property
    def _together(self) -> Tree:
        """What events of a joint method add: the number of tasks that are learned at once."""
        return {"together": len(self.stream)} if self.method.joint else {}

    def _progress_state(self) -> Tree:
        return {
            "accuracy": [list(row) for row in self.progress.accuracy],
            "seconds": dict(self.progress.seconds),
            "epochs": list(self.progress.epochs),
        }

    @contextmanager
    def _timed(self, what: str) -> Iterator[None]:
        begin = time.perf_counter()
        yield
        self.progress.seconds[what] += time.perf_counter() - begin

    def _tell(self, event: str, **fields: Any) -> None:
        for observer in self.observers:
            observer({"event": event, **fields})

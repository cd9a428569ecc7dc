"""The loop in which every method learns a stream of tasks.

For each task: begin it, train epoch by epoch, restore the epoch that counts, end the task, and measure a row of the
accuracy matrix. A joint method learns all tasks as if they were one. Random numbers are derived from the seed, the task
and the epoch, so that a run that was stopped after any epoch goes on to the same numbers.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict
from types import MappingProxyType
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.optim import Optimizer

from codecl.method.promise import Promise
from codecl.method.task_evidence import SAMPLES as EVIDENCE_SAMPLES
from codecl.methods import Method
from codecl.randomness import derive, generator, seeded
from codecl.training.augment import Augmentation
from codecl.training.evaluation import Measure, Sums, measure
from codecl.training.fit import check_fit
from codecl.training.loader import BatchLoader
from codecl.training.plan import Plan
from codecl.training.precision import autocast_forward, new_scaler
from codecl.training.progress import Observer, Progress, Row, Store, Tree, loading
from codecl.training.schedule import Diverged, Rule
from codecl.training.stream import Batch, JointPart, Part, Stream

PROMISED = 256
"""On how many validation inputs of earlier tasks it is seen how far their outputs move."""


class Trainer:
    """Trains a method on the tasks of a stream.

    Args:
        method: The method, attached to its model. The model is on ``plan.device`` already.
        stream: The tasks, in their order.
        plan: Epochs, batches, learning rate, seed.
        store: Where states are kept so that ``run`` can be interrupted and go on; None keeps none.
        observers: Called with every event, a dict: ``epoch``, ``task``, ``resume`` and ``notice``.
        measures: What is measured beside the accuracy, by name: functions of outputs and labels that give a number for
            each input. Their means over test parts are ``progress.measures``, and in ``task`` events.
    """

    def __init__(
        self,
        method: Method,
        stream: Stream,
        plan: Plan,
        store: Store | None = None,
        observers: tuple[Observer, ...] = (),
        measures: Mapping[str, Measure] | None = None,
    ) -> None:
        _check_given(method, stream, plan)
        self.method, self.model, self.stream, self.plan = method, method.model, stream, plan
        self.store, self.observers, self.measures = store, observers, dict(measures or {})
        self.progress = Progress(measures={name: [] for name in self.measures})
        self._net = self.model
        check_fit(method, stream, plan)
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
            promises = self._promises(tasks)
            self._train(tasks, state)
            state = None
            self._end(tasks, promises)
        return self.progress

    def _resume(self) -> tuple[int, Tree | None]:
        """The task to go on with, and the state of its last epoch; an empty one if only its beginning was saved."""
        found = self.store.latest() if self.store is not None else None
        if found is None:
            return 0, None
        task, epoch = found
        with loading(epoch=False):
            self.model.load_state_dict(task["model"])
            self.method.load_state_dict(task["method"])
            rows, tasks = (0 if self.method.joint else task["task"]), len(self.stream)
            matrices = [task["accuracy"], task["moved"], *task["measures"].values()]
            if any([len(row) for row in matrix] != [tasks] * rows for matrix in matrices) or rows >= tasks:
                raise ValueError(f"task {task['task'] + 1} of {tasks} begins after {len(task['accuracy'])} others")
            if len(task["epochs"]) != rows or task["measures"].keys() != self.measures.keys():
                raise ValueError(f"epochs of {len(task['epochs'])} tasks, and the measures {[*task['measures']]}")
        seconds = dict((epoch or task)["seconds"])
        self.progress = Progress(task["accuracy"], seconds, task["epochs"], task["measures"], task["moved"])
        at = {"task": task["task"], "epoch": epoch["epoch"] if epoch else 0, "epochs": list(task["epochs"])}
        self._tell("resume", **at)
        return task["task"], epoch or {}

    def _begin(self, tasks: Sequence[int]) -> None:
        """Begin the tasks that are learned together, mostly one, and save the state."""
        for t in tasks:
            with self._timed("between_tasks"), seeded(self.plan.seed, "init", t):
                self.method.begin_task(t, self._sample(t, "before"))
        if self.store is not None:
            tree = {"task": tasks[-1], "model": self.model.state_dict(), "method": self.method.state_dict()}
            self.store.save_task(tasks[-1], tree | asdict(self.progress))

    def _promises(self, tasks: Sequence[int]) -> dict[int, Promise]:
        """What earlier tasks put out as this one begins, where they are tested after it."""
        t = tasks[0]
        earlier = range(t if self.plan.tests_all(t, len(self.stream)) else 0)
        if not earlier:
            return {}
        with self._timed("evaluate"), seeded(self.plan.seed, "evaluate"), self._mixed_precision():
            return {e: Promise(self.method, e, self._validation(e), layers=False) for e in earlier}

    def _validation(self, t: int) -> list[Batch]:
        """Some validation inputs of a task."""
        part = self.stream.tasks[t].validation
        some = torch.arange(min(len(part), PROMISED))
        return list(self._loader(part, self.plan.evaluation_batch, some))

    def _train(self, tasks: Sequence[int], state: Tree | None) -> None:
        """Train until the rule says stop. Tasks that are learned together go by the number of the last."""
        t, parts = tasks[-1], [self.stream.tasks[t].train for t in tasks]
        part: Part = JointPart(parts) if len(parts) > 1 else parts[0]
        rule, optimizer = self.plan.new_rule(), self.plan.new_optimizer(self.model.parameters())
        scaler = new_scaler(self.plan.precision, self.plan.device)
        self.method.guard(optimizer)
        best, epoch, stop = self._load_epoch(state, optimizer, rule, scaler) if state else (self._snapshot(), 0, False)
        self._net = self.method.replicate()
        while epoch < self.plan.epochs and not stop:
            begin = time.perf_counter()
            with self._timed("train"):
                loss = self._epoch(t, part, epoch, optimizer, rule, scaler)
            with self._timed("evaluate"):
                validation_loss, accuracy = self._validate(tasks)
            verdict = rule.update(validation_loss, accuracy)
            best = self._snapshot() if verdict.improved else best
            epoch, stop = epoch + 1, verdict.stop
            self._tell(
                "epoch", task=t, epoch=epoch, of=self.plan.epochs, loss=loss, validation_loss=validation_loss,
                validation_accuracy=accuracy, lr=optimizer.param_groups[0]["lr"], seconds=time.perf_counter() - begin,
            )  # fmt: skip
            if self.store is not None:
                tree = {"epoch": epoch, "stop": stop, "best": best, "rule": rule.state_dict()} | self._snapshot()
                tree |= {"optimizer": optimizer.state_dict(), "method": self.method.state_dict(within_task=True)}
                tree |= {"scaler": scaler.state_dict()} if scaler is not None else {}
                self.store.save_epoch(t, epoch, tree | asdict(self.progress))
        self._restore(best)
        self.progress.epochs.append(epoch)

    def _load_epoch(
        self, state: Tree, optimizer: Optimizer, rule: Rule, scaler: GradScaler | None
    ) -> tuple[Tree, int, bool]:
        """Go back to an epoch that was saved: the best so far, the epochs done, and whether the task is over."""
        with loading(epoch=True):
            self._restore(state["best"])
            self._restore(state)
            optimizer.load_state_dict(state["optimizer"])
            for parameter, buffers in optimizer.state.items():
                for buffer in buffers.values():
                    if isinstance(buffer, Tensor) and buffer.dim() and buffer.shape != parameter.shape:
                        raise ValueError(f"a state of the optimizer has the shape {list(buffer.shape)}")
            rule.load_state_dict(state["rule"])
            if not all(value is None or isinstance(value, int | float) for value in state["rule"].values()):
                raise ValueError(f"the state of the rule is {state['rule']!r:.80}")
            if scaler is not None:
                scaler.load_state_dict(state["scaler"])
            return state["best"], int(state["epoch"]), bool(state["stop"])

    def _epoch(
        self, t: int, part: Part, epoch: int, optimizer: Optimizer, rule: Rule, scaler: GradScaler | None
    ) -> float:
        """One pass over the training part; the mean loss."""
        seed = self.plan.seed
        order = torch.randperm(len(part), generator=generator(seed, "order", t, epoch))
        augment = self.plan.augmentation(generator(seed, "augment", t, epoch))
        total = torch.zeros((), dtype=torch.float64)
        self.model.train()
        own = [rank] if (rank := self.method.replicas.rank) else []  # each process drops other units
        with seeded(seed, "dropout", t, epoch, *own), self._mixed_precision():
            loader = self._loader(part, self.plan.batch_size, order, derive(seed, "workers", t, epoch), augment)
            for i, batch in enumerate(self.method.watch(loader, epoch, self.plan.epochs)):
                rate = rule.rate(epoch * len(loader) + i, self.plan.epochs * len(loader))
                for group in optimizer.param_groups:
                    group["lr"] = rate
                loss = self._step(batch, optimizer, scaler)
                total += loss.detach().double().cpu() * len(batch[1])
        mean = float(self.method.replicas.mean_of(total)) / len(part)
        if not math.isfinite(mean):
            raise Diverged(
                f"the training loss of task {t} became {mean} in epoch {epoch + 1}, at learning rate "
                f"{optimizer.param_groups[0]['lr']:g}. What was computed before is kept. "
                "Run again with a lower one (--set lr=…) and another --out."
            )
        return mean

    def _step(self, batch: Batch, optimizer: Optimizer, scaler: GradScaler | None) -> Tensor:
        """One step; its loss."""

        def closure() -> Tensor:
            optimizer.zero_grad()
            if self.method.replicas.several:
                share, weight = self.method.replicas.share(batch)
                loss = self.method.objective(share, self._net) * weight
            else:
                loss = self.method.objective(batch)
            (loss if scaler is None else scaler.scale(loss)).backward()  # type: ignore[no-untyped-call]
            return loss

        if scaler is None:
            loss: Tensor = optimizer.step(closure)  # type: ignore[arg-type, assignment]
            return loss
        loss = closure()
        scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
        return loss

    def _end(self, tasks: Sequence[int], promises: Mapping[int, Promise]) -> None:
        """End the task, test all tasks so far, and see how far the earlier ones moved."""
        t = tasks[-1]
        with self._timed("between_tasks"):
            self.method.end_task(self._sample(t, "after"))
        rows: dict[str, Row] = {name: [None] * len(self.stream) for name in ("accuracy", *self.measures)}
        moved: Row = [None] * len(self.stream)
        with self._timed("evaluate"):
            for seen in tasks if not self.plan.tests_all(t, len(self.stream)) else range(t + 1):
                with self.method.task(seen):
                    found = self._measure(self.stream.tasks[seen].test, self.measures)
                rows["accuracy"][seen] = 100 * found.right / found.count
                for name in self.measures:
                    rows[name][seen] = found.own[name] / found.count
            with seeded(self.plan.seed, "evaluate"), self._mixed_precision():
                for earlier, promise in promises.items():
                    how_far = promise.check().moved
                    moved[earlier] = how_far if math.isfinite(how_far) else None
        self.progress.accuracy.append(rows["accuracy"])
        self.progress.moved.append(moved)
        for name in self.measures:
            self.progress.measures[name].append(rows[name])
        own: Tree = {"measures": {name: rows[name] for name in self.measures}} if self.measures else {}
        title = "all tasks" if self.method.joint else self.stream.tasks[t].name
        remembered = {"bytes": self.method.bytes(), "layers": self.method.memory_summary()}
        own |= {"moved": moved} if promises else {}
        self._tell("task", task=t, name=title, accuracy=rows["accuracy"], **remembered, **own)

    def evaluate(self, part: Part) -> tuple[float, float]:
        """Mean loss and accuracy in %.

        Batches have a fixed size and order, because both matter to norms that keep no running statistics.
        """
        found = self._measure(part)
        return found.loss / found.count, 100 * found.right / found.count

    def _measure(self, part: Part, measures: Mapping[str, Measure] = MappingProxyType({})) -> Sums:
        """Loss, hits and ``measures`` on a part."""
        self.model.eval()
        with seeded(self.plan.seed, "evaluate"), self._mixed_precision():
            return measure(self.method, self._loader(part, self.plan.evaluation_batch), measures)

    def _validate(self, tasks: Sequence[int]) -> tuple[float, float]:
        """What the rule sees: validation loss, with the method's penalty if it asks for that, and accuracy in %."""
        total, right, count = 0.0, 0, 0
        for t in tasks:
            with self.method.task(t):
                found = self._measure(self.stream.tasks[t].validation)
            total, right, count = total + found.loss, right + found.right, count + found.count
        with torch.no_grad():
            penalty = self.method.penalty() if self.method.penalty_in_validation else None
        return total / count + (0.0 if penalty is None else float(penalty)), 100 * right / count

    def _sample(self, t: int, when: Literal["before", "after"]) -> Iterable[Batch]:
        """The training inputs that a method sees around a task: one batch of as many as it asks for, or all of them."""
        part = self.stream.tasks[t].train
        order = torch.randperm(len(part), generator=generator(self.plan.seed, "sample", t, when))
        samples = self.method.samples_before if when == "before" else self.method.samples
        size = self.plan.batch_size if samples is None else samples
        if samples is not None and when == "after" and self.method.evidence is not None:
            samples = max(samples, EVIDENCE_SAMPLES)
        return self._loader(part, size, order[:samples], derive(self.plan.seed, "workers", t, when))

    def _loader(
        self, part: Part, size: int, order: Tensor | None = None, seed: int = 0, augment: Augmentation | None = None
    ) -> BatchLoader:
        return BatchLoader(part, size, self.plan.device, order, self.plan.workers, seed, augment)

    def _mixed_precision(self) -> AbstractContextManager[None]:
        return autocast_forward(self.method, self.plan.precision, self.plan.device)

    def _snapshot(self) -> Tree:
        """What training changes: the model and what the task learns beside it."""
        return {
            "model": {name: value.detach().clone() for name, value in self.model.state_dict().items()},
            "method": self.method.state_dict(within_task=True, replay=False),
        }

    def _restore(self, snapshot: Tree) -> None:
        """The inverse of ``_snapshot``."""
        self.model.load_state_dict(snapshot["model"])
        self.method.load_state_dict(snapshot["method"])

    @contextmanager
    def _timed(self, what: str) -> Iterator[None]:
        begin = time.perf_counter()
        yield
        self.progress.seconds[what] += time.perf_counter() - begin

    def _tell(self, event: str, **fields: Any) -> None:
        """Give an event to all observers; those of a joint method say how many tasks are learned at once."""
        if self.method.joint and event != "notice":
            fields["together"] = len(self.stream)
        for observer in self.observers:
            observer({"event": event, **fields})


def _check_given(method: object, stream: object, plan: object) -> None:
    """Refuse what is no method, no stream or no plan, a model without its method above all."""
    if not isinstance(method, Method):
        advice = " Attach one to it: Trainer(CodeCL(model), stream, plan)." if isinstance(method, nn.Module) else ""
        advice = " Make it: Trainer(CodeCL(model), stream, plan)." if isinstance(method, type) else advice
        raise TypeError(f"method must be a method attached to a model, a codecl.Method; got {_kind(method)}.{advice}")
    if not isinstance(stream, Stream):
        raise TypeError(f"stream must be a codecl.training.stream.Stream, Stream(name, tasks); got {_kind(stream)}.")
    if not isinstance(plan, Plan):
        raise TypeError(f"plan must be a codecl.training.plan.Plan, Plan(epochs=…, lr=…); got {_kind(plan)}.")


def _kind(given: object) -> str:
    return f"the class {given.__name__}" if isinstance(given, type) else type(given).__name__

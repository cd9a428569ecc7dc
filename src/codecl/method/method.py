"""What every method shares: tasks, heads, norms and biases, guarded optimizers, state. By itself, fine-tuning.

A method of one's own is a subclass with a few hooks, all optional: those of ``remembering.py``, for what happens
between tasks, and those of ``learning.py``, for what happens within a step.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

import torch
from torch import Tensor, nn, optim

from codecl.attach import Forward, ProtectedWeight, attach, call_with_first, refuse_wrappers, survey
from codecl.attach.survey import Policy
from codecl.method.guard import Project
from codecl.method.guards import Guards
from codecl.method.learning import Loss
from codecl.method.per_task import Unprojected
from codecl.method.remembering import Remembering, Task
from codecl.method.state import FORMAT, ForeignState, check_state, size
from codecl.text import unknown_name


class Method(Remembering):
    """Plain fine-tuning, and the frame in which every other method stands.

    ``heads`` names the modules that each task has for itself; those of a ``MultiHead`` are found. ``skip`` names what
    may train unprotected, ``added`` the parameters that are added to activations, as biases are. ``norm`` and ``bias``
    say what becomes of the parameters that input correlations do not describe: ``freeze`` after the first task,
    ``per-task`` copies, or ``free``. ``forward(model, batch)`` says how a batch becomes a call, and
    ``loss(output, batch)`` what is minimised, for methods that look at gradients themselves.
    """

    name: ClassVar[str] = "finetune"
    label: ClassVar[str] = ""
    """What every table says beside the name."""
    protects: ClassVar[bool] = False
    weight_type: ClassVar[type[ProtectedWeight]] = ProtectedWeight
    plain_first_task: ClassVar[bool] = True
    """Whether the first task is learned exactly as fine-tuning would learn it."""
    holds_heads: ClassVar[bool] = True
    """Whether the heads of a multi-head model stand still once their task has been learned."""
    joint: ClassVar[bool] = False
    """Whether all tasks are learned at once. A trainer begins them all, then hands out batches ``(x, y, tasks)``."""

    def __init__(
        self,
        model: nn.Module,
        *,
        heads: Sequence[str] = (),
        skip: Sequence[str] = (),
        added: Sequence[str] = (),
        norm: Policy = "freeze",
        bias: Policy = "freeze",
        forward: Forward = call_with_first,
        loss: Loss | None = None,
    ) -> None:
        refuse_wrappers(model)
        layers = survey(model, heads, skip, norm, bias, self.protects, added, self.weight_type)
        super().__init__(model, layers, forward, loss)
        self._unprojected = Unprojected(model, self.layers, self.holds_heads)
        self._guards = Guards(self.weights, self)
        self._attached = True
        self._take_back = attach(model, self.weights)

    # What a user calls.

    def guard(self, optimizer: optim.Optimizer, project: Project | None = None) -> None:
        """Make ``optimizer`` keep to the projected space, and train what a task adds. Call it for every new optimizer.

        ``project`` overrides what is projected: ``"gradient"``, ``"update"`` or ``"both"``.
        """
        self._check_attached()
        self._guards.add(optimizer, project).join(self._extras(), self._unprojected.frozen)

    def begin_task(self, task: Task, loader: Iterable[Any] | None = None) -> None:
        """Get ready to learn ``task``, a new name or number; ``loader`` yields its training batches."""
        self._check_attached()
        if self._learning:
            raise RuntimeError(f"task {self.tasks[-1]!r} was begun and not ended: call end_task(loader) first.")
        if task in self.tasks:
            raise ValueError(
                f"task {task!r} has been learned already, of {self.tasks}: give the new task a name of its own."
            )
        if self.protects:
            self.layers.check_still_frozen()
        self._take_in_head(len(self.tasks))
        self._notes = {}
        self._changes.append(self.prepare(loader) if self.tasks or not self.plain_first_task else {})
        self.tasks.append(task)
        self._learning = True
        self._show(len(self.tasks) - 1)
        self._guards.join(self._extras(), self._unprojected.frozen)
        self._guards.note_versions()

    def end_task(self, loader: Iterable[Any] | None = None) -> None:
        """``task`` has been learned: its inputs are part of the past now. ``loader`` yields its training batches."""
        self._check_attached()
        if not self._learning:
            raise RuntimeError("no task is being learned: call begin_task(task, loader) first.")
        self._guards.warn_if_left_out(self.tasks[-1])
        self.remember(loader)
        self._unprojected.store()
        for parameter in self.parameters():
            parameter.requires_grad_(False)
            parameter.grad = None
        for weight in self.weights.values():  # what accumulation left over is not projected by the new memory
            weight.parameter.grad = None
        self._learning = False
        self._unprojected.freeze()
        self._guards.join({}, self._unprojected.frozen)
        self._guards.forget_state()

    @contextmanager
    def task(self, task: Task) -> Iterator[None]:
        """The network as ``task`` knows it, by name or number: head, norms and effective weights."""
        self._check_attached()
        position, before = self._position(task), self._shown
        with self._unprojected.shown_to(position):
            self._show(position)
            try:
                yield
            finally:
                self._show(before)

    def export(self, task: Task) -> nn.Module:
        """A plain copy of the model as ``task`` knows it, with its effective weights baked in; it needs no codecl."""
        with self.task(task), self._bare():
            changed = [weight for weight in self.weights.values() if weight.change is not None]
            shared = [weight.parameter.data for weight in changed]
            try:
                for weight in changed:
                    weight.parameter.data = weight.effective()
                plain = copy.deepcopy(self.model)
            finally:
                for weight, value in zip(changed, shared, strict=True):
                    weight.parameter.data = value
        self._unprojected.restore_flags(plain)
        plain.zero_grad(set_to_none=True)
        return plain

    def parameters(self) -> Iterator[nn.Parameter]:
        """What the current task learns beside the parameters of the model."""
        yield from dict.fromkeys(parameter for several in self._extras().values() for parameter in several)

    def state_dict(self) -> dict[str, Any]:
        """Everything but the model's own parameters: tensors by parameter name, loadable with ``weights_only=True``."""
        return {
            "format": FORMAT,
            "method": self.name,
            "weights": self._shapes(),
            "tasks": list(self.tasks),
            "open": self._learning,
            "own": [dict(values) for values in self._unprojected.stored],
            "changes": [{name: change.state() for name, change in of.items()} for of in self._changes],
            "memory": self.memory_state(),
            "notes": {name: dict(facts) for name, facts in self._notes.items()},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where ``state_dict()`` was taken. The model's own state is loaded separately, before this."""
        self._check_attached()
        own = {name: list(value.shape) for name, value in self._unprojected.values().items()}
        check_state(state, self.name, self._shapes(), own)
        try:
            memory = state["memory"]
            changes = [{name: self.load_change(name, c, memory) for name, c in of.items()} for of in state["changes"]]
            self.load_memory(memory)
        except KeyError as missing:
            raise ForeignState(f"the state is incomplete: it lacks {missing}.") from None
        self.tasks, self._learning, self._changes = list(state["tasks"]), bool(state["open"]), changes
        self._notes = {name: dict(facts) for name, facts in state.get("notes", {}).items()}
        if self.tasks:
            self._take_in_head(len(self.tasks) - 1)
        for t, of in enumerate(changes):
            for parameter in (p for change in of.values() for p in change.parameters()):
                parameter.requires_grad_(self._learning and t == len(changes) - 1)
        self._unprojected.stored = [{name: value.clone() for name, value in own.items()} for own in state["own"]]
        self._unprojected.thaw()
        self._unprojected.freeze()
        self._show(len(self.tasks) - 1 if self.tasks else None)
        self._guards.note_versions()
        self._guards.join(self._extras(), self._unprojected.frozen)

    def learning_state(self) -> list[Tensor]:
        """What changes while a task is learned, beside the model: for keeping the best epoch, and for going on."""
        return [parameter.detach().clone() for parameter in self.parameters()]

    def load_learning_state(self, state: list[Tensor]) -> None:
        """The inverse of ``learning_state``."""
        with torch.no_grad():
            for parameter, value in zip(self.parameters(), state, strict=True):
                parameter.copy_(value)
        self._guards.note_versions()

    def bytes(self) -> dict[str, int]:
        """What the method stores: ``memory``, all of it, and ``per_task``, what a further task adds on average."""
        of_tasks = size(self._unprojected.stored) + size([[c.state() for c in of.values()] for of in self._changes])
        return {
            "memory": size(self.memory_state()) + of_tasks,
            "per_task": of_tasks // max(1, len(self.tasks)),
        }

    def detach(self) -> None:
        """Give the model and its optimizers back as they were found; the shared weights keep what was learned."""
        self._check_attached()
        self._guards.release()
        self._unprojected.thaw()
        self._take_back()
        self._unprojected.restore_flags()
        self._attached = False

    # The rest is nobody else's.

    def _position(self, task: Task) -> int:
        if task in self.tasks:
            return self.tasks.index(task)
        by_number = isinstance(task, int) and all(isinstance(known, str) for known in self.tasks)
        if by_number and 0 <= int(task) < len(self.tasks):
            return int(task)
        raise ValueError(unknown_name("task", task, self.tasks))

    def _extras(self) -> dict[nn.Parameter, list[nn.Parameter]]:
        """What the task being learned adds, by the weight it belongs to."""
        return {self.weights[name].parameter: change.parameters() for name, change in self.changes.items()}

    def _take_in_head(self, position: int) -> None:
        new, earlier = self._unprojected.use_head(position)
        self._guards.join({}, self._unprojected.frozen)  # heads before the extras of a task, as in model.parameters()
        self._guards.adopt(new, earlier)

    @contextmanager
    def _bare(self) -> Iterator[None]:
        """The model without any forward of ours, for a while."""
        with self._unprojected.bare():
            self._take_back()
            try:
                yield
            finally:
                self._take_back = attach(self.model, self.weights)

    def _shapes(self) -> dict[str, list[int]]:
        return {name: list(weight.shape) for name, weight in self.weights.items()}

    def _check_attached(self) -> None:
        if not self._attached:
            raise RuntimeError("this method was detached from its model: attach a new one.")

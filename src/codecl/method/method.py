"""``Method``: what every method shares. By itself it is plain fine-tuning.

A user calls ``guard``, ``begin_task``, ``end_task``, ``task``, ``export``, ``state_dict``, ``load_state_dict`` and
``detach``. A method of one's own is a subclass with some of the hooks in ``codecl.method.hooks``.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from itertools import chain
from typing import Any, Literal, Self

from torch import Tensor, nn, optim

from codecl.attach import (
    EffectiveWeight,
    Forward,
    attach,
    call_with_first,
    check_uses,
    refuse_wrappers,
    survey,
    take,
)
from codecl.attach.batches import inputs_in, length, peek, taking
from codecl.attach.sharded_weight import ShardedWeight
from codecl.attach.shards import put
from codecl.attach.structure import Structure
from codecl.attach.survey import Policy
from codecl.method.clearing import ClearingGradients, refuse_attached
from codecl.method.gradients import Loss, cross_entropy_with_second, mean_gradients
from codecl.method.groups import unwrapped
from codecl.method.guard import Project
from codecl.method.guards import Guards
from codecl.method.hooks import Hooks
from codecl.method.inference import AUTO, Patch, Prediction, infer, inferring, novelty, predict, told
from codecl.method.memory_summary import summary
from codecl.method.per_task import PerTask
from codecl.method.promise import Promise
from codecl.method.replicas import Group, Replicas
from codecl.method.settings import check, check_settings
from codecl.method.shards import plain_copy
from codecl.method.state import (
    ForeignState,
    check_finite,
    check_same_model,
    check_state,
    size,
    state_within_task,
    whole_state,
)
from codecl.method.task_evidence import TaskEvidence
from codecl.method.watch import warn_of_full_layers
from codecl.randomness import untouched_randomness
from codecl.text import unknown_name

Task = int | str
STEP_HOOKS = ("learn", "penalty", "after_step")
"""What only a guarded optimizer tells a method about."""


class Method(Hooks):
    """Plain fine-tuning, and the frame of every other method.

    Args:
        model: any module; it is attached to until ``detach()``.
        heads: names of the modules that each task has for itself; the heads of a ``MultiHead`` are found.
        skip: names of what may train unprotected.
        added: names of parameters that are added to activations, as biases are.
        norm: what becomes of normalisation layers after the first task: ``"freeze"``, ``"per-task"`` or ``"free"``.
        bias: the same for biases.
        buffers: what becomes of buffers that are no norm's and change as data pass, a code book, say: with ``"hold"``
            every task has its own, with ``"free"`` they go on.
        rest: the same for weights of which no layer kind knows how they are used; by default they are refused.
        forward: ``forward(model, batch)``, how a batch becomes a call; by default the model of its first element.
        loss: ``loss(output, batch)``, for methods that compute gradients themselves; by default the cross entropy.
        evidence: name patterns of weights whose inputs tell tasks apart, or ``"auto"``; for ``infer_task``.
        group: the processes that learn together, such as ``torch.distributed.group.WORLD``; see ``replicate``.

    >>> method = Method(nn.Linear(4, 2))
    >>> method.begin_task("first")
    >>> method.end_task()
    >>> method.tasks
    ['first']
    """

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        cls.sharded = vars(cls).get("sharded", False)

    def __new__(cls, *_: Any, **settings: Any) -> Self:
        check_settings(cls, settings)
        return super().__new__(cls)

    def __init__(
        self,
        model: nn.Module,
        *,
        heads: Sequence[str] = (),
        skip: Sequence[str] = (),
        added: Sequence[str] = (),
        norm: Policy = "freeze",
        bias: Policy = "freeze",
        buffers: Literal["hold", "free"] = "hold",
        rest: Policy | None = None,
        forward: Forward = call_with_first,
        loss: Loss | None = None,
        evidence: str | Sequence[str] = (),
        group: Group = None,
    ) -> None:
        check(buffers in ("hold", "free"), "buffers", buffers, "'hold' or 'free'")
        refuse_wrappers(model)
        refuse_attached(model)
        self.model, self.forward = model, forward
        self.replicas = Replicas(group)
        self.replicas.check(self)
        self.loss: Loss = cross_entropy_with_second if loss is None else loss
        weight_type = ShardedWeight if self.replicas.sharded else self.weight_type
        self.layers = survey(model, heads, skip, norm, bias, self.protects, added, weight_type, rest)
        self.tasks: list[Task] = []
        self.progress = 0.0
        """How far the task at hand has come, from 0 to 1, as ``watch`` was told."""
        self.notes: dict[str, dict[str, Any]] = {}
        """Plain numbers about weights and the task begun last, for ``memory_summary``."""
        self.is_learning = False
        self.inferring: tuple[Patch, Callable[[], None]] | None = None
        """What makes the model infer tasks inside ``task("auto")``, and what takes it off again."""
        self._batch: Any = None
        self._uses_checked = False
        self._warned_full: set[str] = set()
        self._places = [(weight.parameter.device, weight.parameter.dtype) for weight in self.weights.values()]
        self.evidence = TaskEvidence(self.weights, evidence) if evidence else None
        """What is stored to tell which task an input belongs to."""
        self.examine()
        self.per_task = PerTask(
            model, self.layers, self.freezes_heads, self.protects and buffers == "hold", self.replicas
        )
        acts = any(getattr(type(self), hook) is not getattr(Method, hook) for hook in STEP_HOOKS)
        self._guards = Guards(model, self.weights, self, acts)
        self._structure = Structure(model, self.layers.heads if self.layers.task_heads is not None else ())
        self._attached = True
        self._take_back = self._attach()

    # Readings.

    @classmethod
    def preset(cls, name: str) -> dict[str, Any]:
        """The settings of the preset ``name``, one of ``presets``."""
        if name not in cls.presets:
            raise ValueError(unknown_name("preset", name, cls.presets))
        return dict(cls.presets[name])

    @classmethod
    def paper(cls, model: nn.Module, **settings: Any) -> Self:
        """The method as its paper prints it."""
        return cls(model, **(cls.preset("paper") | settings))

    @classmethod
    def official(cls, model: nn.Module, **settings: Any) -> Self:
        """The method as its authors' code runs it."""
        return cls(model, **(cls.preset("official") | settings))

    # Tasks.

    def guard(self, optimizer: optim.Optimizer, project: Project | None = None) -> None:
        """Keep the steps of ``optimizer`` in the projected space, and train what a task adds.

        Call it for every new optimizer. ``project`` overrides what is projected: ``"gradient"``, ``"update"`` or
        ``"both"``.
        """
        self._check_attached()
        self.replicas.reshard(self.model)
        self._guards.add(unwrapped(optimizer), project).join(*self._joining())

    def begin_task(self, task: Task, loader: Iterable[Any] | None = None) -> None:
        """Get ready to learn ``task``, a new name or number; ``loader`` yields its training batches."""
        self._check_attached()
        self._check_not_showing()
        if self.is_learning:
            raise RuntimeError(f"task {self.tasks[-1]!r} was begun and not ended: call end_task(loader) first.")
        task = task_name(task)
        if task == AUTO:
            raise ValueError(f"{AUTO!r} means the task that is inferred: give the new task another name.")
        if task in self.tasks:
            raise ValueError(
                f"task {task!r} has been learned already, of {self.tasks}: give the new task a name of its own."
            )
        self.replicas.check(self)
        self.replicas.reshard(self.model)
        check_finite(self.model, self.replicas, "the task is not begun")
        self._guards.repair_weights()
        self.hold_frozen()
        if self.protects and not self.tasks:
            self._probe(loader)
        self._protect_anew()
        self._select_head(len(self.tasks))
        self.replicas.same_model(self.model)
        loader = self.replicas.whole(loader)
        self.notes = {}
        self.per_task.effective.append(self.prepare(loader) if self.tasks or not self.plain_first_task else {})
        self.tasks.append(task)
        self.is_learning = True
        self.per_task.show(self.current_task)
        self.replicas.same_method(self)
        self.replicas.reshard(self.model)
        self._guards.join(*self._joining())
        self._guards.note_weights()

    def replicate(self, **options: Any) -> nn.Module:
        """The network to train while this task is learned, on every process of ``group``.

        It is ``DistributedDataParallel`` around the model and what the task adds to it, with ``options``; without a
        group, and in shards (``fully_shard``), it is the model itself. Make a new one after each ``begin_task``: other
        parameters learn then.
        """
        self._check_attached()
        if not self.is_learning:
            raise RuntimeError("no task is being learned: call replicate() after begin_task(task, loader).")
        return self.replicas.wrap(self, **options)

    def end_task(self, loader: Iterable[Any] | None = None) -> None:
        """Make the task that was learned part of the past; ``loader`` yields its training batches."""
        self._check_attached()
        self._check_not_showing()
        if not self.is_learning:
            raise RuntimeError("no task is being learned: call begin_task(task, loader) first.")
        self.replicas.reshard(self.model)
        check_finite(self.model, self.replicas, "the task is not remembered")
        self._guards.warn_if_left_out(self.tasks[-1])
        self._guards.repair_weights()
        self.hold_frozen()
        self.replicas.same_model(self.model)
        loader = self.replicas.whole(loader)
        told_apart = self.evidence.fit(self, loader) if self.evidence is not None and not self.joint else None
        self.remember(loader)
        if self.evidence is not None and told_apart is not None:
            self.evidence.add(told_apart)
        self.per_task.store()
        for parameter in self.parameters():
            parameter.requires_grad_(False)
            parameter.grad = None
        for weight in self.weights.values():  # the new memory has not projected what accumulation left over
            weight.parameter.grad = None
        self.is_learning = False
        self.per_task.freeze()
        self.replicas.same_method(self)
        self.replicas.reshard(self.model)
        self._guards.join(*self._joining())
        self._guards.note_weights()
        self.forget_optimizer_state()
        self._warned_full |= warn_of_full_layers(self.weights.values(), self._warned_full)

    @contextmanager
    def task(self, task: Task) -> Iterator[None]:
        """Show the network as ``task`` knows it, by name or number: head, norms and effective weights.

        With ``"auto"`` every call of the model answers as the task that the inputs of the call belong to together.
        """
        self._check_attached()
        if task == AUTO:
            with inferring(self):
                yield
        else:
            with told(self), self.per_task.showing(self._position(task)):
                yield

    def export(self, task: Task, into: nn.Module | None = None) -> nn.Module:
        """A plain copy of the model as ``task`` knows it, with its effective weights baked in; it needs no codecl.

        ``into`` is a model of the same architecture to fill in place of a copy, as models in shards need it.
        """
        if task == AUTO:
            raise ValueError(f"a plain model infers nothing: export one of the tasks {self.tasks}, not {AUTO!r}.")
        with self.task(task), self._bare():
            plain = plain_copy(self, into)
            for weight in self.weights.values():
                if weight.change is not None:
                    weight.bake(plain)
        plain.zero_grad(set_to_none=True)
        return plain

    def promise(self, task: Task, loader: Iterable[Any], samples: int | None = 256) -> Promise:
        """Note what ``task`` puts out for some inputs, to see later how far it has moved.

        Make it before another task is learned, on inputs of your choice, and call ``check()`` whenever you like:

            promise = method.promise(0, validation_batches)
            ...  # learn task 1
            print(promise.check())  # how far the outputs and every layer moved, and how much was free to move

        ``samples`` is how many inputs are looked at, in whole batches; None for all.
        """
        self._check_attached()
        return Promise(self, task, take(loader, samples))

    # Without being told the task.

    def infer_task(self, batch: Any, together: bool = False) -> Tensor:
        """The task of each input, by position in ``tasks``; one for all of them if they belong ``together``.

        It follows from what ``evidence`` stored of the tasks, or else from the entropy of their heads.
        """
        self._check_attached()
        return infer(self, batch, together)

    def predict(self, batch: Any, together: bool = False) -> Prediction:
        """The task of each input, and its class in the output of that task."""
        self._check_attached()
        return predict(self, batch, infer(self, batch, together))

    def novelty(self, loader: Iterable[Any]) -> float:
        """The share of inputs that are unlikely under every learned task; about 0.01 for those of known tasks."""
        self._check_attached()
        return novelty(self, loader)

    def detach(self) -> None:
        """Give the model and its optimizers back as they were found; the shared weights keep what was learned."""
        self._check_attached()
        self._check_not_showing()
        self._guards.release()
        self.per_task.thaw()
        self._take_back()
        self.per_task.restore_flags()
        self._attached = False

    # Learning.

    def objective(self, batch: Any, net: nn.Module | None = None) -> Tensor:
        """The loss of the model on ``batch``; ``net`` is what ``replicate`` returned."""
        return self.loss(self.forward(self.model if net is None else net, batch), batch)

    def watch(self, loader: Iterable[Any], epoch: int = 0, epochs: int = 1) -> Iterator[Any]:
        """The batches of ``loader``, seen by the method as they pass: ``for x, y in method.watch(loader)``.

        ``epoch`` of ``epochs`` says how far the task has come, for methods that change something on the way.
        """
        count = length(loader)
        self.replicas.same_batches = getattr(loader, "same_on_all", False)
        try:
            for i, batch in enumerate(loader):
                self._batch = batch
                self.progress = (epoch + (i / count if count else 0.0)) / epochs
                yield batch
            if self._batch is not None:
                self.end_epoch()
        finally:
            self._batch = None

    @property
    def batch(self) -> Any:
        """The batch that is being learned from."""
        if self._batch is None:
            raise RuntimeError(
                f"{self.name} looks at the batches it learns from: write `for batch in method.watch(loader):` "
                "around your training step."
            )
        return self._batch

    @property
    def is_watching(self) -> bool:
        """Whether a batch of ``watch`` is being learned from."""
        return self._batch is not None

    @property
    def current_task(self) -> int:
        """The position of the task that was begun last."""
        return len(self.tasks) - 1

    @property
    def effective(self) -> dict[str, EffectiveWeight]:
        """The effective weights of the task that was begun last, by weight name."""
        return self.per_task.effective[-1] if self.per_task.effective else {}

    def parameters(self) -> Iterator[nn.Parameter]:
        """What the task at hand learns beside the parameters of the model."""
        yield from dict.fromkeys(p for parameters in self._task_parameters().values() for p in parameters)

    def shared_weights(self) -> AbstractContextManager[None]:
        """Show the network on its shared weights, whatever task is current."""
        return self.per_task.shared_weights()

    def sample(self, loader: Iterable[Any] | None) -> Iterable[Any]:
        """Whole batches of ``loader`` until there are ``self.samples`` inputs; if None, a stream of all, read once."""
        if self.samples is not None:
            batches = take(loader, self.samples)
            self.check_uses(batches[:1])
            return batches
        stream = taking(loader, None)
        if self._uses_checked:
            return stream
        with untouched_randomness():
            first = [next(stream)]
        self.check_uses(first)
        return chain(first, stream)

    def check_uses(self, batches: Sequence[Any]) -> None:
        """Refuse, once, a model that uses a protected weight where its inputs cannot be captured."""
        if self.protects and not self._uses_checked:
            check_uses(self.model, self.weights, batches, self.forward)
            self._uses_checked = True

    def gradients(self, batches: Iterable[Any]) -> dict[str, Tensor]:
        """``∂L/∂W`` over ``batches``, ``[g, o, d]`` by weight name, in evaluation mode and not projected."""
        batches = list(batches)
        found = mean_gradients(self.model, self.weights, batches, self.objective)
        return self.replicas.mean(found, sum(inputs_in(batch) or 1 for batch in batches))

    def note(self, name: str, **facts: Any) -> None:
        """Keep plain numbers about a weight and the task at hand, for ``memory_summary``."""
        self.notes.setdefault(name, {}).update(facts)

    def hold_frozen(self) -> None:
        """Put what is frozen back where it was, and refuse a model that is not the one the method was attached to."""
        self._check_not_showing()
        self.replicas.reshard(self.model)
        if self.protects:
            self._structure.check()
            self.layers.check_still_frozen()
        self.per_task.hold()

    def forget_optimizer_state(self) -> None:
        """Clear what guarded optimizers keep of protected weights: an old momentum would move old outputs."""
        self._guards.forget_state()

    # State.

    def state_dict(self, within_task: bool = False, replay: bool = True) -> dict[str, Any]:
        """Everything but the model's own parameters: tensors by parameter name, loadable with ``weights_only=True``.

        With ``within_task`` only what changes while a task is learned, to be loaded on top of a whole state. Without
        ``replay`` it leaves out the samples kept for replay: restoring the best epoch does not forget later ones.
        """
        return state_within_task(self, replay) if within_task else whole_state(self)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where ``state_dict()`` was taken; a state that does not fit changes nothing.

        The model's own state is loaded separately, before this.
        """
        self._check_attached()
        if isinstance(state, Mapping) and state.get("within_task"):
            self._load_within_task(state)
            return
        check_state(state, self)
        before = self.state_dict()
        try:
            self._load(state)
            check_same_model(state, self)
        except BaseException as error:
            with suppress(KeyError):  # a method that cannot load its own state
                self._load(before)
            if isinstance(error, KeyError):
                raise ForeignState(f"the state is incomplete: it lacks {error}.") from None
            raise

    def bytes(self) -> dict[str, int]:
        """What the method stores: ``memory``, all of it, and ``per_task``, what a further task adds on average."""
        effective = [[e.state() for e in task.values()] for task in self.per_task.effective]
        evidence = size(self.evidence.state()) if self.evidence is not None else 0
        of_tasks = size(self.per_task.stored) + size(effective) + evidence
        return {
            "memory": size(self.memory_state()) + of_tasks,
            "per_task": of_tasks // max(1, len(self.tasks)),
        }

    def memory_summary(self) -> dict[str, dict[str, Any]]:
        """What is remembered of every protected weight, in plain numbers: what logs and figures show of a memory.

        All have ``shape``, ``[g, o, d]``, and ``bytes``, those of all tasks; one whose gradient is projected has
        ``capacity``, the share of its inputs that is protected. The rest is what the method notes and describes.
        """
        memory, effective = self.memory_state(), self.per_task.effective
        return {
            name: summary(weight, memory, effective) | self.notes.get(name, {}) | self.describe(name)
            for name, weight in self.weights.items()
        }

    # Private.

    def _load(self, state: Mapping[str, Any]) -> None:
        self.load_memory(state["memory"])
        self.per_task.effective = [
            {name: self.effective_weight(name, saved) for name, saved in task.items()} for task in state["effective"]
        ]
        self.tasks, self.is_learning = list(state["tasks"]), bool(state["learning"])
        self.notes = {name: dict(facts) for name, facts in state["notes"].items()}
        if self.evidence is not None:
            self.evidence.load(state["evidence"], len(state["per_task"]))
        if self.tasks:
            self._select_head(self.current_task)
        for t, task in enumerate(self.per_task.effective):
            for parameter in (p for effective in task.values() for p in effective.parameters()):
                parameter.requires_grad_(self.is_learning and t == self.current_task)
        self.per_task.stored = [{name: value.clone() for name, value in t.items()} for t in state["per_task"]]
        self.per_task.thaw()
        self.per_task.freeze()
        self.per_task.show(self.current_task if self.tasks else None)
        self._guards.note_weights()
        self._guards.join(*self._joining())

    def _load_within_task(self, state: Mapping[str, Any]) -> None:
        if state["memory"]:
            self.load_memory(self.memory_state() | state["memory"])
        for parameter, value in zip(self.parameters(), state["parameters"], strict=True):
            put(parameter, value)
        self._guards.note_weights()

    def _probe(self, loader: Iterable[Any] | None) -> None:
        """Look at one batch before anything is learned: what could not be protected later is refused now."""
        if batches := peek(loader):
            self.check_uses(batches)
            if self.evidence is not None:
                self.evidence.check(self, batches[0])

    def _position(self, task: Task) -> int:
        if task in self.tasks:
            return self.tasks.index(task)
        by_number = isinstance(task, int) and all(isinstance(known, str) for known in self.tasks)
        if by_number and 0 <= int(task) < len(self.tasks):
            return int(task)
        raise ValueError(unknown_name("task", task, self.tasks))

    def _task_parameters(self) -> dict[nn.Parameter, list[nn.Parameter]]:
        """What the task being learned adds, by the weight it belongs to."""
        added: dict[nn.Parameter, list[nn.Parameter]] = {}
        for name, one in self.effective.items() if self.is_learning else ():
            added.setdefault(self.weights[name].parameter, []).extend(one.parameters())
        return added

    def _protect_anew(self) -> None:
        """Make the projections again if the model has gone to another device or dtype."""
        places = [(weight.parameter.device, weight.parameter.dtype) for weight in self.weights.values()]
        if self._places != places and self.tasks:
            self.load_memory(self.memory_state())
        self._places = places

    def _joining(self) -> tuple[dict[nn.Parameter, list[nn.Parameter]], list[nn.Parameter], int]:
        """What optimizers train beside the model, what they never train, and how many tasks have been learned."""
        return self._task_parameters(), self.per_task.frozen, len(self.per_task.stored)

    def _select_head(self, position: int) -> None:
        new, earlier = self.per_task.use_head(position)
        # Heads before the extras of a task, as in model.parameters().
        self._guards.join({}, self.per_task.frozen, len(self.per_task.stored))
        self._guards.adopt(new, earlier)

    @contextmanager
    def _bare(self) -> Iterator[None]:
        """Take all forwards of ours off the model, inside this context."""
        with self.per_task.bare():
            self._take_back()
            try:
                yield
            finally:
                self._take_back = self._attach()

    def _attach(self) -> Callable[[], None]:
        return attach(self.model, self.weights, zero_grad=ClearingGradients(self))

    def _check_not_showing(self) -> None:
        if self.per_task.is_showing:
            raise RuntimeError(
                "inside `with method.task(...)` the model shows what a task knows, and what is learned there would be "
                "put back at its end: begin, train, end tasks and detach outside of it."
            )

    def _check_attached(self) -> None:
        if not self._attached:
            raise RuntimeError("this method was detached from its model: attach a new one.")


def task_name(task: Any) -> Task:
    """``task`` as a plain string or integer, which every saved state can hold."""
    if isinstance(task, str):
        return str(task)
    try:
        return operator.index(task)
    except TypeError:
        raise TypeError(f"a task has a string or a whole number for a name; got {task!r:.80}.") from None

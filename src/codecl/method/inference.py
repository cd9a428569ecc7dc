"""Which task an input belongs to: the one that is most likely by what is stored of the tasks (``task_evidence``).

Without stored conceptors the heads decide alone: the task whose output has the lowest entropy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from codecl.attach import call_with_first, evaluating
from codecl.attach.batches import Forward, inputs_in, taking
from codecl.attach.patching import patch
from codecl.method.task_evidence import no_batch
from codecl.randomness import untouched_randomness

if TYPE_CHECKING:
    from codecl.method.method import Method

AUTO = "auto"
Patch = Callable[[], Callable[[], None]]
"""Puts something on the model, and returns what takes it off."""


class Prediction(NamedTuple):
    """The task of each input, by position, and its class in the output of that task."""

    task: Tensor
    label: Tensor


def infer(method: Method, batch: Any, together: bool, forward: Forward | None = None) -> Tensor:
    """The position of the task that each input, or all of them, most likely belong to, ``[inputs]``."""
    return decide(task_scores(method, batch, forward), together)


@torch.no_grad()
def task_scores(method: Method, batch: Any, forward: Forward | None = None) -> Tensor:
    """How much speaks for each task, ``[inputs, tasks]``."""
    if not method.per_task.stored:
        raise RuntimeError("no task has been learned yet: there is none to infer.")
    if forward is None and method.forward is call_with_first:
        _check_batch(batch)
    if (inputs := inputs_in(batch)) is not None and inputs < 1:
        raise ValueError("the batch has no inputs; infer_task needs at least one.")
    if method.evidence is not None and has_evidence(method):
        scores = method.evidence.scores(method, batch, forward or method.forward)
    else:
        check_heads(method)
        scores = sureness(task_outputs(method, batch, forward or method.forward))
    if scores.ndim != 2:
        raise no_batch(f"the outputs are not [inputs, classes] but {list(scores.shape[:-1])} and classes")
    if not bool(torch.isfinite(scores).all()):
        raise ValueError("the inputs, or what the network makes of them, hold NaN or infinite values: no task fits.")
    return scores


def task_outputs(method: Method, batch: Any, forward: Forward) -> list[Tensor]:
    """What the network of every learned task answers, ``[inputs, classes]`` each."""
    return [_output(method, batch, task, forward) for task in range(len(method.per_task.stored))]


def sureness(outputs: Sequence[Tensor]) -> Tensor:
    """The negative entropy of the output of every task over that of a guess, ``[inputs, tasks]``.

    Heads of few classes would be surer than heads of many without having learned anything. A class whose output is −∞
    is none.
    """
    guess = [(output > -torch.inf).sum(-1).clamp(min=2).log() for output in outputs]
    entropy = [torch.special.entr(output.softmax(-1)).sum(-1) for output in outputs]
    return torch.stack([-e / g for e, g in zip(entropy, guess, strict=True)], -1)


def decide(scores: Tensor, together: bool) -> Tensor:
    """The task for which most speaks, of each input or of all of them, ``[inputs]``."""
    return scores.sum(0, keepdim=True).expand_as(scores).argmax(1) if together else scores.argmax(1)


@torch.no_grad()
def predict(method: Method, batch: Any, task: Tensor) -> Prediction:
    """What the network of its ``task`` answers to each input."""
    label = torch.empty_like(task)
    for t in sorted(method.replicas.union(set(task.tolist()))):
        label[task == t] = _output(method, batch, t, method.forward).argmax(-1)[task == t].to(task.device)
    return Prediction(task, label)


def has_evidence(method: Method) -> bool:
    """Whether something is stored of every learned task."""
    return method.evidence is not None and len(method.evidence.tasks) == len(method.per_task.stored) > 0


def has_heads(method: Method) -> bool:
    """Whether tasks have heads of their own."""
    return method.layers.task_heads is not None or bool(method.layers.heads)


def check_heads(method: Method) -> None:
    """Refuse to tell tasks apart by their heads where none has one."""
    if not has_heads(method):
        remedy = f"Make the method with evidence='auto': {type(method).__name__}(model, evidence='auto')."
        raise ValueError(
            "the task cannot be inferred: no evidence is stored and no task has a head of its own. "
            + (remedy if method.protects else "Choose a method that protects weights, and so can store evidence.")
        )


def novelty(method: Method, loader: Iterable[Any]) -> float:
    """The share of the inputs of ``loader`` that are unlikely under every learned task."""
    if method.evidence is None or not method.evidence.tasks:
        raise RuntimeError(
            "novelty needs what is stored of learned tasks. Make the method with evidence='auto', and learn a task."
        )
    batches = (batch for batch in taking(loader, None) if inputs_in(batch) != 0)
    new = [method.evidence.is_new(method, batch) for batch in batches]
    return float(torch.cat(new).double().mean())


@contextmanager
def inferring(method: Method) -> Iterator[None]:
    """Inside this context each call of the model infers the task of its inputs, and answers as that task."""
    if method.replicas.sharded:
        raise ValueError(
            f"a model in shards shows one task on all processes: task({AUTO!r}) would show another on each. Ask "
            "predict(batch), or infer_task(batch) on all of them."
        )
    if method.inferring is not None:
        yield
        return
    original = method.model.forward

    def call(model: nn.Module, batch: tuple[tuple[Any, ...], dict[str, Any]]) -> Any:
        return original(*batch[0], **batch[1])

    def forward(*args: Any, **kwargs: Any) -> Any:
        task = int(infer(method, (args, kwargs), together=True, forward=call)[0])
        with method.per_task.showing(task):
            return original(*args, **kwargs)

    with _switched(method, lambda: patch([(method.model, "forward", forward)])):
        yield


def told(method: Method) -> AbstractContextManager[None]:
    """Inside this context nothing is inferred: a task that is told wins over the one that a call would infer."""
    return _switched(method, None)


@contextmanager
def _switched(method: Method, on: Patch | None) -> Iterator[None]:
    """Inside this context the model has the patch ``on`` in place of an outer one of this kind."""
    outer, method.inferring = method.inferring, None
    if outer is not None:
        outer[1]()
    method.inferring = None if on is None else (on, on())
    try:
        yield
    finally:
        if method.inferring is not None:
            method.inferring[1]()
        method.inferring = None if outer is None else (outer[0], outer[0]())


@torch.no_grad()
def _output(method: Method, batch: Any, task: int, forward: Forward) -> Tensor:
    """What the network of the task at a position answers, in evaluation mode, ``[inputs, classes]``."""
    with method.per_task.showing(task), evaluating(method.model), untouched_randomness():
        output = forward(method.model, batch)
    logits = output if isinstance(output, Tensor) else getattr(output, "logits", None)
    if not isinstance(logits, Tensor) or logits.ndim > 2:
        found = f"{list(logits.shape)}" if isinstance(logits, Tensor) else f"a {type(output).__name__}"
        raise TypeError(
            f"tasks and classes are read from outputs [inputs, classes]; the model returned {found}. Give the method a "
            "forward=, how a batch becomes a call, that returns such outputs."
        )
    return logits


def _check_batch(batch: Any) -> None:
    """Refuse what the model cannot be called with, for the usual way of calling it."""
    if isinstance(batch, DataLoader) or (
        isinstance(batch, list) and batch and all(isinstance(one, (tuple, list, Mapping)) for one in batch)
    ):
        raise TypeError("one batch is expected; got several, as of a loader. Ask about each: for batch in loader: …")
    if batch is None or (isinstance(batch, (str, tuple, list)) and inputs_in(batch) is None):
        raise TypeError(f"a batch is a tensor of inputs, or a tuple or dict that begins with one; got {batch!r:.80}.")

"""Which task an input belongs to, from what was stored of the tasks.

After each task a conceptor of the inputs of each weight is kept. Seen as a Gaussian (``codecl.algebra.evidence``) it
says how likely an input is under that task; the log densities of all weights are added, each per dimension, so that
none speaks louder for being wide. Inputs are seen under the shared weights, with the heads, norms and biases of the
first task: one forward pass serves all tasks, and methods that protect the shared weights keep this view still.
Without stored conceptors the heads decide alone: the task whose output has the lowest entropy.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from codecl.algebra import Conceptor
from codecl.algebra.evidence import log_density
from codecl.algebra.tolerances import WORKING_DTYPE
from codecl.attach import ProtectedWeight, call_with_first, capture_moments, evaluating, listen
from codecl.attach.batches import Forward, inputs_in, rebatched, take, taking
from codecl.attach.patching import patch
from codecl.layers import LayerKind
from codecl.method.settings import matching
from codecl.method.state import ForeignState
from codecl.randomness import untouched_randomness

if TYPE_CHECKING:
    from codecl.method.method import Method

AUTO = "auto"
APERTURE = 16.0
"""The noise that is expected beside the stored directions: 1/16 of the root mean square of a weight's inputs."""
SAMPLES = 1000
"""How many inputs of a task the stored conceptors are fitted to."""
HELD_OUT = 0.2
"""The share of them that tells how likely the inputs of a known task are."""
POSITIONS = 32
"""How many rows of an input a weight judges by: of more, as patches of a convolution are, evenly spread ones."""
UNLIKELY = 0.01
"""An input counts as new if no task finds it more likely than this share of its own inputs."""

Stored = dict[str, Any]


class Prediction(NamedTuple):
    """The task of each input, by position, and its class in the output of that task."""

    task: Tensor
    label: Tensor


class TaskEvidence:
    """A conceptor for each task and each of some weights, and what follows from them.

    Args:
        patterns: Name patterns of weights; ``"auto"`` for all.
    """

    def __init__(self, weights: Mapping[str, ProtectedWeight], patterns: str | Sequence[str]) -> None:
        self.weights = _chosen(weights, patterns)
        self.scale: dict[str, float] = {}
        """The root mean square of each weight's inputs in the first task, the unit of its rows."""
        self.tasks: list[Stored] = []
        """For each task, the factors of the conceptors by weight, and ``mean``, ``std`` and ``least`` of evidence."""

    def fit(self, method: Method, loader: Iterable[Any] | None) -> tuple[dict[str, float], Stored]:
        """The scale, and what is to be stored of the task that was learned; changes nothing."""
        batches = take(loader, SAMPLES)
        known, held_out = _split(batches)
        with _first_view(method):
            scale = self.scale or self._scales(method, batches)
            stored = self._factors(method, batches, scale)
            calibration = self._factors(method, known, scale) if held_out else stored
            own = self._by_weight(method, held_out or batches, scale, [calibration], method.forward)
        total = sum(_standardised(of_weight[:, 0]) for of_weight in own.values())
        return scale, {
            "factors": stored,
            "mean": {name: float(e.mean()) for name, e in own.items()},
            "std": {name: float(_spread(e)) for name, e in own.items()},
            "least": float(torch.as_tensor(total).quantile(UNLIKELY)),
        }

    def add(self, fitted: tuple[dict[str, float], Stored]) -> None:
        """Store what ``fit`` returned."""
        self.scale = fitted[0]
        self.tasks.append(fitted[1])

    def scores(self, method: Method, batch: Any, forward: Forward) -> Tensor:
        """How much speaks for each task, ``[inputs, tasks]``: the log densities per dimension of all weights."""
        evidence = self._stored_evidence(method, batch, forward)
        return torch.stack([of_weight / self.weights[name].shape[2] for name, of_weight in evidence.items()]).sum(0)

    def is_new(self, method: Method, batch: Any) -> Tensor:
        """Whether each input is less likely under every task than almost all inputs of that task, ``[inputs]``."""
        evidence = self._stored_evidence(method, batch, method.forward)
        new = []
        for t, task in enumerate(self.tasks):
            parts = [(e[:, t] - task["mean"][name]) / task["std"][name] for name, e in evidence.items()]
            new.append(~(torch.stack(parts).sum(0) >= task["least"]))  # NaN is new to all
        return torch.stack(new).all(0)

    def state(self) -> dict[str, Any]:
        """Nested containers of tensors and numbers."""
        return {"scale": dict(self.scale), "tasks": list(self.tasks)}

    def load(self, state: Mapping[str, Any], learned: int) -> None:
        """The inverse of ``state``, of so many tasks learned."""
        if len(state["tasks"]) not in (0, learned):
            raise ForeignState(f"the state has evidence of {len(state['tasks'])} tasks, and {learned} were learned.")
        self.scale, self.tasks = dict(state["scale"]), list(state["tasks"])

    def _stored_evidence(self, method: Method, batch: Any, forward: Forward) -> dict[str, Tensor]:
        with _first_view(method):
            found = self._by_weight(method, [batch], self.scale, [task["factors"] for task in self.tasks], forward)
        if not found:
            raise _no_batch(
                f"{list(self.weights)} did not see one row or more of each of its {inputs_in(batch)} inputs"
            )
        return found

    def _scales(self, method: Method, batches: Sequence[Any]) -> dict[str, float]:
        moments = capture_moments(method.model, self.weights, batches, method.forward)
        energy = {
            name: float(sum(m.total for m in several)) / sum(m.count * m.dim for m in several)
            for name, several in moments.items()
        }
        return {name: e**0.5 or 1.0 for name, e in energy.items()}

    def _factors(self, method: Method, batches: Sequence[Any], scale: Mapping[str, float]) -> dict[str, list[Tensor]]:
        moments = capture_moments(method.model, self.weights, batches, method.forward)
        fitted = {n: [Conceptor.fit(m, APERTURE / scale[n]) for m in ms] for n, ms in moments.items() if n in scale}
        return {name: [C.factor.float() for C in several] for name, several in fitted.items()}

    def _by_weight(
        self,
        method: Method,
        batches: Sequence[Any],
        scale: Mapping[str, float],
        tasks: Sequence[Any],
        forward: Forward,
    ) -> dict[str, Tensor]:
        """The mean evidence of the rows of each input for each of ``tasks``, ``[inputs, tasks]`` by weight."""
        conceptors = [{n: [Conceptor(F.to(WORKING_DTYPE)) for F in Fs] for n, Fs in task.items()} for task in tasks]
        found: dict[str, list[Tensor]] = {}
        expected = sum(inputs_in(batch) or 1 for batch in batches)

        def add(weight: ProtectedWeight, kind: LayerKind, x: Any) -> None:
            name = weight.name
            if name not in scale or not all(name in task for task in conceptors):
                return
            for piece in kind.split(x):
                n, total = kind.inputs(piece), torch.zeros(())
                for i, rows in enumerate(kind.rows(piece)):
                    some = _spread_out(rows, n)
                    each = [log_density(task[name][i], APERTURE / scale[name], some) for task in conceptors]
                    total = total + torch.stack(each, 1).reshape(n, -1, len(each)).mean(1)
                found.setdefault(name, []).append(total)

        listen(method.model, self.weights, batches, add, forward)
        whole = {name: torch.cat(several) for name, several in found.items()}
        return {name: evidence for name, evidence in whole.items() if len(evidence) == expected}


@contextmanager
def _first_view(method: Method) -> Iterator[None]:
    """The shared weights, with the heads, norms and biases of the first task: the view that later tasks keep."""
    with method.per_task.showing(0), method.shared_weights():
        yield


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
        raise _no_batch(f"the outputs are not [inputs, classes] but {list(scores.shape[:-1])} and classes")
    if not bool(torch.isfinite(scores).all()):
        raise ValueError("the inputs, or what the network makes of them, hold NaN or infinite values: no task fits.")
    return scores


def task_outputs(method: Method, batch: Any, forward: Forward) -> list[Tensor]:
    """What the network of every learned task answers, ``[inputs, classes]`` each."""
    return [_output(method, batch, task, forward) for task in range(len(method.per_task.stored))]


def sureness(outputs: Sequence[Tensor]) -> Tensor:
    """The negative entropy of the output of every task, ``[inputs, tasks]``."""
    return torch.stack([-torch.special.entr(output.softmax(-1)).sum(-1) for output in outputs], -1)


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
    original = method.model.forward

    def call(model: nn.Module, batch: tuple[tuple[Any, ...], dict[str, Any]]) -> Any:
        return original(*batch[0], **batch[1])

    def forward(*args: Any, **kwargs: Any) -> Any:
        task = int(infer(method, (args, kwargs), together=True, forward=call)[0])
        with method.per_task.showing(task):
            return original(*args, **kwargs)

    restore = patch([(method.model, "forward", forward)])
    try:
        yield
    finally:
        restore()


@torch.no_grad()
def _output(method: Method, batch: Any, task: int, forward: Forward) -> Tensor:
    """What the network of the task at a position answers, in evaluation mode, ``[inputs, classes]``."""
    with method.per_task.showing(task), evaluating(method.model), untouched_randomness():
        output = forward(method.model, batch)
    return output if isinstance(output, Tensor) else output.logits


def _check_batch(batch: Any) -> None:
    """Refuse what the model cannot be called with, for the usual way of calling it."""
    if isinstance(batch, DataLoader) or (
        isinstance(batch, list) and batch and all(isinstance(one, (tuple, list, Mapping)) for one in batch)
    ):
        raise TypeError("one batch is expected; got several, as of a loader. Ask about each: for batch in loader: …")
    if batch is None or (isinstance(batch, (str, tuple, list)) and inputs_in(batch) is None):
        raise TypeError(f"a batch is a tensor of inputs, or a tuple or dict that begins with one; got {batch!r:.80}.")


def _no_batch(why: str) -> ValueError:
    return ValueError(f"this is no batch of inputs: {why}. A single input is a batch of one: x.unsqueeze(0).")


def _chosen(weights: Mapping[str, ProtectedWeight], patterns: str | Sequence[str]) -> dict[str, ProtectedWeight]:
    if not weights:
        raise ValueError("evidence: this method protects no weights, so nothing can be stored of their inputs.")
    if patterns == "auto":
        return dict(weights)
    wanted = [patterns] if isinstance(patterns, str) else list(patterns)
    chosen = {name: weight for name, weight in weights.items() if matching(name, wanted)}
    if not chosen:
        raise ValueError(f"evidence: {wanted} matches none of the weights {list(weights)}.")
    return chosen


def _split(batches: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """Most of the inputs, and the rest to try them on; nothing held out where there are too few."""
    inputs = sum(inputs_in(batch) or 0 for batch in batches)
    size = int(inputs * HELD_OUT)
    if size < 10:
        return list(batches), []
    pieces = list(rebatched(batches, size))
    return pieces[1:], pieces[:1]  # the first has its full size


def _spread_out(rows: Tensor, inputs: int) -> Tensor:
    """``POSITIONS`` of the rows of each input, evenly spread, or all where there are no more."""
    of_each = rows.reshape(inputs, -1, rows.shape[-1])
    count = of_each.shape[1]
    if count <= POSITIONS:
        return rows
    return of_each[:, (2 * torch.arange(POSITIONS) + 1) * count // (2 * POSITIONS)].flatten(0, 1)


def _spread(evidence: Tensor) -> Tensor:
    return evidence.std(unbiased=False).clamp(min=1e-12)


def _standardised(evidence: Tensor) -> Tensor:
    return (evidence - evidence.mean()) / _spread(evidence)

"""What is stored of the tasks to tell them apart, and how likely an input is under each.

After each task a conceptor of the inputs of each weight is kept. Seen as a Gaussian (``codecl.algebra.evidence``) it
says how likely an input is under that task; the log densities of all weights are added, each per dimension, so that
none speaks louder for being wide. Inputs are seen under the shared weights, with the heads, norms and biases of the
first task: one forward pass serves all tasks, and methods that protect the shared weights keep this view still.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from codecl.algebra import Conceptor
from codecl.algebra.evidence import log_density
from codecl.algebra.tolerances import WORKING_DTYPE
from codecl.attach import ProtectedWeight, capture_moments, listen
from codecl.attach.batches import Forward, inputs_in, rebatched, take
from codecl.layers import LayerKind
from codecl.method.settings import matching
from codecl.method.state import ForeignState

if TYPE_CHECKING:
    from codecl.method.method import Method

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
            raise no_batch(f"{list(self.weights)} did not see one row or more of each of its {inputs_in(batch)} inputs")
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
                    some = _some_rows(rows, n)
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


def no_batch(why: str) -> ValueError:
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


def _some_rows(rows: Tensor, inputs: int) -> Tensor:
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

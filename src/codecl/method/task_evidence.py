"""What is stored of the tasks to tell them apart, and how likely an input is under each.

After each task a conceptor of the inputs of each weight is kept. Seen as a Gaussian (``codecl.algebra.evidence``) it
says how likely an input is under that task; the log densities of all weights are added, each per dimension, so that
none speaks louder for being wide. Inputs are seen under the shared weights, with the heads, norms and biases of the
first task: one forward pass serves all tasks, and methods that protect the shared weights keep this view still.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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
from codecl.method.settings import check_patterns, matching
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
        if not own:
            raise self._none_sees()
        total = sum(_standardised(of_weight[:, 0]) for of_weight in own.values())
        return scale, {
            "factors": {name: stored[name] for name in own},
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
        return torch.stack([of_weight / self._dimensions(name) for name, of_weight in evidence.items()]).sum(0)

    def is_new(self, method: Method, batch: Any) -> Tensor:
        """Whether each input is less likely under every task than almost all inputs of that task, ``[inputs]``."""
        evidence = self._stored_evidence(method, batch, method.forward)
        new = []
        for t, task in enumerate(self.tasks):
            parts = [(e[:, t] - task["mean"][name]) / task["std"][name] for name, e in evidence.items()]
            new.append(~(torch.stack(parts).sum(0) >= task["least"]))  # NaN is new to all
        return torch.stack(new).all(0)

    def check(self, method: Method, batch: Any) -> None:
        """Refuse, before anything is learned, a network of which no weight tells the inputs of a batch apart."""
        if not self._per_input(method, batch, method.forward, lambda _, kind, x: torch.zeros(kind.inputs(x))):
            raise self._none_sees()

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
        known = [name for name in self.weights if name in scale and all(name in task for task in conceptors)]

        def judge(name: str, kind: LayerKind, x: Any) -> Tensor:
            n, total = kind.inputs(x), torch.zeros(())
            for i, rows in enumerate(kind.rows(x)):
                some = _some_rows(rows, n)
                each = [log_density(task[name][i], APERTURE / scale[name], some) for task in conceptors]
                total = total + torch.stack(each, 1).reshape(n, -1, len(each)).mean(1)
            return total

        found = [self._per_input(method, batch, forward, judge, known) for batch in batches]
        return {
            name: torch.cat([of_batch[name] for of_batch in found])
            for name in known
            if all(name in of_batch for of_batch in found)
        }

    def _per_input(
        self,
        method: Method,
        batch: Any,
        forward: Forward,
        judge: Callable[[str, LayerKind, Any], Tensor],
        names: Iterable[str] | None = None,
    ) -> dict[str, Tensor]:
        """What ``judge`` finds in each input of a batch, by weight, the mean over the weight's calls.

        A weight that is called with anything but the inputs of the batch, one by one, is left out.
        """
        wanted = self.weights if names is None else {name: self.weights[name] for name in names}
        calls: dict[str, list[Tensor]] = {}

        def add(weight: ProtectedWeight, kind: LayerKind, x: Any) -> None:
            of_call = torch.cat([judge(weight.name, kind, piece) for piece in kind.split(x)])
            calls.setdefault(weight.name, []).append(of_call)

        listen(method.model, wanted, [batch], add, forward)
        n = inputs_in(batch) or 1
        return {name: torch.stack(c).mean(0) for name, c in calls.items() if all(len(one) == n for one in c)}

    def _dimensions(self, name: str) -> int:
        """Of all inputs of a weight, those of its ``g`` matrices together."""
        g, _, d = self.weights[name].shape
        return g * d

    def _none_sees(self) -> ValueError:
        return ValueError(
            f"evidence: none of {list(self.weights)} is called with the inputs of a batch one by one, so that nothing "
            "tells them apart. Give evidence= the names of other weights, or leave it out."
        )


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
    check_patterns("evidence", wanted, weights)
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

"""The state of a method: what is saved, what is refused on loading, and its size."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from codecl.attach.shards import here, whole
from codecl.method.fingerprint import differing, fingerprints

if TYPE_CHECKING:
    from codecl.method.method import Method
    from codecl.method.replicas import Replicas

Shapes = Mapping[str, list[int]]

FORMAT = 2
FIELDS = {"format", "method", "weights", "tasks", "learning", "per_task", "effective", "memory", "notes"}


class ForeignState(ValueError):
    """A state that does not belong to this method on this model."""


def whole_state(method: Method) -> dict[str, Any]:
    """Everything but the model's own parameters."""
    model = {} if method.replicas.sharded else {"model": fingerprints(method.weights.values())}
    return {
        "format": FORMAT,
        "method": method.name,
        "weights": _weights(method),
        **model,
        "tasks": list(method.tasks),
        "learning": method.is_learning,
        "per_task": [dict(values) for values in method.per_task.stored],
        "effective": [{name: e.state() for name, e in task.items()} for task in method.per_task.effective],
        "memory": method.memory_state(),
        "notes": {name: dict(facts) for name, facts in method.notes.items()},
    } | ({} if method.evidence is None else {"evidence": method.evidence.state()})


def state_within_task(method: Method, replay: bool) -> dict[str, Any]:
    """What changes while a task is learned, with or without the samples kept for replay."""
    keys = ("task", "replay") if replay else ("task",)
    memory = {key: value for key, value in method.memory_state().items() if key in keys}
    learned = [whole(parameter).clone() for parameter in method.parameters()]
    return {"within_task": True, "parameters": learned, "memory": memory}


def check_finite(model: nn.Module, replicas: Replicas, so: str) -> None:
    """Refuse to begin or remember a task with a network that diverged; ``so`` says what does not happen."""
    learned = {name: here(value) for name, value in model.named_parameters() if value.requires_grad}
    for name in replicas.union(name for name, value in learned.items() if not _all_finite(value)):
        raise ValueError(
            f"'{name}' holds NaN or infinite values: {so}. Find where the network diverged "
            "(a learning rate too high, a division by zero), and put back weights from before."
        )


def check_state(state: Any, method: Method) -> None:
    """Refuse a state of another version, method or model, and say what differs."""
    if not isinstance(state, Mapping) or "format" not in state:
        raise ForeignState(
            "this is not the state of a codecl method: it has no 'format'. Pass what method.state_dict() returned."
        )
    if state["format"] != FORMAT:
        raise ForeignState(f"the state has format {state['format']}; this version of codecl reads format {FORMAT}.")
    if missing := FIELDS - state.keys():
        raise ForeignState(f"the state is incomplete: it lacks {sorted(missing)}.")
    if state["method"] != method.name:
        raise ForeignState(f"the state is of method {state['method']!r}, this one is {method.name!r}.")
    if (method.evidence is None) != ("evidence" not in state):
        has, made = ("no", "with") if method.evidence is not None else ("the", "without")
        raise ForeignState(
            f"the state holds {has} evidence that tells its tasks apart, and this method was made {made} evidence=: "
            f"make it {'without' if made == 'with' else 'with'}."
        )
    if not _is_finite([state["per_task"], state["effective"]]):
        raise ForeignState("the state holds NaN or infinite values among the heads, norms and weights of its tasks.")
    _check_shapes("the state is of another model ([g, o, d] of weights)", _weights(method), state["weights"])
    begun, learned = len(state["tasks"]), len(state["tasks"]) - bool(state["learning"])
    if len(state["effective"]) != begun or len(state["per_task"]) != learned:
        raise ForeignState(
            f"the state is incomplete: it names {begun} tasks, {learned} of them learned, but holds the effective "
            f"weights of {len(state['effective'])} and the heads, norms and biases of {len(state['per_task'])}."
        )
    per_task = {name: list(value.shape) for name, value in method.per_task.values().items()}
    for task, values in zip(state["tasks"], state["per_task"], strict=False):
        theirs = {name: list(value.shape) for name, value in values.items()}
        _check_shapes(f"task {task!r} of the state has other heads, norms or biases of its own", per_task, theirs)


def check_same_model(state: Mapping[str, Any], method: Method) -> None:
    """Refuse a model that does not hold the weights that ``state`` was taken with, where any task has been learned."""
    if method.replicas.sharded or not (state["tasks"] and method.protects):
        return
    apart = differing(fingerprints(method.weights.values()), state.get("model", {}))
    if apart:
        name = max(apart, key=lambda name: apart[name])
        raise ForeignState(
            f"the model does not hold the weights that this state was taken with: '{name}' differs by "
            f"{apart[name]:.0%} of its norm. Load the model's own state first, model.load_state_dict(...), and the "
            "state of the method after it."
        )


def check_directions(name: str, shape: tuple[int, int, int], directions: Sequence[Tensor]) -> None:
    """Refuse ``directions``, ``g`` of ``[d, k]``, that cannot be of the weight ``name``, ``[g, o, d]``."""
    g, _, d = shape
    found = [U.shape[0] for U in directions]
    if found != [d] * g:
        raise ForeignState(f"'{name}' has directions of {found} inputs in the state, and of {[d] * g} here.")


def _weights(method: Method) -> dict[str, list[int]]:
    return {name: list(weight.shape) for name, weight in method.weights.items()}


def _check_shapes(what: str, here: Shapes, theirs: Shapes) -> None:
    differences = [
        f"'{name}' is {here.get(name, 'absent')} here and {theirs.get(name, 'absent')} in the state"
        for name in sorted(here.keys() | theirs.keys())
        if here.get(name) != theirs.get(name)
    ]
    if differences:
        more = f"; and {len(differences) - 6} more" if len(differences) > 6 else ""
        raise ForeignState(f"{what}: {'; '.join(differences[:6])}{more}.")


def _is_finite(state: Any) -> bool:
    """Whether all tensors in nested containers are."""
    if isinstance(state, Tensor):
        return _all_finite(state)
    values = state.values() if isinstance(state, Mapping) else state if isinstance(state, (list, tuple)) else ()
    return all(_is_finite(value) for value in values)


def size(state: Any) -> int:
    """The bytes of all tensors in nested containers."""
    if isinstance(state, Tensor):
        return state.numel() * state.element_size()
    if isinstance(state, Mapping):
        return sum(size(value) for value in state.values())
    return sum(size(value) for value in state) if isinstance(state, (list, tuple)) else 0


def _all_finite(x: Tensor) -> bool:
    """By the extremes, which take NaN along: one pass, and nothing of the size of ``x`` is made."""
    return x.numel() == 0 or x.dtype == torch.bool or all(map(math.isfinite, torch.aminmax(x)))

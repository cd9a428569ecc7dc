"""Reading the state of a method: what is refused, and what it weighs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

FORMAT = 1
FIELDS = {"format", "method", "weights", "tasks", "open", "own", "changes", "memory"}


class ForeignState(ValueError):
    """A state that does not belong to this method on this model."""


def check_state(state: Any, method: str, weights: Mapping[str, list[int]]) -> None:
    """Refuse a state of another version, method or model, and say what differs."""
    if not isinstance(state, Mapping) or "format" not in state:
        raise ForeignState(
            "this is not the state of a codecl method: it has no 'format'. Pass what method.state_dict() returned."
        )
    if state["format"] != FORMAT:
        raise ForeignState(f"the state has format {state['format']}; this version of codecl reads format {FORMAT}.")
    if missing := FIELDS - state.keys():
        raise ForeignState(f"the state is incomplete: it lacks {sorted(missing)}.")
    if state["method"] != method:
        raise ForeignState(f"the state is of method {state['method']!r}, this one is {method!r}.")
    theirs = state["weights"]
    differences = [
        f"'{name}' is {weights.get(name, 'absent')} here and {theirs.get(name, 'absent')} in the state"
        for name in sorted(weights.keys() | theirs.keys())
        if weights.get(name) != theirs.get(name)
    ]
    if differences:
        more = f"; and {len(differences) - 6} more" if len(differences) > 6 else ""
        raise ForeignState(f"the state is of another model ([g, o, d] of weights): {'; '.join(differences[:6])}{more}.")


def size(state: Any) -> int:
    """The bytes of all tensors in nested containers."""
    if isinstance(state, Tensor):
        return state.numel() * state.element_size()
    if isinstance(state, Mapping):
        return sum(size(value) for value in state.values())
    return sum(size(value) for value in state) if isinstance(state, (list, tuple)) else 0

"""Capturing what a model feeds its protected weights.

Capturing runs in evaluation mode without gradients, and leaves train/eval flags and all random states as they were.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from codecl.algebra import Moments
from codecl.attach.batches import Forward, call_with_first
from codecl.attach.forward import AttachedForward
from codecl.attach.patching import evaluating, in_mode, untouched_buffers
from codecl.attach.shards import is_sharded
from codecl.attach.weight import Listener, ProtectedWeight
from codecl.layers.base import LayerKind, is_registered
from codecl.layers.traced import tensors_in
from codecl.randomness import untouched_randomness


class UnseenUse(ValueError):
    """A protected weight is used in a way that the rows do not describe."""


@contextmanager
def listening(weights: Iterable[ProtectedWeight], listener: Listener) -> Iterator[None]:
    """``listener`` is told of every call of a module that uses one of ``weights``, beside those that listen already."""
    told = list(weights)
    for weight in told:
        weight.listeners.append(listener)
    try:
        yield
    finally:
        for weight in told:
            weight.listeners.remove(listener)


def listen(
    model: nn.Module,
    weights: Mapping[str, ProtectedWeight],
    batches: Iterable[Any],
    listener: Listener,
    forward: Forward = call_with_first,
) -> None:
    """Run ``batches`` through ``model``, while ``listener`` is told of every call that uses one of ``weights``.

    They are read one at a time, and the reading is not listened to: it may use the model itself.
    """
    every = weights.values()
    with untouched_randomness():
        for batch in batches:
            with evaluating(model), torch.no_grad(), _NoOtherUse(every), listening(every, listener):
                forward(model, batch)


def check_uses(
    model: nn.Module, weights: Mapping[str, ProtectedWeight], batches: Sequence[Any], forward: Forward
) -> None:
    """Refuse a model that uses one of ``weights`` where its inputs cannot be captured, in evaluation or in training.

    Flags, buffers and random states stay as they were.
    """

    def see(weight: ProtectedWeight, kind: LayerKind, x: Any) -> None:
        weight.stack(kind.value)  # shards of which narrow copies are gathered are refused here
        _check_rows_describe_output(kind, x)

    listen(model, weights, batches, see, forward)
    training = in_mode(model, training=True)
    with training, untouched_buffers(model), torch.no_grad(), untouched_randomness(), _NoOtherUse(weights.values()):
        for batch in batches:
            try:
                forward(model, batch)
            except UnseenUse:
                raise
            except Exception:  # the model's own, as of a batch norm on one input: training will say so
                return


def moments_in_pieces(weight: ProtectedWeight, kind: LayerKind, x: Any) -> Iterator[list[Moments]]:
    """The moments of the rows of one call, piece by piece."""
    for piece in kind.split(x):
        yield kind.moments(piece)


def capture_moments(
    model: nn.Module,
    weights: Mapping[str, ProtectedWeight],
    batches: Iterable[Any],
    forward: Forward = call_with_first,
    moments: Callable[[ProtectedWeight, LayerKind, Any], Iterable[list[Moments]]] = moments_in_pieces,
) -> dict[str, list[Moments]]:
    """The moments of the rows of each weight, one for each of its ``g`` matrices; a weight never called is left out.

    ``moments`` says what is captured of a call, piece by piece.
    """
    seen: dict[str, list[Moments]] = {}
    checked: set[nn.Module] = set()

    def add(weight: ProtectedWeight, kind: LayerKind, x: Any) -> None:
        try:
            with torch._C.DisableTorchFunction():  # no use of the model: ``_NoOtherUse`` need not look at every product
                for new in moments(weight, kind, x):
                    if new:
                        weight.rows_seen += sum(of_matrix.count for of_matrix in new)
                        past = seen.get(weight.name)
                        seen[weight.name] = new if past is None else [a + b for a, b in zip(past, new, strict=True)]
        except ValueError as error:
            raise ValueError(f"'{weight.name}': {error}") from None
        if kind.module not in checked:
            _check_rows_describe_output(kind, x)
            checked.add(kind.module)

    listen(model, weights, batches, add, forward)
    return seen


def _check_rows_describe_output(kind: LayerKind, x: Any) -> None:
    """A subclass with a forward of its own must still compute ``rows · matrixᵀ + bias``, in whatever order."""
    forward = vars(kind.module).get("forward")
    assert isinstance(forward, AttachedForward)
    if not (forward.standard and is_registered(type(kind.module))) and not kind.describes(x, forward.repeat):
        raise UnseenUse(
            f"'{kind.module_name}' is {type(kind.module).__name__}, whose forward is not the weight times its rows. "
            "Register a kind for this type (codecl.layers.register) or name the layer in skip=[…]."
        )


_ALIASING = (Tensor.detach, Tensor.data.__get__)  # type: ignore[attr-defined]


class _NoOtherUse(TorchFunctionMode):
    """Notices a protected parameter used outside the modules that are known to use it, where no rows are seen."""

    def __init__(self, weights: Iterable[ProtectedWeight]) -> None:
        super().__init__()
        self.watched = {id(weight.parameter): weight for weight in weights}
        self.sharded = [weight for weight in self.watched.values() if is_sharded(weight.parameter)]
        self.aliases: list[Tensor] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        name = getattr(func, "__name__", str(func))
        if func in _ALIASING:  # the same weight under another id, as in state_dict()
            if (weight := self.watched.get(id(args[0]))) is not None:
                self.watched[id(result)] = weight
                self.aliases.append(result)
            return result
        for argument in tensors_in(_valued(name, args), kwargs):
            weight = self.watched.get(id(argument)) or self._gathered(argument)
            if weight is None or any(side.calls for side in weight.sides):
                continue
            if any(r is not argument.grad and r is not argument for r in tensors_in(result)):
                raise UnseenUse(
                    f"'{weight.name}' is used by {name} outside a call of "
                    f"'{weight.kind.module_name}', where its inputs cannot be captured. "
                    "Call the module instead of using its weight, or name it in skip=[…]."
                )
        return result

    def _gathered(self, argument: Tensor) -> ProtectedWeight | None:
        """The weight of which ``argument`` is all: it stands where the shard did while its module runs."""
        if not isinstance(argument, nn.Parameter):
            return None
        return next((w for w in self.sharded if any(use.value is argument for use in w.uses)), None)


def _valued(name: str, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """The arguments whose values matter, not only their dtype and device."""
    if name.startswith("new") or name.endswith("_like"):
        return ()
    return args[:1] if name in ("to", "type_as") else args

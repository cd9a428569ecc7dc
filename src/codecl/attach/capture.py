"""Seeing what a model feeds its protected weights: batches in, rows out, nothing left behind.

Capturing runs in evaluation mode without gradients, and leaves train/eval flags and all random states as they were.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from codecl.algebra import Moments
from codecl.attach.preserve import evaluating
from codecl.attach.weight import AttachedForward, Listener, ProtectedWeight, Use
from codecl.layers.base import is_registered
from codecl.randomness import untouched_randomness

Forward = Callable[[nn.Module, Any], Any]


class UnseenUse(ValueError):
    """A protected weight is used in a way that the rows do not describe."""


def call_with_first(model: nn.Module, batch: Any) -> Any:
    """How a batch becomes a call unless ``forward=`` says otherwise: keywords for a dict, else its first element."""
    if isinstance(batch, Mapping):
        return model(**{key: _to_device(model, value) for key, value in batch.items()})
    return model(_to_device(model, batch[0] if isinstance(batch, (tuple, list)) else batch))


def take(loader: Iterable[Any] | None, samples: int | None) -> list[Any]:
    """Whole batches from ``loader`` until ``samples`` inputs are there; all of them if None."""
    with untouched_randomness():
        return list(taking(loader, samples))


def taking(loader: Iterable[Any] | None, samples: int | None) -> Iterator[Any]:
    """The same, one batch at a time: as many as there are need not fit into memory."""
    if loader is None or isinstance(loader, (str, bytes)) or not isinstance(loader, Iterable):
        raise TypeError(f"a loader is any iterable of batches; got {loader!r}. Pass the task's training data.")
    count = 0
    for batch in loader:
        inputs = inputs_in(batch)
        count += 1 if inputs is None else inputs
        yield batch
        if samples is not None and count >= samples:
            return
    if count == 0:
        raise ValueError(
            "the loader yielded no inputs. If it is a generator, it was used up before: pass a list or DataLoader."
        )


def listen(
    model: nn.Module,
    weights: Mapping[str, ProtectedWeight],
    batches: Sequence[Any],
    listener: Callable[[ProtectedWeight, Use, tuple[Any, ...], dict[str, Any]], None],
    forward: Forward = call_with_first,
) -> None:
    """Run ``batches`` through ``model``; ``listener`` sees every call of a module that uses one of ``weights``."""
    with evaluating(model), torch.no_grad(), untouched_randomness(), _NoOtherUse(weights.values()):
        before = {weight: weight.listener for weight in weights.values()}
        for weight in before:
            weight.listener = _bind(listener, weight)
        try:
            for batch in batches:
                forward(model, batch)
        finally:
            for weight, earlier in before.items():
                weight.listener = earlier


def capture_moments(
    model: nn.Module,
    weights: Mapping[str, ProtectedWeight],
    batches: Sequence[Any],
    forward: Forward = call_with_first,
    moments: Callable[[Use, tuple[Any, ...], dict[str, Any]], Iterable[list[Moments]]] = Use.moments,
) -> dict[str, list[Moments]]:
    """The moments of the rows of each weight, one for each of its ``g`` matrices; a weight never called is left out.

    ``moments`` says what is seen of a call, part by part.
    """
    seen: dict[str, list[Moments]] = {}
    checked: set[nn.Module] = set()

    def add(weight: ProtectedWeight, use: Use, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        try:
            for new in moments(use, args, kwargs):
                if new:
                    weight.rows_seen += sum(of_matrix.count for of_matrix in new)
                    earlier = seen.get(weight.name)
                    seen[weight.name] = new if earlier is None else [a + b for a, b in zip(earlier, new, strict=True)]
        except ValueError as error:
            raise ValueError(f"'{weight.name}': {error}") from None
        if use.module not in checked:
            _check_rows_describe_output(use, args, kwargs)
            checked.add(use.module)

    listen(model, weights, batches, add, forward)
    return seen


def _bind(listener: Callable[..., None], weight: ProtectedWeight) -> Listener:
    return lambda use, args, kwargs: listener(weight, use, args, kwargs)


def _check_rows_describe_output(use: Use, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """A subclass with a forward of its own must still compute ``rows · matrixᵀ + bias``, in whatever order."""
    forward = vars(use.module).get("forward")
    assert isinstance(forward, AttachedForward)
    if forward.standard and is_registered(type(use.module)):
        return
    expected = use.kind.expected(use.module, use.attribute, *args, **kwargs).flatten().sort().values
    if len(expected) == 0:
        return
    output = use.kind.output(forward.original(*args, **kwargs))
    if (
        not isinstance(output, Tensor)
        or output.numel() != len(expected)
        or not torch.allclose(
            output.flatten().sort().values, expected, rtol=1e-2, atol=1e-3 * float(expected.abs().max())
        )
    ):
        raise UnseenUse(
            f"'{use.module_name}' is {type(use.module).__name__}, whose forward is not the weight times its rows. "
            "Register a kind for this type (codecl.layers.register) or name the layer in skip=[…]."
        )


_ALIASING = (Tensor.detach, Tensor.data.__get__)  # type: ignore[attr-defined]


class _NoOtherUse(TorchFunctionMode):
    """Notices a protected parameter used outside the modules that are known to use it, where no rows are seen."""

    def __init__(self, weights: Iterable[ProtectedWeight]) -> None:
        super().__init__()
        self.watched = {id(weight.parameter): weight for weight in weights}
        self.aliases: list[Tensor] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        name = getattr(func, "__name__", str(func))
        if func in _ALIASING:  # the same weight under another id, as in state_dict()
            if (weight := self.watched.get(id(args[0]))) is not None:
                self.watched[id(result)] = weight
                self.aliases.append(result)
            return result
        for argument in _tensors_in(_valued(name, args), kwargs):
            weight = self.watched.get(id(argument))
            if weight is not None and weight.calls == 0 and any(r is not argument.grad for r in _tensors_in(result)):
                raise UnseenUse(
                    f"'{weight.name}' is used by {name} outside a call of "
                    f"'{weight.uses[0].module_name}', where its inputs cannot be captured. "
                    "Call the module instead of using its weight, or name it in skip=[…]."
                )
        return result


def _valued(name: str, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """The arguments whose values matter, not only their dtype and device."""
    if name.startswith("new") or name.endswith("_like"):
        return ()
    return args[:1] if name in ("to", "type_as") else args


def _tensors_in(*values: Any) -> Iterator[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, (tuple, list)):
            yield from _tensors_in(*value)
        elif isinstance(value, dict):
            yield from _tensors_in(*value.values())


def _to_device(model: nn.Module, value: Any) -> Any:
    parameter = next(model.parameters(), None)
    return value.to(parameter.device) if isinstance(value, Tensor) and parameter is not None else value


def inputs_in(batch: Any) -> int | None:
    """The leading dimension of the first tensor in the batch; None where only ``forward`` knows what is in it."""
    if isinstance(batch, Tensor):
        return batch.shape[0] if batch.ndim else 1
    values = batch.values() if isinstance(batch, Mapping) else batch if isinstance(batch, (tuple, list)) else ()
    return next((n for value in values if (n := inputs_in(value)) is not None), None)

"""Batches, whatever containers they come in: how one becomes a call, how many inputs it has, and other batch sizes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from codecl.randomness import untouched_randomness

Forward = Callable[[nn.Module, Any], Any]
"""How a batch becomes a call of the model."""


def call_with_first(model: nn.Module, batch: Any) -> Any:
    """How a batch becomes a call unless ``forward=`` says otherwise: keywords for a dict, else its first element."""
    if isinstance(batch, Mapping):
        return model(**{key: _to_device(model, value) for key, value in batch.items()})
    return model(_to_device(model, batch[0] if isinstance(batch, (tuple, list)) else batch))


def _to_device(model: nn.Module, value: Any) -> Any:
    parameter = next(model.parameters(), None)
    return value.to(parameter.device) if isinstance(value, Tensor) and parameter is not None else value


def inputs_in(batch: Any) -> int | None:
    """The leading dimension of the first tensor in the batch; None where only ``forward`` knows what is in it."""
    if isinstance(batch, Tensor):
        return batch.shape[0] if batch.ndim else 1
    values = batch.values() if isinstance(batch, Mapping) else batch if isinstance(batch, (tuple, list)) else ()
    return next((n for value in values if (n := inputs_in(value)) is not None), None)


def take(loader: Iterable[Any] | None, samples: int | None) -> list[Any]:
    """Whole batches from ``loader`` until ``samples`` inputs are there; all of them if None."""
    with untouched_randomness():
        return list(taking(loader, samples))


def peek(loader: Iterable[Any] | None) -> list[Any]:
    """The first batch of ``loader``, whose generators stay where they are; none of what is read only once."""
    if loader is None or isinstance(loader, Iterator):
        return []
    own = [getattr(part, "generator", None) for part in (loader, getattr(loader, "sampler", None))]
    states = [(generator, generator.get_state()) for generator in own if isinstance(generator, torch.Generator)]
    try:
        return take(loader, 1)
    finally:
        for generator, state in states:
            generator.set_state(state)


def taking(loader: Iterable[Any] | None, samples: int | None) -> Iterator[Any]:
    """The same, one batch at a time, so that all of them need not fit into memory."""
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


def rebatched(batches: Iterable[Any], size: int) -> Iterator[Any]:
    """The same inputs in the same order, ``size`` at a time.

    What is left of a batch joins the next if the two fit together; texts that are padded batch by batch do not. A
    single input that is left over at the end joins the last batch, since norms with batch statistics cannot do with
    one. A batch that only the user's ``forward`` understands passes as it is.
    """
    most = size + 1 if size > 1 else 1
    waiting: Any = None
    for batch in batches:
        if inputs_in(batch) is None:
            yield batch
            continue
        if waiting is not None and not _fit(waiting, batch, _count(waiting), _count(batch)):
            yield waiting
            waiting = None
        waiting = batch if waiting is None else _joined(waiting, batch, _count(waiting))
        while (n := _count(waiting)) > most:
            yield _cut(waiting, n, slice(size))
            waiting = _cut(waiting, n, slice(size, None))
    if waiting is not None:
        yield waiting


def length(loader: Iterable[Any]) -> int | None:
    """How many batches ``loader`` has, if it says so; a DataLoader over an iterable dataset cannot."""
    try:
        return len(loader)  # type: ignore[arg-type]
    except (TypeError, NotImplementedError):
        return None


def inputs_of(loader: Iterable[Any]) -> int | None:
    """How many inputs ``loader`` has, if it or its dataset says so."""
    inputs = getattr(loader, "inputs", None)
    return inputs if isinstance(inputs, int) else length(getattr(loader, "dataset", ()) or ()) or None


def _count(batch: Any) -> int:
    return inputs_in(batch) or 0


def _is_row_by_row(value: Any, n: int) -> bool:
    """Whether ``value`` has something for each of ``n`` inputs: a tensor, or a list without tensors."""
    if isinstance(value, Tensor):
        return value.ndim > 0 and len(value) == n
    return isinstance(value, (tuple, list)) and inputs_in(value) is None and len(value) == n


def _fit(a: Any, b: Any, n_a: int, n_b: int) -> bool:
    """Whether the inputs of two batches can be put one after the other, and all else in them is the same."""
    if _is_row_by_row(a, n_a) and _is_row_by_row(b, n_b):
        if isinstance(a, Tensor) and isinstance(b, Tensor):
            return (a.shape[1:], a.dtype, a.device) == (b.shape[1:], b.dtype, b.device)
        return type(a) is type(b)
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return torch.equal(a, b)
    if type(a) is not type(b):
        return False
    if isinstance(a, Mapping):
        return a.keys() == b.keys() and all(_fit(a[key], b[key], n_a, n_b) for key in a)
    if isinstance(a, (tuple, list)):
        return len(a) == len(b) and all(_fit(one, other, n_a, n_b) for one, other in zip(a, b, strict=True))
    return bool(a == b)


def _joined(a: Any, b: Any, n: int) -> Any:
    """The ``n`` inputs of ``a``, then those of ``b``."""
    if _is_row_by_row(a, n):
        return torch.cat([a, b]) if isinstance(a, Tensor) else a + b
    return _mapped(lambda one, other: _joined(one, other, n), a, b)


def _cut(batch: Any, n: int, some: slice) -> Any:
    """Some of the ``n`` inputs of ``batch``; what does not belong to single inputs stays as it is."""
    return batch[some] if _is_row_by_row(batch, n) else _mapped(lambda value: _cut(value, n, some), batch)


def _mapped(function: Callable[..., Any], *batches: Any) -> Any:
    """``function`` of what is at the same place in all ``batches``, in the container of the first."""
    first = batches[0]
    if isinstance(first, Mapping):
        return {key: function(*(batch[key] for batch in batches)) for key in first}
    if isinstance(first, (tuple, list)):
        made = [function(*values) for values in zip(*batches, strict=True)]
        return type(first)(*made) if hasattr(first, "_fields") else tuple(made) if isinstance(first, tuple) else made
    return first

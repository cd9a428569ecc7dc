"""The forward that stands in for a module's while a method is attached.

Nothing is planted on parameters and no module is replaced: an attached module has a ``forward`` of its own in its
instance dictionary, so ``state_dict()``, hooks and parameters are those of the bare model. Detaching restores the
dictionary.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from codecl.attach.patching import fusing_off, patch
from codecl.attach.projection import is_narrow, projected_linear, projected_weight, unrounded
from codecl.attach.weight import ProtectedWeight
from codecl.layers.base import LayerKind, runs_registered_forward

Uses = Sequence[tuple[ProtectedWeight, LayerKind]]
"""The weights of one module, each with how the module uses it."""


class AttachedForward:
    """``module.forward`` while a method is attached: the module's own forward on effective, projected weights."""

    def __init__(self, module: nn.Module, uses: Uses) -> None:
        self.uses = list(uses)
        self.original: Callable[..., Any] = module.forward
        self.standard = runs_registered_forward(module)
        """Whether ``original`` is the forward of the registered class."""
        self._pointwise = self.standard and len(self.uses) == 1 and self.uses[0][1].pointwise
        self._arguments: tuple[tuple[Any, ...], dict[str, Any]] | None = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        # Excluded from torch.compile, if a compiler has been imported: it changes with every task.
        run = _uncompiled() if "torch._dynamo" in sys.modules else AttachedForward._run
        return run(self, *args, **kwargs)

    def repeat(self) -> Any:
        """What the original forward returns for the call under way, on the weights of this call."""
        assert self._arguments is not None
        args, kwargs = self._arguments
        return self.original(*args, **kwargs)

    def _run(self, *args: Any, **kwargs: Any) -> Any:
        if self._arguments is not None:  # a forward that calls its own module: the effective weights are in place
            return self.original(*args, **kwargs)
        with self._under_way(args, kwargs):
            if self._pointwise and len(args) == 1 and not kwargs:
                ((weight, kind),) = self.uses
                if _is_changed(weight) and _cheaper_on_inputs(weight, args[0]):
                    self._tell(args, kwargs)
                    return _on_inputs(weight, kind, args[0])
            with self._effective_weights():
                self._tell(args, kwargs)
                return self.original(*args, **kwargs)

    def _tell(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Tell the listeners of the call, while the module has the effective weights."""
        for weight, kind in self.uses:
            if weight.listeners:
                x = kind.call(args, kwargs)
                for listener in list(weight.listeners):
                    listener(weight, kind, x)

    @contextmanager
    def _effective_weights(self) -> Iterator[None]:
        """Each weight of the module is replaced by its effective value, with its gradient projected."""
        before: list[tuple[Any, Any, Any]] = []
        try:
            for weight, kind in self.uses:
                if not _is_changed(weight):
                    continue
                value = kind.value
                for twin in weight.twins:
                    value = twin.kind.parameter(_learned(twin, twin.matrices(value)))
                W = _learned(weight, weight.stack(value))
                with unrounded(W):
                    W = weight.seen(W)
                for container, key, value in kind.places(kind.parameter(W)):
                    before.append((container, key, container[key]))
                    container[key] = value
            yield
        finally:
            for container, key, value in reversed(before):
                container[key] = value

    @contextmanager
    def _under_way(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[None]:
        self._arguments = args, kwargs
        for weight, _ in self.uses:
            weight.settle()
            weight.calls += 1
        try:
            yield
        finally:
            self._arguments = None
            for weight, _ in self.uses:
                weight.calls -= 1


_UNCOMPILED: list[Callable[..., Any]] = []


def _uncompiled() -> Callable[..., Any]:
    """Made once, by hand: of a ``functools.cache`` the compiler warns."""
    if not _UNCOMPILED:
        _UNCOMPILED.append(torch.compiler.disable(AttachedForward._run))  # type: ignore[no-untyped-call]
    return _UNCOMPILED[0]


def _is_changed(weight: ProtectedWeight) -> bool:
    """Whether the module's own forward on its own parameter would not do."""
    return weight.change is not None or any(side.learns_projected for side in weight.sides)


def _learned(weight: ProtectedWeight, W: Tensor) -> Tensor:
    """``W``, whose gradient arrives projected if it is to be."""
    projection = weight.gradient_projection
    return W if projection is None else projected_weight(W, projection, weight.deliver)


def _cheaper_on_inputs(weight: ProtectedWeight, x: Any) -> bool:
    """Fewer rows than outputs, of the dtype of the weight, or of any that autocast would give both."""
    if not isinstance(x, Tensor) or not x.is_floating_point():
        return False
    if x.dtype != weight.parameter.dtype and not torch.is_autocast_enabled(x.device.type):
        return False
    if weight.twins or (weight.change is not None and not weight.change.on_inputs):
        return False
    if weight.projection is not None and not weight.projection.on_inputs:
        return False
    if is_narrow(weight.parameter):
        return False
    _, o, d = weight.shape
    return x.numel() <= o * d


def _on_inputs(weight: ProtectedWeight, kind: LayerKind, x: Tensor) -> Tensor:
    """``W`` on changed rows, its gradient from projected rows."""
    W = weight.stack(kind.value).squeeze(0)  # indexing would copy the gradient
    rows = x.reshape(-1, x.shape[-1]).to(W.dtype)  # what is projected must not be rounded afterwards
    with unrounded(rows):
        X, more = weight.rows(rows), weight.change.outputs(rows) if weight.change is not None else None
    if (projection := weight.gradient_projection) is not None:
        Y = projected_linear(X, W, kind.bias, projection, weight.deliver)
    else:
        Y = nn.functional.linear(X, W, kind.bias)
    Y = Y if more is None else Y + more.to(Y.dtype)
    return Y.reshape(*x.shape[:-1], Y.shape[-1])


def _is_attached(module: nn.Module) -> bool:
    return isinstance(vars(module).get("forward"), AttachedForward)


def attach(
    model: nn.Module, weights: Mapping[str, ProtectedWeight], **attributes: Callable[..., Any]
) -> Callable[[], None]:
    """Give every module of ``model`` that uses one of ``weights`` its attached forward, and the model ``attributes``.

    Returns:
        A function that restores the model.
    """
    if taken := [kind.module_name for w in weights.values() for kind in w.uses if _is_attached(kind.module)]:
        raise RuntimeError(
            f"another method is attached to this model, or to the one it was copied from (at '{taken[0]}'): "
            "call its detach() first, or copy with export(task)."
        )
    used: dict[nn.Module, list[tuple[ProtectedWeight, LayerKind]]] = {}
    for weight in weights.values():
        for kind in weight.uses:
            used.setdefault(kind.module, []).append((weight, kind))
    forwards = ((module, "forward", AttachedForward(module, uses)) for module, uses in used.items())
    own = ((model, name, value) for name, value in attributes.items())
    return patch([*forwards, *fusing_off(model, used), *own])

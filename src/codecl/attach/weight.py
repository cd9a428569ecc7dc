"""A protected weight while a method is attached, and the forward that stands in for its module's.

Nothing is planted on parameters and no module is replaced: an attached module has a ``forward`` of its own in its
instance dictionary, so ``state_dict()``, hooks and parameters are those of the bare model. Leaving restores the
dictionary.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from codecl.algebra import Moments
from codecl.attach.effective import Change
from codecl.attach.fused import unfuse
from codecl.attach.patching import patch_forwards
from codecl.attach.projection import Projection, projected_linear, projected_weight, unrounded
from codecl.layers.base import LayerKind, held, place_of, runs_registered_forward

Listener = Callable[["Use", tuple[Any, ...], dict[str, Any]], None]


@dataclass(eq=False)
class ProtectedWeight:
    """One parameter, all modules that use it, and what its gradient and its value pass through."""

    name: str
    parameter: nn.Parameter
    uses: list[Use]
    projection: Projection | None = None
    change: Change | None = None
    projects_gradient: bool = True
    """False while a guarded optimizer projects the update in place of the gradient."""
    listener: Listener | None = None
    rows_seen: int = field(default=0, init=False)
    """How many rows have been captured so far; none means that no call of its modules was seen."""
    calls: int = field(default=0, init=False)
    """How many calls of its modules are under way: outside of one, nothing may use the parameter."""
    columns: list[nn.Parameter] = field(default_factory=list, init=False)
    """Columns ``V: [g, o, e]`` for more inputs, where tasks added some: the projection acts on ``[W, V, …]`` as one.

    A change gets them beside ``W``; a task without a change sees ``W`` alone.
    """

    @cached_property
    def shape(self) -> tuple[int, int, int]:
        """``(g, o, d)``."""
        g, o, d = self.matrices().shape
        return g, o, d

    def matrices(self, value: Tensor | None = None) -> Tensor:
        """The parameter, or a tensor of its shape, as a stack ``[g, o, d]``."""
        return self.uses[0].matrices(self.parameter if value is None else value)

    @property
    def tensors(self) -> list[nn.Parameter]:
        """All that is projected as one: the parameter and its columns."""
        return [self.parameter, *self.columns]

    def together(self, values: Sequence[Tensor]) -> Tensor:
        """Tensors of the shapes of ``tensors`` as one stack, ``[g, o, d + e + …]``."""
        W = self.matrices(values[0])
        return torch.cat([W, *values[1:]], dim=-1) if len(values) > 1 else W

    def apart(self, stack: Tensor) -> list[Tensor]:
        """The inverse of ``together``."""
        W, *columns = torch.split(stack, [self.shape[2], *(V.shape[2] for V in self.columns)], dim=-1)
        return [self.uses[0].parameter(W), *columns]

    def project(self, value: Tensor) -> Tensor:
        """``V (I − C)`` for a tensor of the parameter's shape, where there are no columns."""
        return self.project_all([value])[0]

    def project_all(self, values: Sequence[Tensor]) -> list[Tensor]:
        """The same for tensors of the shapes of ``tensors``."""
        return list(values) if self.projection is None else self.apart(self.projection(self.together(values)))

    @property
    def learns_projected(self) -> bool:
        wanted = self.projection is not None and self.projects_gradient
        return wanted and self.parameter.requires_grad and torch.is_grad_enabled()

    @torch.no_grad()
    def effective(self) -> Tensor:
        """The value that the active task sees, in the shape of the parameter."""
        if self.change is None:
            return self.parameter.detach().clone()
        with unrounded(self.parameter):
            return self.uses[0].parameter(self.change.weight(self.together(self.tensors))).detach()


@dataclass(eq=False)
class Use:
    """The parameter ``attribute`` of ``module``: one place where a weight meets rows."""

    module_name: str
    module: nn.Module
    attribute: str
    kind: LayerKind

    def matrices(self, weight: Tensor) -> Tensor:
        return self.kind.matrices(self.module, self.attribute, weight)

    def parameter(self, matrices: Tensor) -> Tensor:
        return self.kind.parameter(self.module, self.attribute, matrices)

    def rows(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[Any]:
        """The rows of one call, in parts that fit in memory."""
        for part in self.kind.parts(self.module, args, kwargs):
            yield self.kind.rows(self.module, self.attribute, *part, **({} if part is not args else kwargs))

    def moments(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[list[Moments]]:
        """The moments of the rows of one call, part by part."""
        for part in self.kind.parts(self.module, args, kwargs):
            yield self.kind.moments(self.module, self.attribute, *part, **({} if part is not args else kwargs))


class AttachedForward:
    """``module.forward`` while a method is attached: the module's own forward on effective, projected weights."""

    def __init__(self, module: nn.Module, weights: Mapping[str, ProtectedWeight], kind: LayerKind) -> None:
        self.module, self.weights, self.kind = module, dict(weights), kind
        self.original: Callable[..., Any] = module.forward
        self.standard = runs_registered_forward(module)
        self.pointwise = kind.pointwise and len(self.weights) == 1 and self.standard
        self.running = False

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        # Where models are compiled, ours is the part that is not: it changes with every task.
        return _runner()(self, *args, **kwargs)

    def _run(self, *args: Any, **kwargs: Any) -> Any:
        if self.running:  # a forward that calls its own module: the weights stand in place already
            return self.original(*args, **kwargs)
        with self._under_way():
            if self.pointwise and len(args) == 1 and not kwargs:
                ((attribute, weight),) = self.weights.items()
                if (weight.change is not None or weight.learns_projected) and _cheaper_on_inputs(weight, args[0]):
                    self._tell(args, kwargs)
                    return self._on_inputs(attribute, weight, args[0])
            with self._effective():
                self._tell(args, kwargs)
                return self.original(*args, **kwargs)

    def _tell(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Tell whoever listens of the call, while the weights are those that it meets."""
        for attribute, weight in self.weights.items():
            if weight.listener is not None:
                use = next(u for u in weight.uses if u.module is self.module and u.attribute == attribute)
                weight.listener(use, args, kwargs)

    def _on_inputs(self, attribute: str, weight: ProtectedWeight, x: Tensor) -> Tensor:
        """``W`` on changed rows, its gradient from projected rows."""
        X = x.reshape(-1, x.shape[-1])
        W = self._matrices(attribute, weight).squeeze(0)  # indexing would copy the gradient
        if weight.change is not None:
            X = weight.change.rows(X)
        if X.shape[1] < W.shape[1]:  # columns of later tasks
            X = nn.functional.pad(X, (0, W.shape[1] - X.shape[1]))
        bias = next((getattr(self.module, name, None) for name in self.kind.biases), None)
        if weight.projection is not None and weight.learns_projected:
            Y = projected_linear(X, W, bias, weight.projection)
        else:
            Y = nn.functional.linear(X, W, bias)
        return Y.reshape(*x.shape[:-1], Y.shape[-1])

    @contextmanager
    def _effective(self) -> Iterator[None]:
        """Each weight swapped for its effective value, with its gradient projected."""
        kept: list[tuple[dict[str, Any], str, Any]] = []
        try:
            for attribute, weight in self.weights.items():
                if weight.change is None and not weight.learns_projected:
                    continue
                W = self._matrices(attribute, weight)
                if weight.projection is not None and weight.learns_projected:
                    W = projected_weight(W, weight.projection)
                if weight.change is not None:
                    with unrounded(W):
                        W = weight.change.weight(W)
                elif weight.columns:
                    W = W[..., : weight.shape[2]]
                value = self.kind.parameter(self.module, attribute, W)
                parameters, key = place_of(self.module, attribute)
                kept.append((parameters, key, parameters[key]))
                parameters[key] = value
            yield
        finally:
            for parameters, key, value in kept:
                parameters[key] = value

    def _matrices(self, attribute: str, weight: ProtectedWeight) -> Tensor:
        """The weight as the module holds it now, which in ``torch.func.functional_call`` is another tensor."""
        W = self.kind.matrices(self.module, attribute, held(self.module, attribute))
        return torch.cat([W, *weight.columns], dim=-1) if weight.columns else W

    @contextmanager
    def _under_way(self) -> Iterator[None]:
        self.running = True
        for weight in self.weights.values():
            weight.calls += 1
        try:
            yield
        finally:
            self.running = False
            for weight in self.weights.values():
                weight.calls -= 1


_UNCOMPILED: list[Callable[..., Any]] = []


def _runner() -> Callable[..., Any]:
    """``AttachedForward._run``, into which no compiler looks; importing one is left to whoever compiles."""
    if "torch._dynamo" not in sys.modules:
        return AttachedForward._run
    if not _UNCOMPILED:
        _UNCOMPILED.append(torch.compiler.disable(AttachedForward._run))  # type: ignore[no-untyped-call]
    return _UNCOMPILED[0]


def _cheaper_on_inputs(weight: ProtectedWeight, x: Any) -> bool:
    """Fewer rows than outputs, and nothing that would round the rows before they are projected."""
    if not isinstance(x, Tensor) or x.dtype != weight.parameter.dtype or torch.is_autocast_enabled(x.device.type):
        return False
    if weight.change is not None and not weight.change.on_inputs:
        return False
    if weight.parameter.dtype in (torch.float16, torch.bfloat16):
        return False
    _, o, d = weight.shape
    return x.numel() <= o * d


def _is_attached(module: nn.Module) -> bool:
    return isinstance(vars(module).get("forward"), AttachedForward)


def attach(model: nn.Module, weights: Mapping[str, ProtectedWeight]) -> Callable[[], None]:
    """Give every module of ``model`` that uses one of ``weights`` its attached forward; returns what takes it back."""
    if taken := [use.module_name for w in weights.values() for use in w.uses if _is_attached(use.module)]:
        raise RuntimeError(
            f"another method is attached to this model, or to the one it was copied from (at '{taken[0]}'): "
            "call its detach() first, or copy with export(task)."
        )
    used: dict[nn.Module, dict[str, ProtectedWeight]] = {}
    kinds: dict[nn.Module, LayerKind] = {}
    for weight in weights.values():
        for use in weight.uses:
            used.setdefault(use.module, {})[use.attribute] = weight
            kinds[use.module] = use.kind
    attached = {module: AttachedForward(module, of, kinds[module]) for module, of in used.items()}
    undo = [patch_forwards(attached), unfuse(model, used)]

    def take_back() -> None:
        for step in undo:
            step()

    return take_back

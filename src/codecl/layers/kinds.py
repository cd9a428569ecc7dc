"""What a layer type *is*: the one canonical form in which every protected weight is seen.

A weight is a stack of ``g`` matrices ``[o, d]``, and each matrix has its rows ``[n, d]``, such that

    output = rows · matrixᵀ (+ bias)

A Linear layer has ``g = 1`` and its inputs as rows; a convolution has one matrix per channel group and its patches as
rows. Everything downstream (capture, projection, effective weights) knows only this form, so a layer type of one's
own is a subclass of ``LayerKind`` with two methods:

    @register(Conv1D)  # GPT-2's Linear with a transposed weight, [d, o]
    class TransposedLinear(LayerKind):
        pointwise = True

        def matrices(self, module, name, weight):
            return weight.mT.unsqueeze(0)

        def parameter(self, module, name, matrices):
            return matrices.squeeze(0).mT

        def rows(self, module, name, x):
            return x.flatten(0, -2).unsqueeze(0)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from torch import Tensor, nn


class LayerKind:
    """How one module type multiplies its weights with its inputs."""

    weights: tuple[str, ...] = ("weight",)
    """The parameters that act as matrices on the input."""

    biases: tuple[str, ...] = ("bias",)
    """The parameters that are added to the output."""

    pointwise = False
    """Whether the rows are the last dimension of the input itself, for a single weight with ``g = 1``.

    Then the training step may project the few input rows instead of the large gradient.
    """

    def matrices(self, module: nn.Module, name: str, weight: Tensor) -> Tensor:
        """The parameter ``name`` as a stack ``[g, o, d]``: a differentiable view of ``weight``."""
        raise NotImplementedError

    def parameter(self, module: nn.Module, name: str, matrices: Tensor) -> Tensor:
        """The inverse of ``matrices``: a stack ``[g, o, d]`` in the shape of the parameter."""
        shape: Sequence[int] = getattr(module, name).shape
        return matrices.reshape(shape)

    def rows(self, module: nn.Module, name: str, *args: Any, **kwargs: Any) -> Tensor | Sequence[Tensor]:
        """What the weight ``name`` meets in ``module(*args, **kwargs)``: ``[g, n, d]``, or ``g`` of ``[n, d]``."""
        raise NotImplementedError

    def parts(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[tuple[Any, ...]]:
        """The call cut into calls with fewer rows each, where all rows at once would not fit in memory."""
        yield args


_KINDS: dict[type[nn.Module], LayerKind] = {}
_REFUSED: dict[type[nn.Module], str] = {}


def register(*types: type[nn.Module]) -> Callable[[type[LayerKind]], type[LayerKind]]:
    """Class decorator: modules of ``types`` and their subclasses are layers of this kind."""

    def add(kind: type[LayerKind]) -> type[LayerKind]:
        for module_type in types:
            _KINDS[module_type] = kind()
        return kind

    return add


def refuse(module_type: type[nn.Module], reason: str) -> None:
    """Modules of this type cannot be protected yet, nor can what is inside them; ``reason`` completes "because …"."""
    _REFUSED[module_type] = reason


def kind_of(module: nn.Module) -> LayerKind | None:
    """The kind registered for the nearest base class of ``module``, or None."""
    return next((_KINDS[base] for base in type(module).__mro__ if base in _KINDS), None)


def runs_registered_forward(module: nn.Module) -> bool:
    """Whether ``module`` computes what its registered class computes, and not a forward of its own."""
    base = next((base for base in type(module).__mro__ if base in _KINDS), None)
    return base is not None and type(module).forward is base.forward and "forward" not in vars(module)


def is_registered(module_type: type[nn.Module]) -> bool:
    """Whether the type itself is registered, not a base of it: then nothing it computes is overridden."""
    return module_type in _KINDS


def refusal_of(module: nn.Module) -> str | None:
    """Why ``module`` is refused by name, or None."""
    return next((_REFUSED[base] for base in type(module).__mro__ if base in _REFUSED), None)


def supported_types() -> list[str]:
    """The names of the registered module types, for messages."""
    return sorted(module_type.__name__ for module_type in _KINDS)


@register(nn.Linear)
class LinearKind(LayerKind):
    """``y = x Wᵀ + b`` over any leading dimensions."""

    pointwise = True

    def matrices(self, module: nn.Module, name: str, weight: Tensor) -> Tensor:
        return weight.unsqueeze(0)

    def rows(self, module: nn.Module, name: str, *args: Any, **kwargs: Any) -> Tensor:
        x: Tensor = args[0] if args else kwargs["input"]
        return x.reshape(1, -1, x.shape[-1])


refuse(
    nn.MultiheadAttention,
    "its projections never pass through a module call, so their inputs cannot be captured",
)
refuse(
    nn.TransformerEncoderLayer,
    "its fused evaluation path bypasses the layers inside it, so their inputs cannot be captured",
)

"""What a layer type *is*: the one canonical form in which every protected weight is seen.

A weight is a stack of ``g`` matrices ``[o, d]``, and each matrix has its rows ``[n, d]``, such that

    output = rows · matrixᵀ (+ bias)

A Linear layer has ``g = 1`` and its inputs as rows; a convolution has one matrix per channel group and its patches as
rows; an attention layer has one for queries, keys and values each; an embedding one for every entry. Everything
downstream (capture, projection, effective weights) knows only this form, so a layer type of one's own is a subclass
of ``LayerKind`` with two or three methods:

    @register(TransposedLinear)  # y = x W, with the weight as [d, o]
    class TransposedLinearKind(LayerKind):
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

import torch
from torch import Tensor, nn

from codecl.algebra import Moments


class LayerKind:
    """How one module type multiplies its weights with its inputs."""

    weights: tuple[str, ...] = ("weight",)
    """The parameters that act as matrices on the input; ``inner.weight`` is that of a module which this one uses
    without calling it."""

    biases: tuple[str, ...] = ("bias",)
    """The parameters that are added to something, or put beside it."""

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

    def moments(self, module: nn.Module, name: str, *args: Any, **kwargs: Any) -> list[Moments]:
        """The second moments of the rows, one for each of the ``g`` matrices, or none if there are no rows."""
        return moments_of(self.rows(module, name, *args, **kwargs))

    def parts(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[tuple[Any, ...]]:
        """The call cut into calls with fewer rows each, where all rows at once would not fit in memory."""
        yield args

    def inputs(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
        """How many inputs the call has: the rows of each stand together."""
        x: Tensor = args[0] if args else kwargs["input"]
        return x.shape[0] if x.ndim > 1 else 1

    def first(
        self, module: nn.Module, n: int, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The call with its first ``n`` inputs only."""
        x: Tensor = args[0] if args else kwargs["input"]
        return (x[:n] if x.ndim > 1 else x, *args[1:]), {} if not args else kwargs

    def refusal(self, module: nn.Module) -> str | None:
        """Why this module cannot be protected although its type can, as in "because …"; None if it can."""
        return None

    def expected(self, module: nn.Module, name: str, *args: Any, **kwargs: Any) -> Tensor:
        """What the call must give, in any order, if the rows describe it."""
        W = self.matrices(module, name, held(module, name))
        bias = next((b for key in self.biases if (b := getattr(module, key, None)) is not None), None)
        shift = torch.zeros_like(W[..., 0]) if bias is None else bias.reshape(W.shape[:2])
        return torch.cat(
            [
                (rows @ matrix.mT + of_group).flatten()
                for part in self.parts(module, args, kwargs)
                for rows, matrix, of_group in zip(
                    self.rows(module, name, *part, **(kwargs if part is args else {})), W, shift, strict=True
                )
            ]
        )

    def output(self, returned: Any) -> Any:
        """What of the values that a call returns was computed from the rows."""
        return returned


def held(module: nn.Module, name: str) -> Tensor:
    """The parameter ``name`` of ``module`` as it stands now, also while another tensor stands in for it."""
    parameters, key = place_of(module, name)
    value: Tensor = parameters[key]
    return value


def place_of(module: nn.Module, name: str) -> tuple[dict[str, Any], str]:
    """The dictionary that holds the parameter ``name`` of ``module``, and its key there."""
    inner, _, key = name.rpartition(".")
    return module.get_submodule(inner)._parameters, key


def moments_of(stack: Tensor | Sequence[Tensor]) -> list[Moments]:
    """The moments of each of a stack of rows, or none if all are empty; the same rows twice are looked at once."""
    several = list(stack)
    if sum(len(rows) for rows in several) == 0:
        return []
    once = {id(rows): Moments.of(rows) for rows in {id(rows): rows for rows in several}.values()}
    return [once[id(rows)] for rows in several]


_KINDS: dict[type[nn.Module] | str, LayerKind] = {}
_REFUSED: dict[type[nn.Module], str] = {}


def register(*types: type[nn.Module] | str) -> Callable[[type[LayerKind]], type[LayerKind]]:
    """Class decorator: modules of ``types`` and their subclasses are layers of this kind.

    A type of a package that need not be there is given by its full name, ``"package.module.Type"``.
    """

    def add(kind: type[LayerKind]) -> type[LayerKind]:
        for module_type in types:
            _KINDS[module_type] = kind()
        return kind

    return add


def register_added(module_type: type[nn.Module] | str, *names: str) -> None:
    """These parameters of the type are added to activations or put beside them, as class tokens and positions are.

    No input describes them, so the bias policy does.
    """
    kind = LayerKind()
    kind.weights, kind.biases = (), names
    _KINDS[module_type] = kind


def refuse(module_type: type[nn.Module], reason: str) -> None:
    """Modules of this type cannot be protected yet, nor can what is inside them; ``reason`` completes "because …"."""
    _REFUSED[module_type] = reason


def _registered(module_type: type) -> type[nn.Module] | str | None:
    """How the type itself is registered, if it is."""
    full_name = f"{module_type.__module__}.{module_type.__qualname__}"
    return next((key for key in (module_type, full_name) if key in _KINDS), None)


def _base(module: nn.Module) -> type | None:
    """The nearest base class of ``module`` that is registered."""
    return next((base for base in type(module).__mro__ if _registered(base) is not None), None)


def kind_of(module: nn.Module) -> LayerKind | None:
    """The kind registered for the nearest base class of ``module``, or None."""
    base = _base(module)
    return None if base is None else _KINDS[_registered(base)]  # type: ignore[index]


def runs_registered_forward(module: nn.Module) -> bool:
    """Whether ``module`` computes what its registered class computes, and not a forward of its own."""
    base = _base(module)
    same = base is not None and type(module).forward is base.forward  # type: ignore[attr-defined]
    return same and "forward" not in vars(module)


def is_registered(module_type: type[nn.Module]) -> bool:
    """Whether the type itself is registered, not a base of it: then nothing it computes is overridden."""
    return _registered(module_type) is not None


def refusal_of(module: nn.Module) -> str | None:
    """Why ``module`` is refused by name, or None."""
    by_type = next((_REFUSED[base] for base in type(module).__mro__ if base in _REFUSED), None)
    kind = kind_of(module)
    return by_type if by_type is not None or kind is None else kind.refusal(module)


def supported_types() -> list[str]:
    """The names of the registered module types, for messages."""
    return sorted({t.rpartition(".")[2] if isinstance(t, str) else t.__name__ for t, k in _KINDS.items() if k.weights})


@register(nn.Linear)
class LinearKind(LayerKind):
    """``y = x Wᵀ + b`` over any leading dimensions."""

    pointwise = True

    def matrices(self, module: nn.Module, name: str, weight: Tensor) -> Tensor:
        return weight.unsqueeze(0)

    def rows(self, module: nn.Module, name: str, *args: Any, **kwargs: Any) -> Tensor:
        x: Tensor = args[0] if args else kwargs["input"]
        return x.reshape(1, -1, x.shape[-1])

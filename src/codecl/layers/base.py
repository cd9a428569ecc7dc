"""What a layer type is: the canonical form in which every protected weight is seen.

A weight is a stack of ``g`` matrices ``[o, d]``, and each matrix has its rows ``[n, d]``, such that

    output = rows · matrixᵀ (+ bias)

A Linear layer has ``g = 1`` and its inputs as rows. A convolution has one matrix per channel group and its patches as
rows. An attention layer has one matrix each for queries, keys and values. An embedding has one for every entry.
Capture, projection and effective weights know only this form, so a layer type of one's own is a subclass of
``LayerKind`` with two or three methods:

    @register(TransposedLinear)  # y = x W, with the weight as [d, o]
    class TransposedLinearKind(LayerKind):
        pointwise = True

        def matrices(self, weight):
            return weight.mT.unsqueeze(0)

        def parameter(self, matrices):
            return matrices.squeeze(0).mT

        def rows(self, x):
            return x.flatten(0, -2).unsqueeze(0)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from codecl.algebra import Moments


class LayerKind:
    """How one module multiplies one of its weights with its inputs.

    An instance is bound to the weight ``name`` of ``module``; ``module_name`` is the path of the module in the model.
    ``x`` stands for the inputs of one call of the module, in the form that ``call`` gives them.
    """

    weights: ClassVar[tuple[str, ...]] = ("weight",)
    """The parameters that act as matrices on the input; ``inner.weight`` is that of a module which this one uses
    without calling it."""

    biases: ClassVar[tuple[str, ...]] = ("bias",)
    """The parameters that are added to activations, or put beside them."""

    pointwise: ClassVar[bool] = False
    """Whether the rows are the last dimension of the input itself, for a single weight with ``g = 1``.

    Then the training step may project the few input rows instead of the large gradient.
    """

    indexed: ClassVar[bool] = False
    """Whether inputs are indices of rows of the weight, as in an embedding. Elsewhere it would act transposed."""

    def __init__(self, module: nn.Module, name: str = "weight", module_name: str = "") -> None:
        self.module, self.name, self.module_name = module, name, module_name
        path, _, self._key = name.rpartition(".")
        self._owner = module.get_submodule(path)

    @classmethod
    def refusal(cls, module: nn.Module) -> str | None:
        """Why this module cannot be protected although its type can, as in "because …"; None if it can."""
        return None

    # What a layer type defines.

    def matrices(self, weight: Tensor) -> Tensor:
        """A tensor in the shape of the parameter as a stack ``[g, o, d]``: a differentiable view."""
        raise NotImplementedError

    def parameter(self, matrices: Tensor) -> Tensor:
        """The inverse of ``matrices``: a stack ``[g, o, d]`` in the shape of the parameter."""
        return matrices.reshape(self.value.shape)

    def rows(self, x: Any) -> Tensor | Sequence[Tensor]:
        """What the weight is multiplied with: ``[g, n, d]``, or ``g`` of ``[n, d]``."""
        raise NotImplementedError

    # What a layer type may define.

    def call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The inputs of ``module(*args, **kwargs)`` as one value ``x``: by default the first argument."""
        return (*args, *kwargs.values())[0]

    @property
    def kernel(self) -> tuple[int, ...]:
        """The size of the kernel, for layers whose rows are patches; empty where every input is its own channel.

        Layers with a kernel take one tensor, ``[…, channels, *positions]``.
        """
        return ()

    def patches(self, x: Any, stride: int) -> Tensor | Sequence[Tensor]:
        """The rows with patches taken at ``stride``, for layers with a kernel."""
        raise NotImplementedError

    def moments(self, x: Any) -> list[Moments]:
        """The second moments of the rows, one for each of the ``g`` matrices, or none if there are no rows."""
        return moments_of(self.rows(x))

    def split(self, x: Any) -> Iterator[Any]:
        """``x`` cut into pieces with fewer rows each, where all rows at once would not fit in memory."""
        yield x

    def inputs(self, x: Any) -> int:
        """How many inputs the call has; the rows of each input are contiguous."""
        return x.shape[0] if x.ndim > 1 else 1

    def first(self, x: Any, n: int) -> Any:
        """The first ``n`` inputs of the call."""
        return x[:n] if x.ndim > 1 else x

    def expected(self, x: Any) -> Tensor:
        """What the call must return, in any order, if the rows describe it."""
        W = self.matrices(self.value)
        shift = torch.zeros_like(W[..., 0]) if self.bias is None else self.bias.reshape(W.shape[:2])
        return torch.cat(
            [
                (rows @ matrix.mT + b).flatten()
                for piece in self.split(x)
                for rows, matrix, b in zip(self.rows(piece), W, shift, strict=True)
            ]
        )

    def output(self, returned: Any) -> Any:
        """What of the values that a call returns was computed from the rows."""
        return returned

    # What every kind has.

    @property
    def full_name(self) -> str:
        """The name of the weight in the model."""
        return f"{self.module_name}.{self.name}" if self.module_name else self.name

    @property
    def value(self) -> Tensor:
        """The parameter as the module has it now, also while another tensor takes its place."""
        value: Tensor = self._owner._parameters[self._key]  # type: ignore[assignment]
        return value

    @property
    def place(self) -> tuple[dict[str, Any], str]:
        """The dictionary that has the parameter, and its key there."""
        return self._owner._parameters, self._key

    @property
    def bias(self) -> Tensor | None:
        """The first bias that the module has."""
        return next((b for name in self.biases if (b := getattr(self.module, name, None)) is not None), None)


def moments_of(stack: Tensor | Sequence[Tensor]) -> list[Moments]:
    """The moments of each of a stack of rows, or none if all are empty. Rows that occur twice are used once."""
    several = list(stack)
    if sum(len(rows) for rows in several) == 0:
        return []
    once = {id(rows): Moments.of(rows) for rows in {id(rows): rows for rows in several}.values()}
    return [once[id(rows)] for rows in several]


_KINDS: dict[type[nn.Module] | str, type[LayerKind]] = {}


def register(*types: type[nn.Module] | str) -> Callable[[type[LayerKind]], type[LayerKind]]:
    """Class decorator: modules of ``types`` and their subclasses are layers of this kind.

    A type of a package that need not be installed is given by its full name, ``"package.module.Type"``.
    """

    def add(kind: type[LayerKind]) -> type[LayerKind]:
        _KINDS.update(dict.fromkeys(types, kind))
        return kind

    return add


def register_added(module_type: type[nn.Module] | str, *names: str) -> None:
    """Parameters of the type that are added to activations or put beside them, as class tokens and positions are.

    They are treated as biases.
    """
    _KINDS[module_type] = type("AddedKind", (LayerKind,), {"weights": (), "biases": names})


def _registered(module_type: type) -> type[nn.Module] | str | None:
    """The key under which the type itself is registered, if it is."""
    full_name = f"{module_type.__module__}.{module_type.__qualname__}"
    return next((key for key in (module_type, full_name) if key in _KINDS), None)


def _base(module: nn.Module) -> type | None:
    """The nearest base class of ``module`` that is registered."""
    return next((base for base in type(module).__mro__ if _registered(base) is not None), None)


def kind_of(module: nn.Module) -> type[LayerKind] | None:
    """The kind registered for the nearest base class of ``module``, or None."""
    base = _base(module)
    return None if base is None else _KINDS[_registered(base)]  # type: ignore[index]


def runs_registered_forward(module: nn.Module) -> bool:
    """Whether ``module`` computes what its registered class computes, and not a forward of its own."""
    base = _base(module)
    same = base is not None and type(module).forward is base.forward  # type: ignore[attr-defined]
    return same and "forward" not in vars(module)


def is_registered(module_type: type[nn.Module]) -> bool:
    """Whether the type itself is registered, and not only a base of it."""
    return _registered(module_type) is not None


def supported_types() -> list[str]:
    """The names of the registered module types, for messages."""
    return sorted({t.rpartition(".")[2] if isinstance(t, str) else t.__name__ for t, k in _KINDS.items() if k.weights})

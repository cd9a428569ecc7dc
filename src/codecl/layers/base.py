"""What a layer type is: the canonical form in which every protected weight is seen.

A weight is a stack of ``g`` matrices ``[o, d]``, and each matrix has its rows ``[n, d]``, such that

    output = rows · matrixᵀ (+ bias)

A Linear layer has ``g = 1`` and its inputs as rows. A convolution has one matrix per channel group and its patches as
rows. An attention layer has one matrix each for queries, keys and values. An embedding has one for every entry.
Capture, projection and effective weights know only this form, so a layer type of one's own is a subclass of
``LayerKind`` with two or three methods, as ``layers/linear.py`` and CONTRIBUTING show.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from fnmatch import fnmatchcase
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import is_parametrized

from codecl.algebra import Moments


class LayerKind:
    """How one module multiplies one of its weights with its inputs.

    It is bound to the weight ``name`` of ``module``, whose path in the model is ``module_name``. ``x`` stands for the
    inputs of one call of the module, in the form that ``call`` gives them.
    """

    weights: ClassVar[tuple[str, ...]] = ("weight",)
    """The parameters that act as matrices on the input, or patterns of their names; ``inner.weight`` is that of a
    module which this one uses without calling it."""

    biases: ClassVar[tuple[str, ...]] = ("bias",)
    """The parameters that are added to activations, or put beside them."""

    pointwise: ClassVar[bool] = False
    """Whether the rows are the last dimension of the input itself, for a single weight with ``g = 1``.

    Then the training step may project the few input rows instead of the large gradient.
    """

    scales: ClassVar[tuple[str, ...]] = ()
    """The parameters that scale a weight, and follow it once it is protected."""

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

    @property
    def transposed(self) -> bool:
        """Whether inputs meet the first dimension of the parameter, as in an embedding or ``x W``, and not the last."""
        return False

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
        W = self.matrices(self.used)
        shift = torch.zeros_like(W[..., 0]) if self.bias is None else self.bias.reshape(W.shape[:2])
        matrices = list(zip(W, shift, strict=True))
        rows = (zip(self.rows(piece), matrices, strict=True) for piece in self.split(x))
        return torch.cat([(X @ matrix.mT + b).flatten() for piece in rows for X, (matrix, b) in piece])

    def output(self, returned: Any) -> Any:
        """What of the values that a call returns was computed from the rows."""
        return returned

    def describes(self, x: Any, repeat: Callable[[], Any]) -> bool:
        """Whether the rows account for what the call returns, ``repeat()``: a subclass may compute something else."""
        expected = self.expected(x).flatten().sort().values
        if len(expected) == 0:
            return True
        output = self.output(repeat())
        if not isinstance(output, Tensor) or output.numel() != len(expected):
            return False
        near = 1e-3 * float(expected.detach().abs().max())
        return torch.allclose(output.flatten().sort().values, expected, rtol=1e-2, atol=near)

    def places(self, value: Tensor) -> list[tuple[Any, Any, Any]]:
        """What to put where, as containers, keys and values, for the module to use ``value`` as this weight."""
        return [(self._owner._parameters, self._key, value)]

    def hold(self) -> None:
        """The parameter is about to be moved, and ``scales`` with it."""

    def follow(self) -> None:
        """The parameter has been moved: ``scales`` follow it, from where they were at ``hold``."""

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
    def used(self) -> Tensor:
        """The weight that is multiplied with the rows."""
        return self.value

    @property
    def bias(self) -> Tensor | None:
        """The first bias that the module has."""
        return next((b for name in self.biases if (b := getattr(self.module, name, None)) is not None), None)


def moments_of(stack: Tensor | Sequence[Tensor]) -> list[Moments]:
    """The moments of each of a stack of rows, or none if all are empty. Rows that occur twice are used once."""
    several = list(stack)
    if not any(len(rows) for rows in several):
        return []
    several = [rows if len(rows) else rows.new_zeros(1, rows.shape[1]) for rows in several]
    once = {key: Moments.of(rows) for key, rows in {id(rows): rows for rows in several}.items()}
    return [once[id(rows)] for rows in several]


_KINDS: dict[type[nn.Module] | str, type[LayerKind]] = {}
_PATTERNS: dict[str, type[LayerKind]] = {}
Variant = Callable[[type[LayerKind]], type[LayerKind]]
_PARAMETRIZED: dict[type[nn.Module], Variant] = {}


def register(*types: type[nn.Module] | str) -> Callable[[type[LayerKind]], type[LayerKind]]:
    """Class decorator: modules of ``types`` and their subclasses are layers of this kind.

    A type of a package that need not be installed is given by its full name, ``"package.module.Type"``, in which ``*``
    stands for anything.
    """

    def add(kind: type[LayerKind]) -> type[LayerKind]:
        for one in types:
            if isinstance(one, str) and "*" in one:
                _PATTERNS[one] = kind
            else:
                _KINDS[one] = kind
        return kind

    return add


def register_parametrization(parametrization: type[nn.Module]) -> Callable[[Variant], Variant]:
    """Decorator of a function that makes, of the kind of a layer, that of one with this parametrization."""

    def add(variant: Variant) -> Variant:
        _PARAMETRIZED[parametrization] = variant
        return variant

    return add


def register_added(module_type: type[nn.Module] | str, *names: str) -> None:
    """Parameters of the type that are added to activations or put beside them, as class tokens and positions are.

    They are treated as biases.
    """
    register(module_type)(type("AddedKind", (LayerKind,), {"weights": (), "biases": names}))


def _nearest(module_type: type) -> tuple[type, type[LayerKind]] | tuple[None, None]:
    """The nearest base class of a type that is registered, and its kind."""
    for base in module_type.__mro__:
        full_name = f"{base.__module__}.{base.__qualname__}"
        for key in (base, full_name):
            if key in _KINDS:
                return base, _KINDS[key]
        for pattern, kind in _PATTERNS.items():
            if fnmatchcase(full_name, pattern):
                return base, kind
    return None, None


def kind_of(module: nn.Module) -> type[LayerKind] | None:
    """The kind registered for the nearest base class of ``module``, changed by its parametrization, or None."""
    kind = _nearest(type(module))[1]
    if kind is None or kind.weights != ("weight",) or not is_parametrized(module, "weight"):
        return kind
    several = list(module.parametrizations.weight)  # type: ignore[union-attr,arg-type]
    variant = _PARAMETRIZED.get(type(several[0])) if len(several) == 1 else None
    return kind if variant is None else variant(kind)


def runs_registered_forward(module: nn.Module) -> bool:
    """Whether ``module`` computes what its registered class computes, and not a forward of its own."""
    base, _ = _nearest(type(module))
    return base is not None and type(module).forward is base.forward and "forward" not in vars(module)  # type: ignore[attr-defined]


def is_registered(module_type: type[nn.Module]) -> bool:
    """Whether the type itself is registered, and not only a base of it."""
    return _nearest(module_type)[0] is module_type


def supported_types() -> list[str]:
    """The names of the registered module types, for messages."""
    return sorted({t.rpartition(".")[2] if isinstance(t, str) else t.__name__ for t, k in _KINDS.items() if k.weights})

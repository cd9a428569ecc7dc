"""Weights whose uses are found by running a forward: raw parameters, and lookups with a forward of their own.

The forward runs once more while its parameter is followed. Each entry of a parameter carries a tag, the matrix and the
column it belongs to; views of the parameter are views of the tags. So a product with a view tells which rows met which
matrix, and anything but a product is noticed.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from codecl.layers.base import LayerKind, register
from codecl.randomness import untouched_randomness

CASTS = {"to", "float", "half", "bfloat16", "double", "contiguous", "detach", "clone", "type_as"}
VIEWS = {"__getitem__", "__get__", "t", "transpose", "permute", "view", "reshape", "unsqueeze", "squeeze", "flatten"}
VIEWS |= {"unflatten", "chunk", "split", "unbind", "expand", "select", "narrow", "index_select", "swapaxes", "view_as"}
Met = Callable[[Callable[..., Any], tuple[Any, ...], dict[str, Any], Tensor, Tensor], None]
"""Is told of a function of the parameter: the function, its arguments, the view that it was given, and its tags."""


class Trace(TorchFunctionMode):
    """Follows ``value``, whose entries have ``tags``, through ``views`` of it, up to the functions that use it."""

    def __init__(self, value: Tensor, tags: Tensor, met: Met, views: set[str]) -> None:
        super().__init__()
        self.followed = {id(value): (value, tags)}
        self.met, self.views = met, views

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result, name = func(*args, **kwargs), getattr(func, "__name__", str(func))
        returned = list(tensors_in(result))
        for argument in list(tensors_in(args, kwargs)) if returned and not name.endswith("_like") else ():
            if id(argument) not in self.followed or returned[0] is argument.grad:
                continue
            tags = self.followed[id(argument)][1]
            if name in CASTS:
                self._follow(returned, [tags] if argument is args[0] else [])
            elif name in self.views and argument is args[0]:
                self._follow(returned, list(tensors_in(func(tags, *args[1:], **kwargs))))
            else:
                self.met(func, args, kwargs, argument, tags)
        return result

    def _follow(self, views: list[Tensor], tags: list[Tensor]) -> None:
        self.followed |= {id(view): (view, tag) for view, tag in zip(views, tags, strict=False)}


def trace(kind: LayerKind, args: tuple[Any, ...], kwargs: dict[str, Any], met: Met, views: set[str] = VIEWS) -> None:
    """Run the forward of the module's type, below its decorators, and tell ``met`` how it uses the weight."""
    W = kind.matrices(kind.value)
    g, o, d = W.shape
    tags = kind.parameter(torch.arange(g * d, device=W.device).reshape(g, 1, d).expand(g, o, d))
    follow = Trace(kind.value, tags, met, views)
    with torch.no_grad(), untouched_randomness(), follow:
        returned = inspect.unwrap(type(kind.module).forward)(kind.module, *args, **kwargs)
    for tensor in tensors_in(returned):
        if id(tensor) in follow.followed:
            met(_returned, (tensor,), {}, *follow.followed[id(tensor)])


class TracedKind(LayerKind):
    """Parameters ``[o, d]``, or ``[g, o, d]``, which a forward multiplies with its inputs; ``x`` is the rows of each.

    Known products are ``F.linear``, ``@``, ``mm``, ``bmm``, ``addmm`` and ``baddbmm``.
    """

    biases: ClassVar[tuple[str, ...]] = ()

    def matrices(self, weight: Tensor) -> Tensor:
        weight = weight.mT if self.transposed else weight
        return weight if weight.ndim == 3 else weight.unsqueeze(0)

    def parameter(self, matrices: Tensor) -> Tensor:
        matrices = matrices.mT if self.transposed else matrices
        return matrices if self.value.ndim == 3 else matrices.squeeze(0)

    def call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Tensor]:
        g, _, d = self.matrices(self.value).shape
        found: list[list[Tensor]] = [[self.value.new_zeros(0, d)] for _ in range(g)]

        def met(func: Callable[..., Any], args: tuple[Any, ...], kwargs: Any, view: Tensor, tags: Tensor) -> None:
            product = _product(func.__name__, (*args, *kwargs.values()), view)
            if product is None:
                raise ValueError(f"'{self.full_name}': its inputs cannot be seen in {func.__name__}. {_REMEDY}")
            x, turned = product
            tags = tags.mT if turned else tags
            for stack, rows in zip(tags.reshape(-1, *tags.shape[-2:]), x, strict=True):
                matrix = int(stack.flatten()[0]) // d
                columns = torch.arange(matrix * d, (matrix + 1) * d, device=stack.device)
                if stack.shape[-1] != d or not torch.equal(stack, columns.expand_as(stack)):
                    raise ValueError(f"'{self.full_name}': {func.__name__} multiplies another side of it. {_REMEDY}")
                found[matrix].append(rows.reshape(-1, d).detach())

        trace(self, args, kwargs, met)
        return [torch.cat(rows) for rows in found]

    def rows(self, x: list[Tensor]) -> list[Tensor]:
        return x

    def inputs(self, x: list[Tensor]) -> int:
        return 1

    def first(self, x: list[Tensor], n: int) -> list[Tensor]:
        return x

    def describes(self, x: Any, repeat: Callable[[], Any]) -> bool:
        """All uses were seen."""
        return True


def register_matrices(module_type: type[nn.Module] | str, *names: str, transposed: bool = False) -> None:
    """Parameters of the type that its forward multiplies with inputs: ``[o, d]``, or a stack ``[g, o, d]`` of them.

    ``transposed`` says that they are ``[d, o]`` or ``[g, d, o]``. What they are multiplied with is found by running the
    forward, so one line is all that a layer with raw parameters takes.
    """
    members = {"weights": names, "transposed": property(lambda self: transposed)}
    register(module_type)(type("MatricesKind", (TracedKind,), members))


_PRODUCTS = ("matmul", "__matmul__", "mm", "bmm", "addmm", "baddbmm")
_REMEDY = "Register a kind for this type (codecl.layers.register), or name the weight in skip=[…]."


def _product(name: str, args: tuple[Any, ...], weight: Tensor) -> tuple[list[Tensor], bool] | None:
    """What ``weight`` is multiplied with, for each of its matrices, and whether it stands as ``[d, o]``."""
    if name == "linear" and args[1] is weight and weight.ndim == 2:
        return [args[0]], False
    left, right = args[-2:] if name in _PRODUCTS else (None, None)
    if isinstance(left, Tensor) and isinstance(right, Tensor):
        x, turned = (left, True) if right is weight else (right.mT if right.ndim > 1 else right, False)
        if weight.ndim == 2:
            return [x], turned
        if weight.ndim == x.ndim == 3 and len(x) == len(weight):
            return list(x), turned
    return None


def _returned(tensor: Tensor) -> Tensor:
    return tensor


def tensors_in(*values: Any) -> Iterator[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, (tuple, list)):
            yield from tensors_in(*value)
        elif isinstance(value, dict):
            yield from tensors_in(*value.values())

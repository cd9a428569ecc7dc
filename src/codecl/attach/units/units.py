"""How tensors carry units, and what functions without weights do to them.

A *unit* is an output of a weight: a feature of a Linear layer, a channel of a convolution. Norms, activations, dropout,
pooling and flattening leave it the same unit; everything else is not understood.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from torch import Tensor, fx, nn

# Names of modules and functions, in small letters without underscores: ``nn.LeakyReLU`` and ``F.leaky_relu`` are one.
# fmt: off
VANISHING = {
    "abs", "celu", "clone", "contiguous", "dropout", "dropout1d", "dropout2d", "dropout3d", "elu", "float", "gelu",
    "hardswish", "hardtanh", "identity", "leakyrelu", "mish", "neg", "relu", "relu6", "selu", "silu", "softsign",
    "stochasticdepth", "tanh", "tanhshrink",
}
"""What acts on every unit by itself, and makes zero of zero."""
# fmt: on
OTHERS = {"alphadropout", "clamp", "exp", "featurealphadropout", "hardsigmoid", "logsigmoid", "sigmoid", "softplus"}
"""What acts on every unit by itself."""
POOLS = {f"{kind}pool{n}d" for kind in ("max", "avg", "lp", "adaptivemax", "adaptiveavg") for n in (1, 2, 3)}
REDUCTIONS = {"amax", "mean", "squeeze", "sum"}
SUMS = {"add", "iadd", "isub", "maximum", "minimum", "sub"}
PRODUCTS = {"imul", "mul"}
QUOTIENTS = {"div", "itruediv", "truediv"}
QUESTIONS = {"device", "dim", "dtype", "ndim", "shape", "size"}
"""What is asked about a tensor, and is none."""


@dataclass(frozen=True)
class Units:
    """How a tensor carries the units of a group.

    They stand on the axis before the last ``trailing`` ones. Where that axis is longer than the group, each unit is
    repeated, ``1 1 2 2`` (a flattened feature map), or with ``minor`` the whole group, ``1 2 1 2`` (flattened rows).
    """

    group: str
    trailing: int
    minor: bool
    vanish: bool = True
    """Whether a unit is zero where the layers that write it put out zero."""

    def spread(self, a: Tensor, width: int) -> Tensor:
        """``a``, one number for each unit, along an axis of ``width``."""
        times = width // len(a)
        return a if times == 1 else a.repeat(times) if self.minor else a.repeat_interleave(times)

    def columns(self, a: Tensor, shape: Sequence[int]) -> Tensor:
        """``a`` for the columns of a weight ``[g, o, d]`` that reads the units: ``[g, 1, d]``."""
        g, _, d = shape
        return self.spread(a, g * d).reshape(g, 1, d)

    def along(self, a: Tensor, x: Tensor) -> Tensor:
        """``a`` in the shape in which it multiplies ``x``."""
        return self.spread(a, x.shape[-1 - self.trailing]).reshape(-1, *[1] * self.trailing)


def name_of(node: fx.Node, module: nn.Module | None = None) -> str:
    """The name of what ``node`` calls, in small letters without underscores."""
    if module is not None:
        name = type(module).__name__
    else:
        name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", str(node.target))
    return name.lower().replace("_", "")


def is_question(node: fx.Node, name: str) -> bool:
    """Whether ``node`` asks for a size or a dtype."""
    return name in QUESTIONS or (name == "getattr" and node.args[1] in QUESTIONS)


def passed(x: Units, node: fx.Node, name: str, module: Any = None) -> Units | None:
    """``x`` after the module or function ``name``; None if that is not understood."""
    if name in VANISHING or (name in POOLS and x.trailing):
        return x
    if name in OTHERS:
        return replace(x, vanish=False)
    if name == "flatten" and module is not None:
        return _flattened(x, module.start_dim, module.end_dim)
    if name == "flatten":
        return _flattened(x, _argument(node, 1, "start_dim", 0), _argument(node, 2, "end_dim", -1))
    if name in ("view", "reshape"):  # to rows, as ``x.view(len(x), -1)`` and ``x.view(-1, 400)`` are meant
        return _flattened(x, 1, -1) if len(_sizes(node)) == 2 else None
    return _reduced(x, node, name) if name in REDUCTIONS else None


def _flattened(x: Units, start: Any, end: Any) -> Units | None:
    if not (isinstance(start, int) and isinstance(end, int)):
        return None
    if x.trailing == 0:
        return x if (start, end) == (1, -1) else None
    start, end = start % (x.trailing + 2), end % (x.trailing + 2)
    if start == 1 and end == x.trailing + 1:
        return replace(x, trailing=0)
    return replace(x, trailing=x.trailing - (end - start)) if 2 <= start <= end else None


def _reduced(x: Units, node: fx.Node, name: str) -> Units | None:
    """Without some of the axes that follow the units."""
    axes = _argument(node, 1, "dim", None)
    axes = [axes] if isinstance(axes, int) else axes
    if not axes or not x.trailing or not all(isinstance(a, int) and a % (x.trailing + 2) >= 2 for a in axes):
        return None
    keep = name != "squeeze" and _argument(node, 2, "keepdim", False)
    return x if keep else replace(x, trailing=x.trailing - len(axes))


def _argument(node: fx.Node, place: int, name: str, default: Any) -> Any:
    return node.args[place] if len(node.args) > place else node.kwargs.get(name, default)


def _sizes(node: fx.Node) -> Sequence[Any]:
    sizes = node.args[1:]
    return cast(Sequence[Any], sizes[0]) if len(sizes) == 1 and isinstance(sizes[0], (tuple, list)) else sizes

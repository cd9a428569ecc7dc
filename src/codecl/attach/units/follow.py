"""Following units through a network: which units feed which weights.

The model's own forward is traced symbolically (``torch.fx``) in evaluation mode. Outputs that are added or multiplied
elementwise are one unit: a residual sum makes one *group* of the units of all layers that write into it. Where units
reach a weight in a way that is not understood (a concatenation, attention, indexing), the network is refused by name.
Units that reach the output of the model, and inputs of the network, belong to no group: every task sees them.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NoReturn, cast

from torch import fx, nn
from torch.nn.modules.batchnorm import _NormBase

from codecl.attach.batches import Forward
from codecl.attach.patching import evaluating
from codecl.attach.survey import LayerTable
from codecl.attach.units.groups import Channels, Groups
from codecl.attach.units.units import PRODUCTS, QUOTIENTS, SUMS, Units, is_question, name_of, passed
from codecl.attach.weight import ProtectedWeight
from codecl.layers.base import LayerKind, kind_of
from codecl.layers.norms import is_norm


class UnknownUnits(ValueError):
    """A network in which units cannot be followed from weight to weight."""


def follow_units(model: nn.Module, table: LayerTable, forward: Forward) -> Channels:
    """Trace ``forward(model, batch)`` and follow the units of all protected weights."""
    follower = _Follower(model, table, forward)
    for node in follower.graph.nodes:
        follower.values[node] = follower.see(node)
    return follower.result()


@dataclass(frozen=True)
class Unclear:
    """A tensor that depends on units of ``groups`` in a way that is not understood."""

    groups: frozenset[str]
    reason: str


Value = Units | Unclear | None


class _Call(nn.Module):
    """``forward(model, batch)`` as a module, for the tracer."""

    def __init__(self, model: nn.Module, forward: Forward) -> None:
        super().__init__()
        self.model, self.call = model, forward

    def forward(self, batch: Any) -> Any:
        return self.call(self.model, batch)


class _Tracer(fx.Tracer):
    """Traces into all modules but torch's own and ``whole``."""

    def __init__(self, whole: set[nn.Module]) -> None:
        super().__init__()
        self.whole = whole

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        whole = m in self.whole or isinstance(m, nn.LocalResponseNorm)
        return whole or super().is_leaf_module(m, module_qualified_name)


class _Follower:
    """Goes through the traced nodes in order; ``values`` says how the result of each carries units."""

    def __init__(self, model: nn.Module, table: LayerTable, forward: Forward) -> None:
        self.weights = table.protected
        self.uses = {kind.module: (weight, kind) for weight in self.weights.values() for kind in weight.uses}
        unmasked = {row.parameter for row in table.of_role("frozen", "skipped")}
        whole = {m for m in model.modules() if m is not model and (own := set(m.parameters())) and own <= unmasked}
        self.root = _Call(model, forward)
        try:
            with evaluating(model):
                self.graph = _Tracer({*whole, *self.uses}).trace(self.root)
        except Exception as error:  # the user's code runs here, on stand-ins for tensors
            raise UnknownUnits(f"the forward of {type(model).__name__} cannot be traced: {error}") from error
        self.values: dict[fx.Node, Value] = {}
        self.groups = Groups({name: w.shape[0] * w.shape[1] for name, w in self.weights.items()})
        self.reads: dict[str, Units | None] = {}
        self.writes: dict[str, Units] = {}
        self.readers: dict[str, Units | None] = {}
        self.mixed: set[str] = set()
        self.vectors: dict[nn.Parameter, Units | None] = {}

    def result(self) -> Channels:
        if missing := [name for name in self.weights if name not in self.reads]:
            raise UnknownUnits(
                f"the modules of {missing} are not called in evaluation mode, so their units cannot be followed. "
                "Name them in skip=[…] if they are not used."
            )
        named = self.groups.named()

        def settled(found: Mapping[Any, Units | None]) -> dict[Any, Units]:
            return {key: replace(x, group=named[x.group]) for key, x in found.items() if x and x.group in named}

        return Channels(
            units={group: self.groups.sizes[group] for group in dict.fromkeys(named.values())},
            reads=dict.fromkeys(self.weights) | settled(self.reads),
            writes=dict.fromkeys(self.weights) | settled(self.writes),
            readers=settled(self.readers),
            mixed={named[group] for group in self.mixed if group in named},
            vectors=settled(self.vectors),
        )

    def see(self, node: fx.Node) -> Value:
        """How the result of ``node`` carries units; None if it carries none."""
        given = [value for n in node.all_input_nodes if (value := self.values[n]) is not None]
        if node.op == "get_attr":
            self._check_attribute(node)
        if node.op == "output":
            self.groups.opened |= _groups(given)
        module = self.root.get_submodule(str(node.target)) if node.op == "call_module" else None
        if module in self.uses:
            return self._weight(node, *self.uses[module], self._single(node, given))
        if module is not None and (kind := kind_of(module)) is not None:
            self._reader(node, module, kind, self._single(node, given))
            return None
        name = name_of(node, module)
        if not given or node.op == "output" or is_question(node, name):
            return None
        if any(isinstance(value, Unclear) for value in given):
            return self._unclear(node, given)
        units = cast(list[Units], given)
        if module is not None and (is_norm(module) or isinstance(module, (nn.LocalResponseNorm, nn.CrossMapLRN2d))):
            return self._norm(node, module, units[0])
        if name in SUMS | PRODUCTS | QUOTIENTS:
            return self._together(node, name, units)
        return passed(units[0], node, name, module) or self._unclear(node, given)

    def _weight(self, node: fx.Node, weight: ProtectedWeight, kind: LayerKind, x: Units | None) -> Units:
        """A protected weight reads units and writes its own."""
        axes = self._fitting_axes(node, kind, x)
        self._note(node, self.reads, weight.name, x)
        out = self.writes[weight.name] = Units(weight.name, axes, minor=axes == 0)
        self._vectors(node, (getattr(kind.module, name, None) for name in kind.biases), out)
        return out

    def _reader(self, node: fx.Node, module: nn.Module, kind: type[LayerKind], x: Units | None) -> None:
        """A layer that is not protected: its inputs carry units, its outputs belong to no group."""
        if x is not None:
            self._fitting_axes(node, kind(module, kind.weights[0]), x)
        self._note(node, self.readers, _path(str(node.target)), x)

    def _norm(self, node: fx.Node, module: nn.Module, x: Units) -> Value:
        """Batch and instance norms keep units apart; others mix them, which is right only where masked ones vanish."""
        if not isinstance(module, _NormBase):
            if not x.vanish:
                self._refuse(
                    node,
                    "it mixes units. They would have to be masked before it, but between their layers and it stands "
                    "something that does not make zero of zero",
                )
            self.mixed.add(x.group)
        elif module.num_features % self._size(x) or (x.trailing and module.num_features != self._size(x)):
            return self._unclear(node, [x], f"has {module.num_features} features for {self._size(x)} units")
        self._vectors(node, module.parameters(), x)
        return replace(x, vanish=False)

    def _together(self, node: fx.Node, name: str, units: list[Units]) -> Value:
        """A sum or product of units: the same units from there on."""
        first = units[0]
        if len({(x.trailing, x.minor, self._size(x)) for x in units}) > 1:
            return self._unclear(node, units, "joins units that are laid out differently")
        for x in units[1:]:
            self.groups.tie(first.group, x.group)
        operands = [*node.args, *(value for key, value in node.kwargs.items() if key == "other")]
        values = [self.values[operand] if isinstance(operand, fx.Node) else None for operand in operands]
        zero = [isinstance(value, Units) and value.vanish for value in values]
        if name in QUOTIENTS:
            return replace(first, vanish=zero == [True, False])
        return replace(first, vanish=any(zero) if name in PRODUCTS else all(zero))

    def _check_attribute(self, node: fx.Node) -> None:
        value = operator.attrgetter(str(node.target))(self.root)
        for weight in self.weights.values():
            if value is weight.parameter:
                self._refuse(node, f"'{weight.name}' is used outside a call of its module")

    def _single(self, node: fx.Node, given: Sequence[Units | Unclear]) -> Units | None:
        """The one input of a layer that carries units."""
        for value in given:
            if isinstance(value, Unclear):
                raise UnknownUnits(f"what feeds {self._where(node)} cannot be followed: {value.reason}.")
        if len(given) > 1:
            self._refuse(node, "it reads units from more than one input")
        return cast(Units, given[0]) if given else None

    def _fitting_axes(self, node: fx.Node, kind: LayerKind, x: Units | None) -> int:
        """How many axes follow that of the units a layer reads and writes."""
        if len(kind.weights) > 1 or not (kind.pointwise or kind.kernel):
            self._refuse(node, "it is a layer whose units are not known")
        axes = len(kind.kernel)
        if x is None:
            return axes
        if x.trailing != axes:
            self._refuse(
                node, f"{x.trailing} axes follow that of the units in its inputs, and {axes} the axis it reads"
            )
        g, _, d = kind.matrices(kind.value).shape
        if g * d % self._size(x):
            self._refuse(node, f"it has {g * d} inputs, no multiple of the {self._size(x)} units that feed it")
        return axes

    def _note(self, node: fx.Node, found: dict[Any, Units | None], key: Any, x: Units | None) -> None:
        """What is used for several groups makes them one; what also sees inputs of the network opens its group."""
        known = found.setdefault(key, x)
        if known is None or x is None:
            self.groups.opened |= _groups([y for y in (known, x) if y is not None])
        elif (known.minor, known.trailing, self._size(known)) != (x.minor, x.trailing, self._size(x)):
            self._refuse(node, "it is used for units that are laid out differently")
        else:
            self.groups.tie(known.group, x.group)

    def _vectors(self, node: fx.Node, parameters: Any, x: Units) -> None:
        for parameter in parameters:
            if parameter is not None:
                if parameter.numel() % self._size(x):
                    self._refuse(node, f"it has {parameter.numel()} parameters for {self._size(x)} units")
                self._note(node, self.vectors, parameter, x)

    def _size(self, x: Units) -> int:
        return self.groups.sizes[x.group]

    def _unclear(
        self,
        node: fx.Node,
        given: Sequence[Units | Unclear],
        reason: str = "is not known to act on every unit by itself",
    ) -> Unclear:
        """What units become that are not understood, now or before."""
        known = next((value.reason for value in given if isinstance(value, Unclear)), None)
        return Unclear(frozenset(_groups(given)), known or f"{self._where(node)} {reason}")

    def _where(self, node: fx.Node) -> str:
        if node.op == "call_module":
            return f"'{_path(str(node.target))}' ({type(self.root.get_submodule(str(node.target))).__name__})"
        stack = list(node.meta.get("nn_module_stack", {}).values())
        path = _path(stack[-1][0]) if stack else ""
        what = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", node.name)
        what = node.args[1] if what == "getattr" else what
        return f"{what} in the forward of " + (f"'{path}'" if path else "the model")

    def _refuse(self, node: fx.Node, reason: str) -> NoReturn:
        raise UnknownUnits(f"units cannot be followed through {self._where(node)}: {reason}.")


def _groups(values: Sequence[Units | Unclear]) -> set[str]:
    return {group for value in values for group in ([value.group] if isinstance(value, Units) else value.groups)}


def _path(target: str) -> str:
    return target.removeprefix("model").removeprefix(".")

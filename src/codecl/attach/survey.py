"""Every weight of a model, and what becomes of it: protected, or not and why.

Nothing is skipped silently: a trainable weight that is neither protected, nor a head, nor named in ``skip`` stops the
construction with a message that says what to do about it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Literal

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from codecl.attach.heads import TaskHeads, find_task_heads
from codecl.attach.weight import ProtectedWeight
from codecl.layers.base import LayerKind, kind_of, supported_types
from codecl.layers.normalised import changes_itself
from codecl.layers.norms import is_norm
from codecl.text import table, unknown_name

Policy = Literal["freeze", "per-task", "free"]
_POLICY_NOTES: dict[Policy, str] = {
    "freeze": "freeze: held after the first task",
    "per-task": "per-task: a copy for every task",
    "free": "free: trains throughout, old tasks are not protected from it",
}


class UncoveredWeights(ValueError):
    """Trainable weights that the method would neither protect nor knowingly leave alone."""


@dataclass(frozen=True)
class LayerRow:
    """One parameter: what it is, and what becomes of it."""

    name: str
    module_type: str
    shape: tuple[int, ...]
    role: Literal["protected", "head", "norm", "bias", "scale", "rest", "skipped", "frozen", "free", "uncovered"]
    note: str
    parameter: nn.Parameter = field(repr=False)


@dataclass(frozen=True)
class LayerTable:
    """All rows, in the order of ``model.named_parameters()``; ``print`` it."""

    rows: tuple[LayerRow, ...]
    protected: dict[str, ProtectedWeight] = field(repr=False)
    heads: tuple[str, ...]
    """The modules and parameters that each task has for itself."""
    skip: tuple[str, ...]
    policies: Mapping[str, Policy]
    """What becomes of norms and biases; empty for a method that protects nothing, where they are free."""
    task_heads: TaskHeads | None = field(repr=False)
    """The parts of the model that keep a head for every task by themselves."""

    def __iter__(self) -> Iterator[LayerRow]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, name: str) -> LayerRow:
        for row in self.rows:
            if row.name == name:
                return row
        raise KeyError(unknown_name("parameter", name, [row.name for row in self.rows]))

    def of_role(self, *roles: str) -> list[LayerRow]:
        return [row for row in self.rows if row.role in roles]

    def check_still_frozen(self) -> None:
        """What did not train when the table was made has no protection, and must not begin to."""
        if thawed := [row.name for row in self.of_role("frozen") if row.parameter.requires_grad]:
            raise RuntimeError(
                f"{thawed} did not train when the method was attached, so nothing protects them; now they would. "
                "Turn requires_grad off again, or attach a new method with it on."
            )

    def __str__(self) -> str:
        lines = [
            (r.name, r.module_type, "×".join(map(str, r.shape)) or "scalar", r.role, r.note + self._unseen(r.name))
            for r in self.rows
        ]
        return table(("weight", "layer", "shape", "role", "note"), lines, right=[False] * 5)

    def _unseen(self, name: str) -> str:
        seen = {other: weight.rows_seen for other, weight in self.protected.items()}
        never = any(seen.values()) and seen.get(name) == 0
        return "; never called so far, so there is nothing to protect" if never else ""


def survey(
    model: nn.Module,
    heads: Sequence[str] = (),
    skip: Sequence[str] = (),
    norm: Policy = "freeze",
    bias: Policy = "freeze",
    protects: bool = True,
    added: Sequence[str] = (),
    weight_type: type[ProtectedWeight] = ProtectedWeight,
    rest: Policy | None = None,
) -> LayerTable:
    """Look at every parameter of ``model`` and decide what becomes of it; the protected are of ``weight_type``."""
    policies: dict[str, Policy] = {"norm": norm, "bias": bias} | ({} if rest is None else {"rest": rest})
    for name, policy in policies.items():
        if policy not in _POLICY_NOTES:
            raise ValueError(f"{name} must be one of {', '.join(map(repr, _POLICY_NOTES))}; got {policy!r}.")
    for argument, names in {"heads": heads, "skip": skip, "added": added}.items():
        _check_names(model, argument, names)
    places, task_heads = _places(model), find_task_heads(model)
    if not places and task_heads is None:
        raise ValueError(f"{type(model).__name__} has no parameters: there is nothing to learn. Attach to a network.")
    heads = (*heads, *(task_heads.names if task_heads is not None else ()))
    protected: dict[str, ProtectedWeight] = {}
    rows = []
    for name, (parameter, holders) in places.items():
        role, note = _role(parameter, holders, heads, skip, added)
        if role == "rest" and rest is None:
            role, note = "uncovered", note.removesuffix("; ")
        note = f"{note}{_POLICY_NOTES[policies[role]]}" if role in policies else note
        if not protects and role in ("protected", "uncovered", "scale", *policies):
            role, note = "free", "nothing is protected by this method"
        if role == "protected":
            sides = _sides_of(parameter, holders, weight_type)
            protected |= {side.name: side for side in sides}
            g, o, d = sides[0].shape
            note = f"{o} outputs × {d} inputs" + (f" in each of {g} groups" if g > 1 else "") + note
            if len(sides) > 1 and weight_type.no_twins:
                role, note = "uncovered", f"{note}, {weight_type.no_twins}"
        module_type = type(holders[0].module).__name__
        shape = () if is_lazy(parameter) else tuple(parameter.shape)
        rows.append(LayerRow(name, module_type, shape, role, note, parameter))  # type: ignore[arg-type]
    table = LayerTable(tuple(rows), protected, heads, tuple(skip), policies if protects else {}, task_heads)
    if bad := table.of_role("uncovered"):
        raise UncoveredWeights(_uncovered_message(bad))
    return table


@dataclass(frozen=True)
class _Place:
    """One name of a parameter: its module and, if that is refused, why."""

    module_name: str
    module: nn.Module
    attribute: str
    refusal: str | None

    @property
    def name(self) -> str:
        return f"{self.module_name}.{self.attribute}" if self.module_name else self.attribute

    @property
    def kind(self) -> type[LayerKind] | None:
        return kind_of(self.module)

    def bind(self) -> LayerKind:
        assert self.kind is not None
        return self.kind(self.module, self.attribute, self.module_name)

    def is_in(self, what: Literal["weights", "biases", "scales"]) -> bool:
        """Whether the kind of the module lists the parameter there."""
        return any(fnmatchcase(self.attribute, name) for name in getattr(self.kind, what, ()))


def _places(model: nn.Module) -> dict[str, tuple[nn.Parameter, list[_Place]]]:
    """Each distinct parameter under its first name, with every place that holds it.

    A parameter of an inner module that another module uses without calling it is a parameter of that other one.
    """
    found: dict[nn.Parameter, list[_Place]] = {}
    refused: dict[str, str] = {}
    users: dict[str, _Place] = {}
    for module_name, module in model.named_modules():
        above = next((r for prefix, r in refused.items() if not prefix or module_name.startswith(prefix + ".")), None)
        kind = kind_of(module)
        reason = changes_itself(module) or (None if kind is None else kind.refusal(module))
        if above is None and reason is not None:
            above = refused[module_name] = f"'{module_name}' is {type(module).__name__}: {reason}"
        inner = [] if kind is None else [name for name, _ in module.named_parameters() if "." in name]
        for place in [_Place(module_name, module, name, above) for name in inner]:
            if place.is_in("weights") or place.is_in("biases") or place.is_in("scales"):
                users.setdefault(place.name, place)
        for attribute, parameter in module.named_parameters(recurse=False):
            place = _Place(module_name, module, attribute, above)
            found.setdefault(parameter, []).append(users.get(place.name, place))
    return {places[0].name: (parameter, places) for parameter, places in found.items()}


def _role(
    parameter: nn.Parameter,
    places: list[_Place],
    heads: Sequence[str],
    skip: Sequence[str],
    added: Sequence[str],
) -> tuple[str, str]:
    """The role of one parameter and the note beside it, to which its policy is added."""
    if any(covers(skip, place.name) for place in places):
        return "skipped", "named in skip: trains freely"
    in_head = [covers(heads, place.name) for place in places]
    if all(in_head):
        return "head", "one per task, never projected"
    if any(in_head):
        others = ", ".join(f"'{place.name}'" for place, inside in zip(places, in_head, strict=True) if not inside)
        return "uncovered", f"tied between a head and {others}"
    if is_lazy(parameter):
        return "uncovered", "lazy: its shape is not known yet; run one batch through the model first"
    if parameter.is_meta:
        return "uncovered", "on the meta device: it has no values yet; load or initialise the model first"
    if not parameter.requires_grad:
        return "frozen", "requires_grad was off when the method was attached"
    if refusal := next((place.refusal for place in places if place.refusal), None):
        return "uncovered", refusal
    if any(covers(added, place.name) for place in places):
        return "bias", "named in added; "
    if all(is_norm(place.module) for place in places):
        return "norm", ""
    return _role_in_layers(parameter, places)


def _role_in_layers(parameter: nn.Parameter, places: list[_Place]) -> tuple[str, str]:
    """The role of a parameter that only the kinds of its modules can tell."""
    if any(place.is_in("biases") for place in places) and not any(place.is_in("weights") for place in places):
        return "bias", ""
    if all(place.is_in("scales") for place in places):
        return "scale", "follows the weight that it scales, once that is protected"
    if strange := [place for place in places if not place.is_in("weights")]:
        types = ", ".join(sorted({type(place.module).__name__ for place in strange}))
        return "rest", f"no layer kind is registered that knows this weight of {types}; "
    if len(places) == 1:
        return "protected", ""
    sides = _sides(places)
    if len(sides) == 1:
        return "protected", f", tied with {_named(sides[0][1:])}"
    if len(sides) == 2 and sides[0][0].transposed != sides[1][0].transposed and parameter.ndim == 2:
        return "protected", f", tied with {_named([*sides[0][1:], *sides[1]])}: on both sides"
    return "uncovered", f"tied between {_named([*sides[0], *sides[1]])}, which see it as different matrices"


def _sides_of(
    parameter: nn.Parameter, places: list[_Place], weight_type: type[ProtectedWeight]
) -> list[ProtectedWeight]:
    """The protected weight that a parameter is, or the two that it is on its two sides."""
    sides = [weight_type(kinds[0].full_name, parameter, kinds) for kinds in _sides(places)]
    for side in sides:
        side.twins = [other for other in sides if other is not side]
    return sides


def _sides(places: list[_Place]) -> list[list[LayerKind]]:
    """The uses of a parameter, those together that see it as the same matrices and so merge their rows."""
    sides: dict[object, list[LayerKind]] = {}
    for kind in [place.bind() for place in places]:
        shape = kind.matrices(torch.empty(kind.value.shape, device="meta")).shape
        key = type(kind), kind.transposed, shape
        sides.setdefault(key, []).append(kind)
    return list(sides.values())


def _named(kinds: Sequence[LayerKind]) -> str:
    return ", ".join(f"'{kind.full_name}'" for kind in kinds)


def covers(names: Sequence[str], parameter: str) -> bool:
    """Whether one of ``names`` is the parameter or a module that holds it."""
    return any(parameter == name or parameter.startswith(name + ".") for name in names)


def _check_names(model: nn.Module, argument: str, names: Sequence[str]) -> None:
    if isinstance(names, str):
        raise TypeError(f"{argument} takes a list of names; got the string {names!r}. Write {argument}=[{names!r}].")
    known = [name for name, _ in model.named_modules() if name] + [name for name, _ in model.named_parameters()]
    for name in names:
        if name not in known:
            raise ValueError(f"{argument}: {unknown_name('module or parameter', name, known)}")


def _uncovered_message(bad: Sequence[LayerRow]) -> str:
    named = [f"    '{row.name}' ({row.module_type}): {row.note}" for row in bad[:10]]
    if len(bad) > 10:
        named.append(f"    … and {len(bad) - 10} more")
    return f"""{len(bad)} trainable weights would be left unprotected:
{chr(10).join(named)}
Protected layer types: {", ".join(supported_types())}. For each of the above, either
    register its type:              codecl.layers.register(…), see CONTRIBUTING
    say that it is only added:      added=[…], for class tokens and positions, which are biases
    hold all of them:               rest="freeze", after the first task
    say that it is a head:          heads=[…]
    let it train unprotected:       skip=[{bad[0].name!r}, …]
    or keep it as it is:            parameter.requires_grad_(False) before attaching"""


_WRAPPERS = {
    "DistributedDataParallel": "is made anew for each task: attach to the module inside it with group=, and train "
    "net = method.replicate()",
    "FullyShardedDataParallel": "is not supported: shard the module inside it by fully_shard, and attach to that",
    "DataParallel": "runs copies past the forwards that protect the model: attach to the module inside it",
    "ScriptModule": "computes what was fixed before a method was there: attach to the module it was made from",
}


def refuse_wrappers(model: nn.Module) -> None:
    """Refuse what is no module, and a model that is, or contains, a wrapper in which nothing can be protected."""
    if not isinstance(model, nn.Module):
        given = f"the class {model.__name__}: make one first" if isinstance(model, type) else f"{model!r:.80}"
        raise TypeError(f"a method is attached to a network, an nn.Module; got {given}.")
    for name, module in model.named_modules():
        for base in type(module).__mro__:
            if base.__module__.startswith("torch.") and (reason := _WRAPPERS.get(base.__name__)):
                where = f"'{name}': " if name else ""
                raise TypeError(f"{where}a {base.__name__} model {reason}.")

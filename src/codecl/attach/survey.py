"""Every weight of a model, and what becomes of it: protected, or not and why.

Nothing is skipped silently: a trainable weight that is neither protected, nor a head, nor named in ``skip`` stops the
construction with a message that says what to do about it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from torch import nn
from torch.nn.parameter import is_lazy

from codecl.attach.heads import TaskHeads, find_task_heads
from codecl.attach.weight import ProtectedWeight
from codecl.layers.base import LayerKind, kind_of, supported_types
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
    role: Literal["protected", "head", "norm", "bias", "skipped", "frozen", "free", "uncovered"]
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
        captured = any(weight.rows_seen for weight in self.protected.values())
        never = captured and name in self.protected and not self.protected[name].rows_seen
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
) -> LayerTable:
    """Look at every parameter of ``model`` and decide what becomes of it; the protected are of ``weight_type``."""
    for name, policy in (("norm", norm), ("bias", bias)):
        if policy not in _POLICY_NOTES:
            raise ValueError(f"{name} must be one of {', '.join(map(repr, _POLICY_NOTES))}; got {policy!r}.")
    _check_names(model, "heads", heads)
    _check_names(model, "skip", skip)
    _check_names(model, "added", added)
    places, task_heads = _places(model), find_task_heads(model)
    heads = (*heads, *(task_heads.names if task_heads is not None else ()))
    protected: dict[str, ProtectedWeight] = {}
    rows = []
    for name, (parameter, holders) in places.items():
        role, note = _role(parameter, holders, heads, skip, norm, bias, added)
        if not protects and role in ("protected", "norm", "bias", "uncovered"):
            role, note = "free", "nothing is protected by this method"
        if role == "protected":
            protected[name] = weight_type(name, parameter, [place.bind() for place in holders])
            g, o, d = protected[name].shape
            note = f"{o} outputs × {d} inputs" + (f" in each of {g} groups" if g > 1 else "") + note
        module_type = type(holders[0].module).__name__
        shape = () if is_lazy(parameter) else tuple(parameter.shape)
        rows.append(LayerRow(name, module_type, shape, role, note, parameter))  # type: ignore[arg-type]
    policies: dict[str, Policy] = {"norm": norm, "bias": bias} if protects else {}
    table = LayerTable(tuple(rows), protected, heads, tuple(skip), policies, task_heads)
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
        if above is None and kind is not None and (reason := kind.refusal(module)) is not None:
            above = refused[module_name] = f"'{module_name}' is {type(module).__name__}: {reason}"
        for attribute in () if kind is None else (*kind.weights, *kind.biases):
            place = _Place(module_name, module, attribute, above)
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
    norm: Policy,
    bias: Policy,
    added: Sequence[str],
) -> tuple[str, str]:
    """The role of one parameter and the note beside it."""
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
        return "bias", f"named in added; {_POLICY_NOTES[bias]}"
    if all(is_norm(place.module) for place in places):
        return "norm", _POLICY_NOTES[norm]
    return _role_in_layers(parameter, places, bias)


def _role_in_layers(parameter: nn.Parameter, places: list[_Place], bias: Policy) -> tuple[str, str]:
    """The role of a parameter that only the kinds of its modules can tell."""
    if all(place.kind is not None and place.attribute in place.kind.biases for place in places):
        return "bias", _POLICY_NOTES[bias]
    if strange := [place for place in places if place.kind is None or place.attribute not in place.kind.weights]:
        types = ", ".join(sorted({type(place.module).__name__ for place in strange}))
        return "uncovered", f"no layer kind is registered that knows this weight of {types}"
    if len(places) == 1:
        return "protected", ""
    kinds = [place.bind() for place in places]  # tied weights merge their rows, if all see the same matrices
    names = ", ".join(f"'{kind.full_name}'" for kind in kinds)
    if len({(type(kind), kind.matrices(parameter).shape) for kind in kinds}) > 1:
        transposed = len({kind.indexed for kind in kinds}) > 1
        how = "as its transpose: what protects one moves the other" if transposed else "as different matrices"
        return "uncovered", f"tied between {names}, which see it {how}"
    return "protected", f", tied with {names.partition(', ')[2]}"


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
    lines = [f"{len(bad)} trainable weights would be left unprotected:"]
    lines += [f"    '{row.name}' ({row.module_type}): {row.note}" for row in bad[:10]]
    if len(bad) > 10:
        lines.append(f"    … and {len(bad) - 10} more")
    lines += [
        f"Protected layer types: {', '.join(supported_types())}. For each of the above, either",
        "    register its type:              codecl.layers.register(…), see CONTRIBUTING",
        "    say that it is only added:      added=[…], for class tokens and positions, which are biases",
        "    say that it is a head:          heads=[…]",
        f"    let it train unprotected:       skip=[{bad[0].name!r}, …]",
        "    or keep it as it is:            parameter.requires_grad_(False) before attaching",
    ]
    return "\n".join(lines)


_PROCESSES = "is not supported yet: attach to the module inside it, on one process"
_WRAPPERS = {
    "DistributedDataParallel": _PROCESSES,
    "FullyShardedDataParallel": _PROCESSES,
    "DataParallel": "runs copies past the forwards that protect the model: attach to the module inside it",
    "ScriptModule": "computes what was fixed before a method could stand in for it: attach to the module it was made "
    "from",
}


def refuse_wrappers(model: nn.Module) -> None:
    """Refuse a model that is, or contains, a wrapper in which nothing can be protected."""
    for name, module in model.named_modules():
        for base in type(module).__mro__:
            if base.__module__.startswith("torch.") and (reason := _WRAPPERS.get(base.__name__)):
                where = f"'{name}': " if name else ""
                raise TypeError(f"{where}a {base.__name__} model {reason}.")

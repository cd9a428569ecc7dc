"""Following units: what feeds what, by what happens when a unit is cut and the layers that write it are changed."""

import copy
from contextlib import contextmanager

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.testing import assert_close

from codecl import MultiHead
from codecl.attach import call_with_first, survey
from codecl.attach.units.follow import UnknownUnits, follow_units
from codecl.attach.units.units import Units
from codecl.layers import kind_of
from codecl.networks import MLP, AlexNet, LeNet, ReducedResNet18
from tests.layers.cases import normal, redrawn
from tests.marks import slow_but


def follow(model, forward=call_with_first, **settings):
    table = survey(model, **settings)
    return follow_units(model, table, forward), table


class Front(nn.Module):
    """Rows through a Linear layer, then flattened: units are the inner part of what comes out."""

    def __init__(self) -> None:
        super().__init__()
        self.each, self.all, self.out = nn.Linear(3, 4), nn.Linear(20, 6), nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(F.gelu(self.all(torch.flatten(self.each(x), 1))))


class Squeeze(nn.Module):
    """Channels that are weighted by what becomes of their own average, through a convolution that is called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(2, 6, 3, dilation=2, groups=2), nn.BatchNorm2d(6)
        self.down, self.up = nn.Conv2d(6, 3, 1), nn.Conv2d(3, 6, 1)
        self.twice = nn.Conv2d(6, 6, 3, padding=1, groups=3)
        self.head = nn.Sequential(nn.Flatten(), nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 2))

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.first(x)) + 0.5
        x = x * torch.sigmoid(self.up(self.down(F.adaptive_avg_pool2d(x, 1)).relu()))
        x = self.twice(torch.tanh(self.twice(x)))
        return self.head(x.mean((2, 3), keepdim=True))


class Series(nn.Module):
    """Convolutions along one axis."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Conv1d(2, 4, 3), nn.Conv1d(4, 6, 1)
        self.rows, self.last = nn.Linear(36, 5), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.two(F.max_pool1d(self.one(x), 2).clamp(min=-1))
        return self.last(self.rows(x.reshape((x.shape[0], -1))).sigmoid())


NETWORKS = {
    "alexnet": (lambda: MultiHead(AlexNet(), 2048, 3), (3, 32, 32)),
    "lenet": (lambda: MultiHead(LeNet(), 500, 3), (3, 32, 32)),
    "mlp": (lambda: MultiHead(MLP((20, 12, 7)), 7, 3), (20,)),
    "mlp with a shared head": (lambda: MLP((20, 12, 7), output=3), (20,)),
    "resnet": (lambda: MultiHead(ReducedResNet18(), 640, 3), (3, 32, 32)),
    "front": (Front, (5, 3)),
    "squeeze": (Squeeze, (2, 9, 9)),
    "series": (Series, (2, 14)),
}
HEADS = {"squeeze": ["head"], "front": ["out"]}


def stack_of(module):
    kind = kind_of(module)(module, "weight")
    return kind.matrices(kind.value).data


@contextmanager
def cut(model, channels, table, group, unit):
    """The network with one unit multiplied by zero wherever it is read, and before norms that mix it."""
    kept, modules = copy.deepcopy(model.state_dict()), dict(model.named_modules())
    a = torch.ones(channels.units[group], dtype=torch.float64)
    a[unit] = 0.0
    readers = [(w.uses[0].module, channels.reads[name]) for name, w in table.protected.items()]
    readers += [(modules[name], units) for name, units in channels.readers.items()]
    for module, units in readers:
        if units is not None and units.group == group:
            W = stack_of(module)
            W *= units.columns(a, W.shape)
    hooks = [
        table.protected[name].uses[0].module.register_forward_hook(lambda _, __, y, x=units: y * x.along(a, y))
        for name, units in channels.writes.items()
        if group in channels.mixed and units.group == group
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
        model.load_state_dict(kept)


def change(channels, table, group, unit):
    """Another unit: other rows in all weights that write it, another bias, and other parameters of its norms."""
    n = channels.units[group]
    for name, units in channels.writes.items():
        if units is not None and units.group == group:
            W = table.protected[name].matrices().data
            W.reshape(n, -1)[unit] += 1 + normal(5, *W.shape).reshape(n, -1)[unit]
    for parameter, units in channels.vectors.items():
        if units.group == group:
            units_first = parameter.data.reshape(-1, n).mT if units.minor else parameter.data.reshape(n, -1)
            units_first[unit] += 1.0


@pytest.mark.parametrize("network", slow_but(NETWORKS, "lenet", "mlp", "front", "squeeze", "series"))
@torch.no_grad()
def test_a_unit_that_is_cut_is_one_whose_layers_no_longer_matter(network):
    build, shape = NETWORKS[network]
    model = redrawn(build()).train()
    for module in model.modules():
        if hasattr(module, "p"):
            module.p = 0.0  # of dropout
    channels, table = follow(model, heads=HEADS.get(network, []))
    x = normal(1, 4, *shape)
    for group, n in channels.units.items():
        unit = n // 2
        with cut(model, channels, table, group, unit):
            before = model(x)
            change(channels, table, group, unit)
            assert_close(model(x), before, atol=1e-12, rtol=1e-12)
        with cut(model, channels, table, group, 0):
            before = model(x)
            change(channels, table, group, unit)
            assert (model(x) - before).abs().max() > 1e-6 * before.abs().max()


def test_the_groups_of_a_residual_network_by_name():
    channels, _ = follow(MultiHead(ReducedResNet18(), 640, 3))
    blocks = [f"backbone.stages.{s}.{b}" for s in range(4) for b in range(2)]
    inner = {f"{block}.conv1.weight" for block in blocks}
    sums = {"backbone.conv1.weight"} | {f"backbone.stages.{s}.0.conv2.weight" for s in (1, 2, 3)}
    assert set(channels.units) == inner | sums
    assert sorted(channels.units.values()) == [20] * 3 + [40] * 3 + [80] * 3 + [160] * 3
    shared = {n for n, x in channels.writes.items() if x.group == "backbone.stages.1.0.conv2.weight"}
    assert shared == {f"backbone.stages.1.{x}.weight" for x in ("0.conv2", "0.shortcut.conv", "1.conv2")}
    head = channels.readers["heads.0"]
    assert (head.group, head.trailing, head.minor) == ("backbone.stages.3.0.conv2.weight", 0, False)


def test_what_every_task_sees_has_no_group():
    channels, _ = follow(MLP((4, 3, 5), output=2))
    assert channels.units == {"hidden.0.weight": 3, "hidden.1.weight": 5}
    assert channels.reads["hidden.0.weight"] is None
    assert channels.writes["output.weight"] is None


class Own(nn.Module):
    """``forward`` is given from outside."""

    def __init__(self, forward, **modules: nn.Module) -> None:
        super().__init__()
        self.own = forward
        for name, module in modules.items():
            self.add_module(name, module)

    def forward(self, x: Tensor) -> Tensor:
        return self.own(self, x)


def two(forward, **more):
    return Own(forward, a=nn.Linear(4, 6), b=nn.Linear(6, 2), **more)


def image(forward, **more):
    return Own(forward, a=nn.Conv2d(1, 6, 3), b=nn.Linear(6, 2), **more)


def attend(m, x):
    h = m.a(x)
    return m.b(torch.softmax(h @ h.mT, -1) @ h)


REFUSED = {
    "concatenation": (
        two(lambda m, x: m.b(torch.cat([m.a(x)[:, :3], x], 1))),
        r"what feeds 'b' .Linear. cannot be followed: getitem in the forward",
    ),
    "attention": (two(attend), r"what feeds 'b' .Linear. cannot be followed: mT in the forward of the model"),
    "softmax": (
        two(lambda m, x: m.b(m.s(m.a(x))), s=nn.Softmax(1)),
        r"'s' .Softmax. is not known to act on every unit",
    ),
    "control flow": (
        two(lambda m, x: m.b(m.a(x)) if x.sum() > 0 else x),
        r"forward of Own cannot be traced: symbolically",
    ),
    "weight alone": (two(lambda m, x: m.b(F.linear(x, m.a.weight))), r"'a.weight' is used outside a call"),
    "never called": (two(lambda m, x: m.b(m.a(x)), c=nn.Linear(2, 2)), r"\['c.weight'\] are not called in evaluation"),
    "rows of pictures": (
        image(lambda m, x: m.b(m.a(x))),
        r"through 'b' .Linear.: 2 axes follow that of the units.* and 0 the",
    ),
    "a part of each": (
        image(lambda m, x: m.c(m.a(x).flatten(1)) + m.b(x), c=nn.Linear(8, 2)),
        "8 inputs, no mult",
    ),
    "a mean of all": (image(lambda m, x: m.b(m.a(x).mean(1).flatten(1))), r"cannot be followed: mean in"),
    "pooled features": (two(lambda m, x: m.b(F.avg_pool1d(m.a(x), 1))), r"avg_pool1d in the forward"),
    "other layouts": (
        image(lambda m, x: m.b(m.a(x).mean((2, 3)) + m.c(x[:, 0, 0])), c=nn.Linear(5, 6)),
        "add in the forward of the model joins units that are laid out differently",
    ),
    "norm of a norm": (
        two(lambda m, x: m.b(m.n(torch.sigmoid(m.a(x)))), n=nn.LayerNorm(6)),
        r"through 'n' .LayerNorm.: it mixes units.*does not make zero of zero",
    ),
    "norm of a sum with a number": (
        two(lambda m, x: m.b(m.n(m.a(x) + 1)), n=nn.LayerNorm(6)),
        "does not make zero of zero",
    ),
    "batch norm of something else": (
        two(lambda m, x: m.b(m.n(m.a(x))), n=nn.BatchNorm1d(4)),
        r"has 4 features for 6 units",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_not_understood_is_refused_by_name(case):
    model, message = REFUSED[case]
    with pytest.raises(UnknownUnits, match=message):
        follow(model)
    assert not any("forward" in vars(module) for module in model.modules())


def test_a_module_whose_kind_says_nothing_of_units_is_refused():
    class Odd(nn.Linear):
        pass

    from codecl.layers import LayerKind, register
    from codecl.layers import base as kinds

    register(Odd)(type("OddKind", (LayerKind,), {"matrices": lambda self, weight: weight[None]}))
    try:
        with pytest.raises(UnknownUnits, match=r"through 'b' .Odd.: it is a layer whose units are not known"):
            follow(Own(lambda m, x: m.b(m.a(x)), a=nn.Linear(4, 6), b=Odd(6, 2)))
    finally:
        del kinds._KINDS[Odd]


def test_odd_functions_matter_only_between_weights():
    """Before the first and after the last weight anything may happen, and in what is frozen."""
    frozen = nn.Sequential(nn.Linear(4, 4), nn.Softmax(1)).requires_grad_(False)
    model = two(lambda m, x: torch.log_softmax(m.b(m.a(torch.cat([m.f(x)[:, :2], x[:, 2:]], 1))), 1), f=frozen)
    channels, _ = follow(model)
    assert channels.units == {"a.weight": 6}
    assert channels.reads["a.weight"] is None
    assert channels.writes["b.weight"] is None


def test_a_frozen_layer_in_between_is_a_reader():
    model = Own(lambda m, x: m.c(m.b(m.a(x).relu()).relu()), a=nn.Linear(4, 6), b=nn.Linear(6, 5), c=nn.Linear(5, 2))
    model.b.requires_grad_(False)
    channels, _ = follow(model)
    assert channels.readers == {"b": Units("a.weight", 0, minor=True)}
    assert channels.reads["c.weight"] is None
    both = Own(lambda m, x: m.c(m.b(x)) + m.c(m.b(m.a(x))), a=nn.Linear(6, 6), b=nn.Linear(6, 5), c=nn.Linear(5, 2))
    both.b.requires_grad_(False)
    channels, _ = follow(both)
    assert (channels.units, channels.readers) == ({}, {})


def test_batches_are_called_as_the_user_says():
    model = two(lambda m, x: m.b(m.a(x)))
    channels, _ = follow(model, forward=lambda m, batch: m(batch["pixels"] / 255))
    assert channels.units == {"a.weight": 6}


def test_what_is_used_for_two_groups_makes_them_one():
    shared = two(lambda m, x: m.b(m.n(m.a(x)) * m.n(m.c(x))), c=nn.Linear(4, 6), n=nn.BatchNorm1d(6))
    assert follow(shared)[0].units == {"a.weight": 6}
    calls = two(lambda m, x: m.b(m.a(x)) + m.b(m.c(x)), c=nn.Linear(4, 6))
    assert follow(calls)[0].units == {"a.weight": 6}
    raw = Own(lambda m, x: m.b(m.b(x).relu()), b=nn.Linear(4, 4))
    assert follow(raw)[0].units == {}


def test_units_are_spread_over_a_longer_axis():
    a = torch.tensor([1.0, 2.0])
    assert Units("g", 0, minor=False).spread(a, 4).tolist() == [1, 1, 2, 2]
    assert Units("g", 0, minor=True).spread(a, 4).tolist() == [1, 2, 1, 2]
    assert Units("g", 2, minor=False).columns(a, (2, 5, 3)).tolist() == [[[1, 1, 1]], [[2, 2, 2]]]
    x = normal(0, 3, 2, 4, 4)
    assert_close(Units("g", 2, minor=False).along(a, x) * x, torch.stack([x[:, 0], 2 * x[:, 1]], 1))

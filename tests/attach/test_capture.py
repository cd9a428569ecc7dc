"""Seeing what a model feeds its weights: all of it, and without a trace."""

import random
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close
from torch.utils.data import DataLoader, TensorDataset

from codecl import CodeCL, UnseenUse
from codecl.attach import Mixing, capture_moments, take
from codecl.layers import convolution
from tests.layers.cases import attached, normal, redrawn


def gram(moments) -> Tensor:
    """``ΣXᵀX``."""
    U, sigma = moments.spectrum()
    return (U * sigma.square()) @ U.mT


def captured(model: nn.Module, batches: list, **settings) -> dict[str, list[Tensor]]:
    """``ΣXᵀX`` of each matrix of each weight."""
    with attached(model) as weights:
        seen = capture_moments(model, weights, batches, **settings)
    return {name: [gram(m) for m in several] for name, several in seen.items()}


def square(X: Tensor) -> Tensor:
    return X.mT @ X


class Noisy(nn.Module):
    """Draws from all three random states as it runs, and fails on demand."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.drop, self.second = nn.Linear(4, 4), nn.Dropout(0.5), nn.Linear(4, 2)
        self.norm = nn.BatchNorm1d(4)
        self.fail = False
        self.seen: list[bool] = []

    def forward(self, x):
        self.seen += [self.training, self.drop.training, torch.is_grad_enabled()]
        torch.rand(3), random.random(), np.random.rand()
        y = self.second(self.drop(self.norm(self.first(x))))
        if self.fail:
            raise ArithmeticError("no")
        return y


@pytest.mark.parametrize("fail", [False, True])
def test_flags_and_random_states_are_as_they_were(fail):
    model = redrawn(Noisy()).train()
    model.drop.eval()
    model.second.eval()
    model.fail = fail
    flags = {name: module.training for name, module in model.named_modules()}
    before = {name: value.clone() for name, value in model.state_dict().items()}
    states = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].copy()
    with attached(model) as weights:
        if fail:
            with pytest.raises(ArithmeticError):
                capture_moments(model, weights, [normal(0, 3, 4)])
        else:
            assert set(capture_moments(model, weights, [normal(0, 3, 4)])) == {"first.weight", "second.weight"}
        assert all(weight.listeners == [] and weight.calls == 0 for weight in weights.values())
    assert model.seen == [False, False, False]
    assert {name: module.training for name, module in model.named_modules()} == flags
    assert set(flags.values()) == {True, False}
    assert torch.equal(torch.get_rng_state(), states[0])
    assert random.getstate() == states[1]
    assert (np.random.get_state()[1] == states[2]).all()
    assert torch.is_grad_enabled()
    assert_close(dict(model.state_dict()), before, rtol=0, atol=0)  # running statistics included
    assert all(parameter.grad is None for parameter in model.parameters())


def test_a_loader_that_shuffles_leaves_the_random_state():
    data = TensorDataset(normal(0, 20, 4), torch.arange(20))
    loader = DataLoader(data, batch_size=4, shuffle=True)
    states = torch.get_rng_state(), random.getstate()
    assert len(take(loader, 9)) == 3
    assert torch.equal(torch.get_rng_state(), states[0])
    assert random.getstate() == states[1]


X = normal(5, 6, 4)


class Keyed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 3)

    def forward(self, x, scale=1.0):
        return self.fc(x * scale)


@dataclass
class Sample:
    """A batch that only its owner understands."""

    inputs: Tensor


BATCHES = {
    "tensor": ([X[:2], X[2:]], None),
    "tuple": ([(X[:2], torch.zeros(2)), (X[2:], torch.zeros(4))], None),
    "list": ([[X[:2], torch.zeros(2)], [X[2:], torch.zeros(4)]], None),
    "dict": ([{"x": X[:2] / 2, "scale": 2.0}, {"x": X[2:], "scale": torch.ones(())}], None),
    "forward": ([(0, {"deep": X})], lambda model, batch: model(batch[1]["deep"])),
    "object": ([Sample(X)], lambda model, batch: model(batch.inputs)),
}


@pytest.mark.parametrize("kind", BATCHES)
def test_batches_of_every_kind(kind):
    batches, forward = BATCHES[kind]
    settings = {} if forward is None else {"forward": forward}
    taken = take(iter(batches), None)
    assert_close(captured(redrawn(Keyed()), taken, **settings)["fc.weight"], [square(X)])
    method = CodeCL(redrawn(Keyed()), **settings)
    method.begin_task(0)
    method.end_task(batches)
    assert method.memory["fc.weight"][0].rank == 4


@pytest.mark.parametrize(("samples", "batches"), [(1, 1), (4, 1), (5, 2), (9, 3), (100, 3), (None, 3)])
def test_whole_batches_until_there_are_enough_inputs(samples, batches):
    loader = [(torch.zeros(4, 2), torch.zeros(4)), {"a": torch.zeros(4, 2)}, torch.zeros(4, 2)]
    assert take(loader, samples) == loader[:batches]


def test_a_used_up_generator_is_named():
    loader = (X for _ in range(2))
    assert len(take(loader, None)) == 2
    with pytest.raises(ValueError, match="generator, it was used up before"):
        take(loader, None)
    with pytest.raises(ValueError, match="yielded no inputs"):
        take([torch.zeros(0, 4)], None)


@pytest.mark.parametrize("loader", [None, 3, "train"])
def test_what_is_not_a_loader_is_refused(loader):
    with pytest.raises(TypeError, match="any iterable of batches"):
        take(loader, None)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_rows_that_are_not_finite_name_the_weight(bad):
    model = redrawn(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2)))
    with torch.no_grad():
        model[0].weight[0, 0] = bad
    with (
        attached(model) as weights,
        pytest.raises(ValueError, match=r"'1.weight': rows hold NaN or infinite values \(6 of 6"),
    ):
        capture_moments(model, weights, [X.abs()])


def test_batches_add_up_and_an_empty_one_adds_nothing():
    model = redrawn(nn.Linear(4, 2))
    with attached(model) as weights:
        (moments,) = capture_moments(model, weights, [X[:1], X[:0], X[1:]])["weight"]
    assert moments.count == 6
    assert_close(gram(moments), square(X))


@pytest.mark.parametrize("groups", [1, 2])
def test_rows_of_a_convolution_in_parts(monkeypatch, groups):
    model, x = redrawn(nn.Conv2d(4, 4, 2, groups=groups)), normal(0, 5, 4, 4, 4)
    whole = captured(model, [x])
    monkeypatch.setattr(convolution, "NUMBERS_AT_ONCE", 1)
    assert_close(captured(model, [x]), whole)
    expected = [square(nn.functional.unfold(part, 2).mT.flatten(0, 1)) for part in x.chunk(groups, dim=1)]
    assert_close(whole["weight"], expected)


class Twice(nn.Module):
    """One module, called twice in a pass; and another that shares its weight."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)
        self.b.weight = self.a.weight

    def forward(self, x):
        one = self.a(x).tanh()
        two = self.a(one).tanh()
        return self.b(two)


def test_all_uses_of_a_weight_are_one_set_of_rows():
    model = redrawn(Twice())
    with torch.no_grad():
        one = model.a(X).tanh()
        two = model.a(one).tanh()
    with attached(model) as weights:
        seen = capture_moments(model, weights, [X])
    assert list(seen) == ["a.weight"]
    (moments,) = seen["a.weight"]
    assert moments.count == 18
    assert_close(gram(moments), square(torch.cat([X, one, two])))


def test_rows_are_those_of_the_changed_network():
    """What a layer sees depends on the effective weights before it."""
    model = redrawn(nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 2)))
    mixing = Mixing(torch.eye(4).double()[None], torch.eye(4).double()[None])  # W (I + I)
    with attached(model) as weights:
        weights["0.weight"].change = mixing
        seen = capture_moments(model, weights, [X])
    assert_close(gram(seen["1.weight"][0]), square(2 * X @ model[0].weight.detach().mT))


def test_protected_outputs_of_a_tied_weight_hold():
    """A conceptor for each module, each from its own rows, would let the other's rows move."""

    class Pair(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(12, 3, bias=False), nn.Linear(12, 3, bias=False)
            self.b.weight = self.a.weight

        def forward(self, x):
            return self.a(x[:, :12]) * self.b(x[:, 12:]).tanh()

    model, old, new = redrawn(Pair()), normal(1, 3, 24), normal(2, 3, 24)
    method = CodeCL(model, aperture=1e5, free_dims=0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    method.guard(optimizer)
    before, learned = model(old).detach(), model(new).detach()
    for task, data in enumerate((old, new)):
        method.begin_task(task, [data])
        for _ in range(20 * task):
            optimizer.zero_grad()
            (model(data) - 1).square().sum().backward()
            optimizer.step()
        method.end_task([data])
    assert_close(model(old), before, rtol=0, atol=1e-7)
    assert (model(new) - learned).abs().max() > 0.05


class Scaled(nn.Linear):
    def forward(self, x):
        return super().forward(x) * x.mean()


class SameThing(nn.Linear):
    def forward(self, x):
        return torch.einsum("...d,od->...o", x, self.weight) + self.bias


class Transposing(nn.Linear):
    """The same numbers in another order."""

    def forward(self, x):
        return super().forward(x).transpose(-1, -2)


class WithExtra(nn.Linear):
    def forward(self, x):
        return super().forward(x), None


class Standardized(nn.Conv1d):
    """Overrides what ``forward`` calls, not ``forward``."""

    def _conv_forward(self, input, weight, bias):
        return super()._conv_forward(input, weight / weight.norm(), bias)


@pytest.mark.parametrize("layer", [Scaled(4, 3), WithExtra(4, 3), Standardized(4, 3, 1)])
def test_a_forward_that_is_not_the_weight_times_its_rows_is_refused(layer):
    model = redrawn(nn.Sequential(layer))
    with attached(model) as weights, pytest.raises(UnseenUse, match=rf"'0' is {type(layer).__name__}.*skip=\["):
        capture_moments(model, weights, [normal(0, 2, 4, 4)])


@pytest.mark.parametrize("layer", [SameThing(4, 3), Transposing(4, 3), SameThing(4, 3).float()])
def test_a_forward_of_its_own_that_is_equivalent_is_accepted(layer):
    model = redrawn(nn.Sequential(layer), dtype=layer.weight.dtype)
    x = normal(0, 2, 5, 4, dtype=layer.weight.dtype)
    assert_close(captured(model, [x])["0.weight"], [square(x.double().flatten(0, 1))])


def test_not_finite_rows_of_a_subclass_name_the_weight_too():
    model = redrawn(nn.Sequential(SameThing(4, 3)))
    with attached(model) as weights, pytest.raises(ValueError, match=r"'0.weight': rows hold NaN"):
        capture_moments(model, weights, [X * float("nan")])


def test_an_empty_batch_tells_nothing_about_a_subclass():
    model = redrawn(nn.Sequential(SameThing(4, 3)))
    assert captured(model, [X[:0]]) == {}


class Around(nn.Module):
    """Uses the weight of ``fc`` by hand."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.fc, self.how = nn.Linear(4, 4), how

    def forward(self, x):
        W = self.fc.weight
        match self.how:
            case "linear":
                return self.fc(x) + nn.functional.linear(x, W)
            case "keyword":
                return self.fc(x) + nn.functional.linear(x, weight=W)
            case "product":
                return self.fc(x) + x @ W.mT
            case "detached":
                return self.fc(x) + x @ W.detach()
            case "data":
                return self.fc(x) + nn.functional.linear(x, W.data)
            case "list":
                return self.fc(x) + x @ torch.cat([W, W])[:4]
            case "several results":
                return self.fc(x) + x @ W.split(4)[0]
            case "harmless":
                start = W.new_zeros(x.shape) + torch.zeros_like(x, dtype=W.dtype, device=W.device)
                assert W.shape[0] == W.size(0) == len(W)
                assert W.requires_grad
                assert W.data.new_zeros(3).sum() == 0
                assert self.state_dict()["fc.weight"].shape == W.shape
                assert torch.zeros_like(W).sum() == 0
                return self.fc(x.float().type_as(W).to(W) + start)


@pytest.mark.parametrize("how", ["linear", "keyword", "product", "detached", "data", "list", "several results"])
def test_a_weight_used_outside_its_module_is_noticed(how):
    model = redrawn(Around(how))
    with (
        attached(model) as weights,
        pytest.raises(UnseenUse, match=r"'fc.weight' is used by .* outside a call of 'fc'"),
    ):
        capture_moments(model, weights, [X])
    assert model(X).shape == (6, 4)


def test_asking_a_weight_for_its_dtype_or_shape_is_no_use_of_it():
    model = redrawn(Around("harmless"))
    assert_close(captured(model, [X])["fc.weight"], [square(X.float().double())])


def test_a_skipped_weight_may_be_used_anyhow():
    model = redrawn(nn.ModuleDict({"net": Around("linear"), "other": nn.Linear(4, 4)}))
    run = lambda model, batch: model["other"](model["net"](batch))  # noqa: E731
    with attached(model, skip=["net"]) as weights:
        assert list(capture_moments(model, weights, [X], run)) == ["other.weight"]


def test_a_module_never_called_is_left_out():
    model = redrawn(nn.ModuleDict({"a": nn.Linear(4, 4), "b": nn.Linear(4, 4)}))
    assert list(captured(model, [X], forward=lambda model, batch: model["b"](batch))) == ["b.weight"]

"""A-GEM against its equations on flat vectors: the same weights after every task, heads and norms included."""

import copy

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.testing import assert_close

from codecl import Method
from codecl.methods.a_gem import AGEM, project
from codecl.methods.replay import Sample
from codecl.networks import MultiHead
from codecl.training.check import CHECKS, check_method
from tests.methods.cases import seeded

LR, CLASSES = 0.3, 3


def network(multi):
    torch.manual_seed(3)
    layers = [nn.Conv2d(2, 4, 2, groups=2), nn.Flatten(), nn.Linear(16, 7), nn.BatchNorm1d(7), nn.Tanh()]
    if multi:
        model = MultiHead(nn.Sequential(*layers), 7, CLASSES, bias=True)
        model.select(2)  # all heads are there from the start
        model.select(0)
        return model.double()
    return nn.Sequential(*layers, nn.Linear(7, CLASSES)).double()


def task_batches(t, n=24, size=8):
    draw = seeded(t)
    x = torch.randn(n, 2, 3, 3, generator=draw, dtype=torch.float64)
    y = torch.randint(0, CLASSES, (n,), generator=draw)
    return list(zip(x.split(size), y.split(size), strict=True))


def literal(model, multi, per_class, epochs):
    """The paper's loop with the published ring; all of the memory is drawn, so nothing is random."""
    parameters, memory, turned = list(model.parameters()), [], [0, 0]

    def logits(features, task):
        return model.heads[task](features) if multi else model[5](features)

    def features(x):
        return model.backbone(x) if multi else model[:5](x)

    def flat(loss):
        found = torch.autograd.grad(loss, parameters, allow_unused=True)
        return torch.cat(
            [torch.zeros(p.numel()) if g is None else g.flatten() for p, g in zip(parameters, found, strict=True)]
        )

    for t in range(3):
        rings = {c: [None] * per_class for c in range(CLASSES)}
        pointer = dict.fromkeys(range(CLASSES), 0)
        for epoch in range(epochs):
            for x, y in task_batches(t):
                g = flat(F.cross_entropy(logits(features(x), t), y))
                if memory:
                    f = features(torch.stack([x for x, _, _ in memory]))
                    one_by_one = [
                        F.cross_entropy(logits(f[i : i + 1], s), c[None]) for i, (_, c, s) in enumerate(memory)
                    ]
                    r = flat(sum(one_by_one) / len(memory))
                    turned[int(g @ r < 0)] += 1
                    if g @ r < 0:
                        g = g - (g @ r) / (r @ r) * r
                with torch.no_grad():
                    for parameter, part in zip(parameters, g.split([p.numel() for p in parameters]), strict=True):
                        parameter.sub_(LR * part.reshape(parameter.shape))
                if epoch == 0:
                    for one, label in zip(x, y, strict=True):
                        rings[int(label)][pointer[int(label)]] = (one, label, t)
                        pointer[int(label)] = (pointer[int(label)] + 1) % per_class
        memory += [entry for ring in rings.values() for entry in ring if entry is not None]
    return memory, turned


@pytest.mark.parametrize("multi", [True, False], ids=["multi-head", "one head"])
@pytest.mark.parametrize("per_class", [1, 4])
def test_the_same_weights_as_the_paper(multi, per_class):
    model = network(multi)
    theirs = copy.deepcopy(model)
    method = AGEM(model, memory_per_class=per_class)
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    method.guard(optimizer)
    for t in range(3):
        method.begin_task(t)
        for _ in range(2):
            for batch in method.watch(task_batches(t)):
                optimizer.zero_grad()
                method.objective(batch).backward()
                optimizer.step()
        method.end_task()
    memory, turned = literal(theirs, multi, per_class, epochs=2)
    assert min(turned) > 0  # gradients agreed, and did not
    for name, value in theirs.state_dict().items():
        assert_close(model.state_dict()[name], value, atol=1e-9, rtol=1e-9, msg=name)
    kept = {(s.task, int(s.y), s.x.sum().item()) for s in method.samples_kept()}
    assert kept == {(t, int(y), x.sum().item()) for x, y, t in memory}


numbers = st.floats(-3, 3, width=32)
vectors = st.integers(1, 6).flatmap(lambda n: st.tuples(*[st.lists(numbers, min_size=n, max_size=n)] * 2))


@given(vectors)
def test_the_projection_is_the_nearest_gradient_that_does_no_harm(pair):
    g, r = (torch.tensor(values, dtype=torch.float64) for values in pair)
    parameter = nn.Parameter(torch.zeros_like(g))
    parameter.grad = g.clone()
    project([parameter], [r])
    if g @ r >= 0:
        assert torch.equal(parameter.grad, g)
    else:
        assert_close(parameter.grad, g - r * (g @ r) / (r @ r))
        assert abs(parameter.grad @ r) <= 1e-12 * r.norm() * g.norm()


def test_a_reference_too_small_for_single_precision():
    """Its square is 0 there; a reference of zeros leaves the gradient alone."""
    for size, expected in ((1e-26, [0.0, 2.0]), (0.0, [-1.0, 2.0])):
        parameter = nn.Parameter(torch.zeros(2))
        parameter.grad = torch.tensor([-1.0, 2.0])
        project([parameter], [torch.tensor([size, 0.0])])
        assert parameter.grad.tolist() == pytest.approx(expected)


def test_the_projection_is_over_all_parameters_at_once():
    """The sign of one product over all decides, and a weight without a gradient of its own gets its share."""
    a, b, c = (nn.Parameter(torch.zeros(2)) for _ in range(3))
    a.grad, b.grad = torch.tensor([1.0, 0.0]), torch.tensor([0.0, -3.0])
    refs = [torch.tensor([1.0, 0.0]), torch.tensor([0.0, 1.0]), torch.tensor([2.0, 0.0])]
    project([a, b, c], refs)  # gᵀr = 1 − 3 = −2, rᵀr = 6
    assert_close(a.grad, torch.tensor([1 + 2 / 6, 0.0]))
    assert_close(b.grad, torch.tensor([0.0, -3 + 2 / 6]))
    assert_close(c.grad, torch.tensor([4 / 6, 0.0]))
    a.grad = torch.tensor([1.0, 0.0])
    project([a], [None])
    assert torch.equal(a.grad, torch.tensor([1.0, 0.0]))


@settings(max_examples=20)
@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2)), max_size=40), st.integers(1, 4))
def test_a_ring_holds_the_last_samples_of_its_class(stream, size):
    method = AGEM(nn.Linear(2, 3), memory_per_class=size)
    for i, (task, label) in enumerate(sorted(stream)):
        method.insert(Sample(torch.tensor([i, i]), torch.tensor(label), task))
    ordered = list(enumerate(sorted(stream)))
    expected = {i for t in range(3) for c in range(3) for i in [i for i, tc in ordered if tc == (t, c)][-size:]}
    assert {int(sample.x[0]) for sample in method.samples_kept()} == expected


def test_only_ended_tasks_are_drawn_from_and_no_sample_twice(monkeypatch):
    method, drawn = AGEM(network(True), memory_per_class=4, reference=5), []
    original = method.batch_of
    monkeypatch.setattr(
        method, "batch_of", lambda samples: drawn.append((len(method.tasks), samples)) or original(samples)
    )
    optimizer = torch.optim.SGD(method.model.parameters(), lr=0.1)
    method.guard(optimizer)
    torch.manual_seed(0)
    for t in range(3):
        method.begin_task(t)
        for batch in method.watch(task_batches(t)):
            optimizer.zero_grad()
            method.objective(batch).backward()
            optimizer.step()
        method.end_task()
    assert [begun for begun, _ in drawn] == [2] * 3 + [3] * 3
    for begun, samples in drawn:
        assert len({id(sample) for sample in samples}) == 5
        assert all(sample.task < begun - 1 for sample in samples)
    assert {sample.task for begun, samples in drawn for sample in samples if begun == 3} == {0, 1}
    size = method.bytes()
    assert size["per_task"] == size["memory"] // 3 > 0


@pytest.mark.parametrize("label", [torch.tensor([0, 1]), torch.tensor(0.5)])
def test_a_label_that_is_no_class_is_refused(label):
    with pytest.raises(TypeError, match=r"class by class: a label must be one whole number; got .* of torch"):
        AGEM(nn.Linear(2, 3)).insert(Sample(torch.zeros(2), label, 0))


class Noisy(nn.Module):
    """Notes what it draws in training."""

    def __init__(self):
        super().__init__()
        self.drawn = []

    def forward(self, x):
        if self.training:
            self.drawn.append(float(torch.rand(())))
        return x


def test_the_memory_changes_nothing_that_the_network_draws():
    """In the passes over the batches of a task a layer draws what it would draw without a memory."""
    drawn = {}
    for make in (Method, AGEM):
        noise = Noisy()
        model = MultiHead(nn.Sequential(nn.Flatten(), nn.Linear(18, 7), noise), 7, CLASSES).double()
        method = make(model)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        method.guard(optimizer)
        torch.manual_seed(5)
        drawn[make] = []
        for t in range(2):
            method.begin_task(t)
            for batch in method.watch(task_batches(t)):
                optimizer.zero_grad()
                method.objective(batch).backward()
                drawn[make].append(noise.drawn[-1])
                optimizer.step()
            method.end_task()
        assert len(noise.drawn) == (6 if make is Method else 9)
    assert drawn[AGEM] == drawn[Method]


@pytest.mark.parametrize("wrong", [{"memory_per_class": 0}, {"reference": 0}])
def test_wrong_settings_are_refused(wrong):
    with pytest.raises(ValueError, match=f"{next(iter(wrong))} must be a positive number of samples; got 0"):
        AGEM(nn.Linear(2, 3), **wrong)


@pytest.mark.slow
def test_it_keeps_every_promise():
    assert len(check_method(lambda model: AGEM(model, memory_per_class=4, reference=8))) == len(CHECKS)

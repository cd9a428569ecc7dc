"""CodeCL against Algorithm 1 on dense matrices: the same W, M and C after every task."""

from collections import OrderedDict

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from codecl import CodeCL
from tests.methods.cases import CLASSES, seeded, train
from tests.methods.reference import Reference, convolution, linear

READINGS = {
    "paper": {},
    "official": {"before": "shared", "after": "effective", "replace": True, "hold": True, "gain": 0.95, "minimum": 0.2},
    "replace alone": {"replace": True},
    "effective rows": {"after": "effective"},
    "gain alone": {"gain": 0.9},
    "cut alone": {"minimum": 0.2},
}


def perceptron():
    torch.manual_seed(1)
    modules = [("a", nn.Linear(6, 9)), ("tanh", nn.Tanh()), ("b", nn.Linear(9, 7)), ("relu", nn.ReLU())]
    model = nn.Sequential(OrderedDict([*modules, ("head", nn.Linear(7, CLASSES))])).double()
    return model, [linear("a.weight", model.a, torch.tanh), linear("b.weight", model.b, torch.relu)], (6,)


def convolutional():
    torch.manual_seed(2)
    modules = [("a", nn.Conv2d(2, 3, 3, padding=1)), ("tanh", nn.Tanh()), ("b", nn.Conv2d(3, 2, 2, stride=2))]
    modules += [("relu", nn.ReLU()), ("flat", nn.Flatten()), ("c", nn.Linear(8, 7)), ("last", nn.Tanh())]
    model = nn.Sequential(OrderedDict([*modules, ("head", nn.Linear(7, CLASSES))])).double()
    layers = [
        convolution("a.weight", model.a, (4, 4), torch.tanh),
        convolution("b.weight", model.b, (2, 2), torch.relu),
        linear("c.weight", model.c, torch.tanh),
    ]
    return model, layers, (2, 4, 4)


def batches_of(task, shape, rank):
    """12 inputs from a space of ``rank`` dimensions, another one for each task, in three batches."""
    generator, d = seeded(10 + task), int(torch.tensor(shape).prod())
    X = torch.randn(12, rank, generator=generator, dtype=torch.float64)
    X = (X @ torch.randn(rank, d, generator=generator, dtype=torch.float64)).reshape(12, *shape) / rank**0.5
    y = torch.randint(0, CLASSES, (12,), generator=generator)
    return list(zip(X.split(4), y.split(4), strict=True))


@pytest.mark.parametrize("reading", READINGS)
@pytest.mark.parametrize(("network", "rank"), [(perceptron, 6), (perceptron, 3), (convolutional, 32)])
def test_the_same_weights_mixings_and_conceptors(network, rank, reading):
    model, layers, shape = network()
    settings = {"aperture": 4.0, "free_dims": 3, "overlap": 0.3, "smallest": 6 if reading == "official" else None}
    settings |= READINGS[reading]
    build = CodeCL.official if reading == "official" else CodeCL.paper
    method = build(model, heads=["head"], **settings)
    change = lambda layer: method.weights[layer.name].change  # noqa: E731
    reference = Reference(
        layers,
        model.head.weight.detach().clone(),
        model.head.bias.detach().clone(),
        lr=0.2,
        start=(lambda layer: change(layer).M[0].detach().clone()) if reading == "official" else None,
        align=lambda layer: change(layer).U[0],
        **settings,
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    method.guard(optimizer)
    freed = 0
    for task in range(3):
        batches = batches_of(task, shape, rank)
        method.begin_task(task, batches)
        reference.begin(batches)
        for layer in layers:
            assert (layer.U is None) == (change(layer) is None)
            if layer.U is not None:
                freed += 1
                assert_close(change(layer).U[0], layer.U, atol=1e-9, rtol=0)
        train(model, batches, optimizer, epochs=3)
        for _ in range(3):
            for x, y in batches:
                reference.step(x, y)
        for layer in layers:
            assert_close(model.get_parameter(layer.name).flatten(1), layer.W, atol=1e-9, rtol=0)
            if layer.M is not None:
                assert_close(change(layer).M[0], layer.M, atol=1e-9, rtol=0)
                assert layer.M.abs().max() > 1e-3
        assert_close(model.head.weight, reference.head, atol=1e-9, rtol=0)
        method.end_task(batches)
        reference.end(batches)
        for layer in layers:
            assert_close(method.memory[layer.name][0].dense(), layer.C, atol=1e-9, rtol=0)
    assert freed > 0 or rank == 3


def test_the_reference_frees_some_layers_and_not_others():
    """What the comparison above is worth: over its cases the overlap test decides both ways."""
    decisions = set()
    for rank in (6, 3):
        model, layers, shape = perceptron()
        reference = Reference(
            layers, model.head.weight.detach(), model.head.bias.detach(), 4.0, 3, 0.3, 0.2, align=lambda layer: layer.U
        )
        for task in range(3):
            reference.begin(batches_of(task, shape, rank))
            decisions |= {(task > 0, layer.U is not None) for layer in layers}
            reference.end(batches_of(task, shape, rank))
    assert decisions == {(False, False), (True, True), (True, False)}

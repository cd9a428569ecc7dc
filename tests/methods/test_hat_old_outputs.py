"""What HAT holds: where masks are hard, old outputs stay to the bit, whatever trains."""

import pytest
import torch
from torch import optim
from torch.testing import assert_close

from codecl import MultiHead
from codecl.methods.hat import HAT
from codecl.networks import AlexNet, LeNet, ReducedResNet18
from tests.marks import slow_but
from tests.methods.cases import seeded
from tests.methods.hat_cases import NETWORKS, Norms, harden, outputs, pictures, train

OPTIMIZERS = {
    "sgd": lambda p: optim.SGD(p, lr=0.1),
    "momentum": lambda p: optim.SGD(p, lr=0.1, momentum=0.9),
    "nesterov": lambda p: optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    "decay": lambda p: optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.1),
    "adam": lambda p: optim.Adam(p, lr=0.01),
    "adamw": lambda p: optim.AdamW(p, lr=0.01, weight_decay=0.3),
}


@pytest.mark.parametrize("kind", slow_but(OPTIMIZERS, "momentum"))
@pytest.mark.parametrize("network", NETWORKS)
def test_with_hard_masks_old_outputs_stay_to_the_bit_whatever_trains(network, kind):
    build, shape = NETWORKS[network]
    torch.manual_seed(0)
    model = build().double()
    norm = "per-task" if network == "norms" and kind != "sgd" else "freeze"
    method = HAT(model, heads=["head"] if hasattr(model, "head") else [], norm=norm)
    optimizer = OPTIMIZERS[kind](model.parameters())
    method.guard(optimizer)
    X = torch.randn(7, *shape, generator=seeded(3), dtype=torch.float64)
    told, moved = {}, {}
    for task in range(3):
        before = {name: value.detach().clone() for name, value in model.named_parameters()}
        method.begin_task(task)
        train(method, pictures(task, shape), optimizer, epochs=4)
        harden(method)
        moved = {name: (value - before[name]).abs() for name, value in model.named_parameters()}
        if task:
            for name, weight in method.weights.items():
                held = weight.projection.kept == 0
                moves = weight.matrices(moved[name]) > 0
                assert held.any()
                assert not (moves & held).any()
            assert torch.equal(moved["a.bias"] == 0, method.A["a.weight"] == 1) or network == "norms" or kind != "adam"
        method.end_task()
        for earlier, expected in told.items():
            assert torch.equal(outputs(method, earlier, X), expected)
        told[task] = outputs(method, task, X)
    assert moved["a.weight"].max() > 1e-4
    assert not torch.allclose(told[0], told[2])


@pytest.mark.parametrize("backbone", slow_but([AlexNet, LeNet, ReducedResNet18], LeNet))
def test_our_networks_keep_old_outputs(backbone):
    """AlexNet has dropout, LeNet one LocalResponseNorm for two groups of units, ResNet sums."""
    torch.manual_seed(0)
    body = backbone()
    model = MultiHead(body, body.features, 3)
    method = HAT(model)
    optimizer = optim.SGD(model.parameters(), lr=0.05)
    method.guard(optimizer)
    X = torch.randn(2, 3, 32, 32, generator=seeded(1))
    batches = [(torch.randn(4, 3, 32, 32, generator=seeded(2)), torch.tensor([0, 1, 2, 0]))]
    method.begin_task(0)
    harden(method)
    method.end_task()
    before, told = body.conv1.weight.detach().clone(), outputs(method, 0, X)
    method.begin_task(1)
    train(method, batches * 2, optimizer, epochs=1)
    method.end_task()
    assert (body.conv1.weight - before).abs().max() > 1e-5
    assert torch.equal(outputs(method, 0, X), told)
    for task in range(2):
        assert_close(method.export(task).eval()(X), outputs(method, task, X))


def test_norms_left_free_are_held_as_their_units():
    method = HAT(Norms().double(), heads=["head"], norm="free")
    optimizer = optim.Adam(method.model.parameters(), lr=0.05)
    method.guard(optimizer)
    method.begin_task(0)
    harden(method)
    method.end_task()
    used = method.A["a.weight"] == 1
    before = method.model.batch.weight.detach().clone()
    method.begin_task(1)
    train(method, pictures(1, (2, 4, 4)), optimizer)
    moved = (method.model.batch.weight - before).abs() > 0
    assert torch.equal(moved, ~used)
    assert method.layers["batch.weight"].note == "free: held as its units are"

"""What reaches a gradient beside the loss does not move old outputs, and is warned of once, by name."""

import copy
from contextlib import nullcontext

import pytest
import torch
from torch import nn, optim
from torch.nn.functional import cross_entropy

from codecl import GPM, HAT, OWM, CodeCL, ProtectionWarning
from tests.marks import slow_but
from tests.method.foreign_cases import FULL, ONE, TWO, decay, one_task, watched
from tests.methods.cases import drift, inputs, loss_on, mlp, outputs_of, task_data, train


@pytest.mark.parametrize("momentum", slow_but([0.0, 0.9], 0.9))
@pytest.mark.parametrize("name", [name for name in FULL if name != "dfgp"])  # which replaces the gradients of the loop
def test_a_loss_term_on_the_weights_is_projected(name, momentum):
    method, optimizer = one_task(FULL[name], momentum=momentum)
    before, start = outputs_of(method, 0, inputs(ONE)), loss_on(method.model, TWO)
    method.begin_task(1, TWO)
    columns = name == "api" and any(weight.columns for weight in method.weights.values())  # steps are always projected
    warns = pytest.warns(ProtectionWarning, match=r"the gradient of 'first.weight', 'second.weight' is more")
    with nullcontext() if columns else warns:
        watched(method, optimizer, TWO, lambda: None, term=decay(method.model), epochs=25)
    assert loss_on(method.model, TWO) < 0.9 * start
    assert drift(outputs_of(method, 0, inputs(ONE)), before) < 1e-9


def add_noise(model):
    for p in model.parameters():
        if p.grad is not None:
            p.grad.add_(torch.randn_like(p), alpha=1e-2)


@pytest.mark.parametrize("way", ["noise", "hook", "by hand"])
def test_whatever_becomes_of_the_gradient_after_backward(way):
    method, optimizer = one_task(FULL["code-cl"], momentum=0.9)
    before, model = outputs_of(method, 0, inputs(ONE)), method.model
    method.begin_task(1, TWO)
    change = {
        "noise": lambda: add_noise(model),
        "hook": lambda: None,
        "by hand": lambda: setattr(model.first.weight, "grad", torch.ones_like(model.first.weight)),
    }[way]
    if way == "hook":
        model.first.weight.register_hook(lambda G: G.sign())
    with pytest.warns(ProtectionWarning, match="the gradient of 'first.weight'") as warned:
        watched(method, optimizer, TWO, lambda: None, after_backward=change)
    assert len(warned) == 1
    assert drift(outputs_of(method, 0, inputs(ONE)), before) < 1e-9


@pytest.mark.parametrize("rows", [200])
def test_a_change_of_few_rows_of_a_large_weight_is_found_within_a_turn(rows):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, rows), nn.Tanh(), nn.Linear(rows, 3)).double()
    method = GPM(model, heads=["2"], threshold=1.0)
    method.begin_task(0, ONE)
    method.end_task(ONE)
    method.begin_task(1, TWO)
    method.guard(optimizer := optim.SGD(model.parameters(), lr=0.1))

    def few():
        model[0].weight.grad[150:] += 1

    with pytest.warns(ProtectionWarning, match="the gradient of '0.weight'"):
        watched(method, optimizer, TWO, lambda: None, after_backward=few, epochs=2)


def clipped(method, optimizer):
    parameters = [*method.model.parameters(), *method.parameters()]
    watched(method, optimizer, TWO, lambda: None, after_backward=lambda: nn.utils.clip_grad_norm_(parameters, 0.1))


def accumulated(method, optimizer):
    for i, (x, y) in enumerate(TWO * 40):
        (cross_entropy(method.model(x), y) * 3).backward()
        if i % 20 == 19:
            optimizer.step()
            optimizer.zero_grad()


def never_cleared(method, optimizer):
    for x, y in TWO * 4:
        cross_entropy(method.model(x), y).backward()
        optimizer.step()


def set_from_grad(method, optimizer):
    wanted = [p for p in (*method.model.parameters(), *method.parameters()) if p.requires_grad]
    for x, y in TWO * 4:
        for p, G in zip(wanted, torch.autograd.grad(cross_entropy(method.model(x), y), wanted), strict=True):
            p.grad = -G
        optimizer.step()


def penalised_gradient(method, optimizer):
    for x, y in TWO * 4:
        optimizer.zero_grad()
        x = x.clone().requires_grad_()
        loss = cross_entropy(method.model(x), y)
        (G,) = torch.autograd.grad(loss, x, create_graph=True)
        (loss + G.square().sum()).backward()
        optimizer.step()


def half_of_the_passes_thrown_away(method, optimizer):
    for x, y in TWO * 4:
        cross_entropy(method.model(x + 1), y).backward()
        optimizer.zero_grad()
        cross_entropy(method.model(x), y).backward()
        optimizer.step()


HONEST = [clipped, accumulated, never_cleared, set_from_grad, penalised_gradient, half_of_the_passes_thrown_away]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("loop", HONEST, ids=lambda loop: loop.__name__)
def test_honest_gradients_are_not_touched(loop, dtype):
    """Warnings are errors in these tests; a soft projection would be seen in the weights if it came twice."""
    ended = []
    for _ in range(2):
        torch.manual_seed(0)
        model = mlp(dtype=dtype)
        method = CodeCL(model, heads=["head"], aperture=2.0, free_dims=2, overlap=0.0)
        one, two = task_data(0, dtype=dtype), task_data(1, dtype=dtype)
        method.begin_task(0, one)
        method.end_task(one)
        method.begin_task(1, two)
        method.guard(optimizer := optim.SGD(model.parameters(), lr=0.05), None if not ended else "gradient")
        TWO[:] = two
        loop(method, optimizer)
        assert not any(weight.steps_only for weight in method.weights.values())
        ended.append(copy.deepcopy(model.state_dict()))
    assert all(torch.equal(ended[0][name], ended[1][name]) for name in ended[0])
    TWO[:] = task_data(1)


class Pulled(GPM):
    """A method of one's own that pulls the weights to zero, by the documented hook."""

    def penalty(self):
        return 5e-2 * sum(weight.parameter.square().sum() for weight in self.weights.values())


def test_the_penalty_of_a_method_is_projected_without_a_warning():
    method, optimizer = one_task(lambda model: Pulled(model, heads=["head"], threshold=1.0), momentum=0.9)
    before = outputs_of(method, 0, inputs(ONE))
    method.begin_task(1, TWO)
    (x, y), *_ = TWO
    optimizer.zero_grad()
    cross_entropy(method.model(x), y).backward()
    weight = method.weights["first.weight"]
    expected = weight.parameter.grad + weight.project(0.1 * weight.parameter.detach())
    optimizer.step()
    torch.testing.assert_close(weight.parameter.grad, expected)
    watched(method, optimizer, TWO, lambda: None)
    assert drift(outputs_of(method, 0, inputs(ONE)), before) < 1e-9


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_a_trace_of_an_earlier_task_is_found():
    model = mlp()
    method = GPM(model, heads=["head"], threshold=1.0)
    method.guard(optimizer := optim.SGD(model.parameters(), lr=0.05))
    method.begin_task(0, ONE)
    traced = torch.jit.trace(model, (ONE[0][0],), check_trace=False)
    method.end_task(ONE)
    before = outputs_of(method, 0, inputs(ONE))
    method.begin_task(1, TWO)
    with pytest.warns(ProtectionWarning, match="the gradient of 'first.weight', 'second.weight'"):
        train(traced, TWO, optimizer)
    assert drift(outputs_of(method, 0, inputs(ONE)), before) < 1e-9


@pytest.mark.parametrize("make", [lambda m: HAT(m, heads=["head"]), lambda m: OWM(m, heads=["head"], alpha=1e-9)])
def test_masks_and_running_projections_see_foreign_terms_too(make):
    model = mlp(norm=False)
    method = make(model)
    method.guard(optimizer := optim.SGD(model.parameters(), lr=0.05))
    method.begin_task(0, ONE)
    model.train()
    watched(method, optimizer, ONE, lambda: None, epochs=5)
    method.end_task(ONE)
    expected = {name: weight.parameter.detach().clone() for name, weight in method.weights.items()}
    held = {name: copy.deepcopy(weight.projection) for name, weight in method.weights.items()}
    method.begin_task(1, TWO)
    with pytest.warns(ProtectionWarning, match="the gradient of 'first.weight'"):
        watched(method, optimizer, TWO, lambda: None, term=decay(model), epochs=5)
    for name, weight in method.weights.items():
        change = weight.matrices(weight.parameter.detach() - expected[name])
        left = change
        for _ in range(64):
            left = left - held[name](left)
        assert left.norm() < 1e-2 * change.norm()

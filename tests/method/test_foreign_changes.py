"""What reaches a weight beside its projected gradient does not move old outputs, and is warned of once, by name."""

import copy
import warnings
from contextlib import nullcontext

import pytest
import torch
from torch import nn, optim
from torch.nn.functional import cross_entropy

from codecl import API, CUBER, DFGP, GPM, HAT, OWM, SGP, TRGP, CodeCL, ProtectionWarning
from tests.marks import slow_but
from tests.methods.cases import drift, inputs, loss_on, mlp, outputs_of, task_data, train

ONE, TWO = task_data(0, n=4, batch=2), task_data(1)  # four inputs: at most four directions in any layer
FULL = {
    "code-cl": lambda model: CodeCL(model, heads=["head"], aperture=1e8, free_dims=2, overlap=0.0),
    "gpm": lambda model: GPM(model, heads=["head"], threshold=1.0),
    "sgp": lambda model: SGP(model, heads=["head"], threshold=1.0, alpha=1e12),
    "trgp": lambda model: TRGP(model, heads=["head"], threshold=1.0, trust=0.0),
    "cuber": lambda model: CUBER(model, heads=["head"], threshold=1.0, agreement=1.0),
    "dfgp": lambda model: DFGP(model, heads=["head"], threshold=1.0),
    "api": lambda model: API(model, heads=["head"], threshold=1.0, rho=1.0, channels=2.0),
}


def one_task(make, dtype=torch.float64, **sgd):
    model = mlp(dtype=dtype)
    method = make(model)
    method.guard(optimizer := optim.SGD(model.parameters(), lr=0.05, **sgd))
    method.begin_task(0, ONE)
    watched(method, optimizer, ONE, lambda: None)
    method.end_task(ONE)
    return method, optimizer


def watched(method, optimizer, batches, after_step, term=lambda: 0.0, after_backward=lambda: None, epochs=12):
    for epoch in range(epochs):
        for x, y in method.watch(batches, epoch, epochs):
            optimizer.zero_grad()
            (cross_entropy(method.model(x), y) + term()).backward()
            after_backward()
            optimizer.step()
            after_step()


def watched_task(method, optimizer, after_step, epochs):
    """All of the second task but its beginning."""
    watched(method, optimizer, TWO, after_step, epochs=epochs)
    method.end_task(TWO)


def decay(model):
    return lambda: 5e-2 * sum(p.square().sum() for p in model.parameters())


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


def clamp(p):
    p.clamp_(-0.1, 0.1)


def clamp_data(p):
    p.data.clamp_(-0.1, 0.1)


def renorm(p):
    p.copy_(p.renorm(2, 0, 0.3) if p.ndim > 1 else p)


def decay_by_hand(p):
    p.mul_(1 - 1e-4)


@pytest.mark.parametrize("build", [lambda p: optim.SGD(p, lr=0.05, momentum=0.9), lambda p: optim.AdamW(p, lr=0.01)])
@pytest.mark.parametrize(
    "change",
    slow_but([clamp, clamp_data, renorm, decay_by_hand], clamp, decay_by_hand),
    ids=lambda change: change.__name__,
)
@pytest.mark.parametrize("name", slow_but(["code-cl", "gpm", "trgp"], "gpm"))
def test_weights_that_are_changed_by_hand_are_put_right(name, change, build):
    """Biases and norms, which are frozen, too."""
    method, _ = one_task(FULL[name])
    before = outputs_of(method, 0, inputs(ONE))
    method.guard(optimizer := build(method.model.parameters()))
    method.begin_task(1, TWO)

    @torch.no_grad()
    def by_hand():
        for p in method.model.parameters():
            change(p)

    with pytest.warns(ProtectionWarning, match="'first.weight', 'second.weight' changed since the last step") as warned:
        watched(method, optimizer, TWO, by_hand)
    assert len(warned) == 1
    method.end_task(TWO)
    assert drift(outputs_of(method, 0, inputs(ONE)), before) < 1e-9


@pytest.mark.parametrize("step", slow_but([20, 39], 39))  # of 40: later than weights are copied, and the last
@pytest.mark.parametrize("name", [name for name in FULL if name != "dfgp"])  # which learns by closures
def test_a_small_change_that_is_made_once_is_found(name, step):
    method, optimizer = one_task(FULL[name])
    before, steps = outputs_of(method, 0, inputs(ONE)), []
    method.begin_task(1, TWO)

    @torch.no_grad()
    def once():
        steps.append(len(steps))
        if steps[-1] == step:
            for p in method.model.parameters():
                p.mul_(1 - 1e-4)

    with pytest.warns(ProtectionWarning, match="'first.weight', 'second.weight' changed since the last step"):
        watched_task(method, optimizer, once, epochs=20)
    assert drift(outputs_of(method, 0, inputs(ONE)), before) < 1e-9


SOFT = {
    "code-cl, 2": lambda model: CodeCL(model, heads=["head"], aperture=2.0, free_dims=2, overlap=0.0),
    "code-cl, 6": lambda model: CodeCL(model, heads=["head"], aperture=6.0, free_dims=2, overlap=0.0),
    "sgp": lambda model: SGP(model, heads=["head"]),
    "owm": lambda model: OWM(model, heads=["head"]),
    "full": lambda model: GPM(model, heads=["head"], threshold=1.0),
}


@pytest.mark.parametrize("shift", [0.0, 2.0])  # a large mean: most of a gradient lies in one direction, firmly held
@pytest.mark.parametrize("way", ["lookahead", "average", "begin again", "sharpness-aware"])
@pytest.mark.parametrize("name", slow_but(SOFT, "code-cl, 2"))
def test_averages_of_states_are_not_warned_of_where_little_is_held_firmly(name, way, shift):
    """Warnings are errors in these tests."""
    one, two = ([(x + shift, y) for x, y in task_data(task, n=32, dtype=torch.float32)] for task in range(2))
    model = mlp(dtype=torch.float32)
    method = SOFT[name](model)
    method.guard(optimizer := optim.SGD(model.parameters(), lr=0.05, momentum=0.9))
    model.train()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "the inputs of .* are protected to")
        for task, batches in enumerate((one, two)):
            method.begin_task(task, batches)
            start = {name: p.detach().clone() for name, p in model.named_parameters()}
            sums, count = copy.deepcopy(start), [1]

            @torch.no_grad()
            def after_step(start=start, sums=sums, count=count):
                count[0] += 1
                for name, p in model.named_parameters():
                    sums[name] += p
                    if way == "lookahead" and count[0] % 5 == 0:
                        start[name].lerp_(p, 0.5)
                        p.copy_(start[name])
                    if way == "sharpness-aware" and p.requires_grad:
                        there = 0.1 * torch.ones_like(p)
                        p.add_(there)
                        p.sub_(there)

            watched(method, optimizer, batches, after_step, epochs=6)
            if way == "average":
                model.load_state_dict({name: value / count[0] for name, value in sums.items()})
            if way == "begin again":
                model.load_state_dict(start)
            method.end_task(batches)


def test_a_change_of_a_few_rows_is_found_once_weights_are_copied_again():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 200), nn.Tanh(), nn.Linear(200, 3)).double()
    method = GPM(model, heads=["2"], threshold=1.0)
    method.guard(optimizer := optim.SGD(model.parameters(), lr=0.1))
    method.begin_task(0, ONE)
    method.end_task(ONE)
    before = model[0](inputs(ONE)).detach()
    method.begin_task(1, TWO)

    @torch.no_grad()
    def few():
        model[0].weight[150:].mul_(0.9)

    with pytest.warns(ProtectionWarning, match="'0.weight' changed since the last step"):
        watched_task(method, optimizer, few, epochs=10)
    assert drift(model[0](inputs(ONE)).detach(), before) < 1e-9


def test_changes_between_tasks_are_found():
    method, _ = one_task(FULL["gpm"])
    before = outputs_of(method, 0, inputs(ONE))
    with torch.no_grad():
        method.model.second.weight.add_(0.1)
    with pytest.warns(ProtectionWarning, match="'second.weight' changed"):
        method.begin_task(1, TWO)
    assert drift(outputs_of(method, 0, inputs(ONE)), before) < 1e-9


@pytest.mark.parametrize("name", ["code-cl", "gpm"])
@pytest.mark.parametrize("late", [False, True])
def test_averages_and_states_of_the_task_are_left_alone(name, late):
    """Restoring the best epoch, stochastic weight averaging, Lookahead: all made of guarded steps."""
    method, optimizer = one_task(FULL[name])
    before, model = outputs_of(method, 0, inputs(ONE)), method.model
    method.begin_task(1, TWO)
    slow = copy.deepcopy(model.state_dict())
    train(model, TWO, optimizer, epochs=20 if late else 1)
    with torch.no_grad():  # Lookahead
        for key, parameter in model.named_parameters():
            if parameter.requires_grad:
                parameter.lerp_(slow[key], 0.5)
    averaged = model.first.weight.detach().clone()
    train(model, TWO, optimizer, epochs=1)
    best = copy.deepcopy(model.state_dict())
    train(model, TWO, optimizer, epochs=3)
    model.load_state_dict(best)
    method.end_task(TWO)
    assert torch.equal(model.first.weight, best["first.weight"])
    assert not torch.equal(averaged, best["first.weight"])
    assert drift(outputs_of(method, 0, inputs(ONE)), before) < 1e-9


def test_averaged_models_of_torch():
    """The average is a model of its own; its weights are loaded into the model as the task ends."""
    method, optimizer = one_task(FULL["gpm"])
    before, model = outputs_of(method, 0, inputs(ONE)), method.model
    method.begin_task(1, TWO)
    sums, count = {}, 0

    def average():
        nonlocal count
        count += 1
        for key, value in model.state_dict().items():
            sums[key] = sums.get(key, 0) + value

    watched(method, optimizer, TWO, average)
    model.load_state_dict({key: value / count for key, value in sums.items()})
    method.end_task(TWO)
    assert drift(outputs_of(method, 0, inputs(ONE)), before) < 1e-9


@pytest.mark.parametrize("fused", [None, True])
@pytest.mark.parametrize("when", ["before guard", "after guard"])
def test_momentum_from_before_the_end_of_a_task_is_dropped_where_it_comes_back(when, fused):
    method, _ = one_task(FULL["gpm"], momentum=0.9, fused=fused)
    before, model = outputs_of(method, 0, inputs(ONE)), method.model
    other = mlp()
    old = optim.SGD(other.parameters(), lr=0.05, momentum=0.9, fused=fused)
    train(other, ONE, old, epochs=2)
    saved = old.state_dict()
    method.begin_task(1, TWO)
    fresh = optim.SGD(model.parameters(), lr=0.05, momentum=0.9, fused=fused)
    if when == "before guard":
        fresh.load_state_dict(saved)
    method.guard(fresh)
    if when == "after guard":
        fresh.load_state_dict(saved)
    train(model, TWO, fresh)
    assert drift(outputs_of(method, 0, inputs(ONE)), before) < 1e-9


def test_momentum_of_the_task_itself_comes_back():
    def run(saved):
        method, _ = one_task(FULL["gpm"])
        method.begin_task(1, TWO)
        method.guard(optimizer := optim.SGD(method.model.parameters(), lr=0.05, momentum=0.9))
        train(method.model, TWO, optimizer, epochs=2)
        if saved:
            kept = copy.deepcopy(optimizer.state_dict())
            method.guard(optimizer := optim.SGD(method.model.parameters(), lr=0.05, momentum=0.9))
            optimizer.load_state_dict(kept)
        train(method.model, TWO, optimizer, epochs=2)
        return method.model.state_dict()

    whole, resumed = run(False), run(True)
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)


@pytest.mark.parametrize("name", ["gpm", "code-cl"])  # which adds parameters
def test_a_fused_optimizer_trains_a_second_task(name):
    ended = []
    for fused in (None, True):
        method, optimizer = one_task(FULL[name], momentum=0.9, fused=fused)
        method.begin_task(1, TWO)
        train(method.model, TWO, optimizer)
        ended.append(method.model.first.weight)
    torch.testing.assert_close(*ended)


def test_what_was_frozen_when_attached_may_not_begin_to_train_within_a_task():
    model = mlp()
    model.second.weight.requires_grad_(False)
    method = GPM(model, heads=["head"], threshold=1.0)
    method.begin_task(0, ONE)
    method.end_task(ONE)
    method.guard(optimizer := optim.SGD(model.parameters(), lr=0.1))
    method.begin_task(1, TWO)
    train(model, TWO, optimizer, epochs=1)
    model.second.weight.requires_grad_()
    with pytest.raises(RuntimeError, match=r"\['second.weight'\] did not train when the method was attached"):
        train(model, TWO, optimizer, epochs=1)


@pytest.mark.parametrize("build", [lambda p: optim.SGD(p, lr=0.02), lambda p: optim.AdamW(p, lr=1e-3, eps=1e-3)])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_narrow_weights_move_by_one_rounding_however_many_steps(dtype, build):
    model = mlp(dtype=dtype)
    method = GPM(model, heads=["head"], threshold=1.0)
    one, two = task_data(0, n=4, batch=2, dtype=dtype), task_data(1, dtype=dtype)
    method.begin_task(0, one)
    method.end_task(one)
    weight = method.weights["first.weight"]
    B, W = method.memory["first.weight"][0].basis, weight.parameter.detach().double()
    method.begin_task(1, two)
    method.guard(optimizer := build(model.parameters()))
    train(model, two, optimizer, epochs=100)
    moved = weight.parameter.detach().double() - W
    rounding = torch.finfo(dtype).eps * weight.parameter.detach().double().abs().max()
    assert moved.abs().max() > 10 * rounding
    assert (moved @ B).abs().max() < 2 * rounding


def test_the_guard_refuses_an_optimizer_of_another_model():
    method, _ = one_task(FULL["gpm"])
    with pytest.raises(ValueError, match="this SGD trains no parameter of the model that gpm is attached to"):
        method.guard(optim.SGD(mlp().parameters(), lr=0.1))


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

"""Weights that change beside the steps of a guarded optimizer are put right, and warned of by name."""

import pytest
import torch
from torch import nn, optim

from codecl import GPM, CodeCL, ProtectionWarning
from tests.marks import slow_but
from tests.method.foreign_cases import FULL, ONE, TWO, one_task, watched, watched_task
from tests.methods.cases import drift, inputs, mlp, outputs_of, task_data, train


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


def three_layers():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 3))


def noisy_tasks():
    generator, size = torch.Generator().manual_seed(0), 16
    return [
        [(torch.randn(size, 8, generator=generator), torch.randint(0, 3, (size,), generator=generator)) for _ in "123"]
        for _ in range(2)
    ]


def softly_held(after_step, aperture=30.0):
    """How far the first task moves while the second is learned, where steps may move what is held, too."""
    one, two = noisy_tasks()
    method = CodeCL(three_layers(), heads=["4"], aperture=aperture, free_dims=0)
    method.guard(optimizer := optim.SGD(method.model.parameters(), lr=0.1))
    method.begin_task(0, one)
    watched(method, optimizer, one, lambda: None, epochs=5)
    method.end_task(one)
    promise = method.promise(0, one)
    method.begin_task(1, two)
    watched(method, optimizer, two, torch.no_grad()(lambda: after_step(method.model)), epochs=20)
    method.end_task(two)
    return promise.check().moved


def every_weight(change):
    return lambda model: [change(p) for p in model.parameters()]


GENERATOR = torch.Generator()
AFTER_EVERY_STEP = {  # and how far it moved old outputs while only the first changes were projected
    "decay": (lambda p: p.mul_(0.98), 0.012),  # 0.295; guarded weight decay moves them by 0.009
    "little decay": (lambda p: p.mul_(0.999), 0.0025),  # 0.026; guarded, and without any, by 0.002
    "noise": (lambda p: p.add_(0.01 * torch.randn(p.shape, generator=GENERATOR)), 0.006),  # 0.105
    "clamp": (lambda p: p.clamp_(-0.2, 0.2), 0.03),  # 0.143
    "renorm": (lambda p: p.copy_(p.renorm(2, 0, 0.5) if p.ndim > 1 else p), 0.05),  # 0.090
}


@pytest.mark.parametrize("name", slow_but(AFTER_EVERY_STEP, "decay"))
def test_changes_after_every_step_are_projected_to_the_end(name):
    """Where steps move what is held, too, the first changes must not pass for steps."""
    change, most = AFTER_EVERY_STEP[name]
    GENERATOR.manual_seed(0)
    with pytest.warns(ProtectionWarning, match="changed since the last step"):
        moved = softly_held(every_weight(change))
    assert moved < most


def test_a_first_change_like_a_step_is_found_as_it_is_repeated():
    """A thousandth of a weight is less than the first steps move it; 0.058 were moved, and by plain steps 0.027."""
    with pytest.warns(ProtectionWarning, match="changed since the last step") as warned:
        moved = softly_held(every_weight(lambda p: p.mul_(0.999)), aperture=6.0)
    told = " ".join(str(w.message) for w in warned)
    assert "'0.weight'" in told
    assert "'2.weight'" in told
    assert moved < 1.2 * softly_held(lambda _: None, aperture=6.0)


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

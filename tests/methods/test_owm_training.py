"""When the projectors of OWM change, what they meet in a training loop, and what is refused."""

from collections import OrderedDict

import pytest
import torch
from torch import nn
from torch.nn.functional import linear, mse_loss
from torch.testing import assert_close

from codecl.attach import UnseenUse, capture_moments
from codecl.layers import ConvolutionKind, base
from codecl.methods.owm import OWM
from tests.methods.cases import mlp, seeded, task_data, train
from tests.methods.owm_cases import closed_form, draw, eye, one_layer, regress

# When P changes, and when it does not.


def test_only_training_passes_of_a_task_count():
    method = OWM(mlp(), heads=["head"])
    batches = task_data(0)
    model, x = method.model, batches[0][0]

    def unchanged():
        return all(torch.equal(P[0], eye(P.shape[-1])) for P in method.memory.values())

    model.train()(x)
    method.begin_task(0, batches)
    model.eval()(x)
    with torch.no_grad():
        model.train()(x)
    method.gradients(batches)
    capture_moments(model, method.weights, [x])
    method.export(0)(x)
    assert unchanged()
    method.end_task(batches)
    model.train()(x)
    assert unchanged()
    method.begin_task(1, batches)
    model.train()(x)
    assert not unchanged()


def test_another_listener_does_not_silence_it():
    """Whoever captures listens beside it."""
    method = OWM(one_layer())
    optimizer = torch.optim.SGD(method.model.parameters(), lr=0.1)
    method.guard(optimizer)
    method.begin_task(0)
    X, Y = draw(0, 4, 6), draw(1, 4, 4)

    def closure():
        optimizer.zero_grad()
        loss = mse_loss(method.model.train()(X), Y)
        loss.backward()
        return loss

    for times in (1, 2):
        capture_moments(method.model, method.weights, [X])
        optimizer.step(closure)
        means = X.mean(0).repeat(times, 1)
        assert_close(method.memory["body.weight"][0], closed_form(means, 1.0), atol=1e-12, rtol=0)


def test_a_weight_used_twice_meets_the_projector_of_both_uses_and_accumulated_parts_each_their_own():
    a, b, y = draw(0, 3, 6), draw(1, 5, 6), draw(2, 4)
    W = one_layer().body.weight.detach().requires_grad_()
    P_a, P_ab = closed_form(a.mean(0, keepdim=True), 1.0), closed_form(torch.stack([a.mean(0), b.mean(0)]), 1.0)
    G_a, G_b = (torch.autograd.grad(mse_loss(linear(x, W), y.expand(len(x), 4)), W)[0] for x in (a, b))

    def losses(method):
        method.begin_task(0)
        body = method.model.train().body
        return (mse_loss(body(x), y.expand(len(x), 4)) for x in (a, b))

    twice, parts = OWM(one_layer()), OWM(one_layer())
    sum(losses(twice)).backward()
    assert_close(twice.model.body.weight.grad, (G_a + G_b) @ P_ab, atol=1e-12, rtol=0)
    for loss in losses(parts):
        loss.backward()
    assert_close(parts.model.body.weight.grad, G_a @ P_a + G_b @ P_ab, atol=1e-12, rtol=0)


def test_an_input_without_a_batch_is_its_own_mean():
    torch.manual_seed(0)
    model = nn.Sequential(OrderedDict(conv=nn.Conv1d(2, 3, 2, bias=False), fc=nn.Linear(4, 2, bias=False))).double()
    method = OWM(model)
    method.begin_task(0)
    x = draw(0, 2, 5)
    model.train().fc(model.conv(input=x)[0])
    rows = torch.stack([x[:, i : i + 2].flatten() for i in range(4)])
    assert_close(method.memory["conv.weight"][0], closed_form(rows, 1.0), atol=1e-12, rtol=0)
    assert_close(method.memory["fc.weight"][0], closed_form(model.conv(x)[:1].detach(), 1.0), atol=1e-12, rtol=0)


def test_groups_may_differ_in_their_number_of_rows(monkeypatch):
    class Uneven(nn.Conv1d):
        pass

    class Ragged(ConvolutionKind):
        def rows(self, x):
            a, b = super().rows(x)
            return a, b[:2]

    monkeypatch.setattr(base, "_KINDS", base._KINDS | {Uneven: Ragged})
    method = OWM(nn.Sequential(OrderedDict(conv=Uneven(2, 2, 3, groups=2, bias=False))).double())
    method.begin_task(0)
    x = draw(0, 2, 2, 6)
    method.model.train()(x)
    for P, channel, n in zip(method.memory["conv.weight"], x.mean(0), (4, 2), strict=True):
        assert_close(P, closed_form(channel.unfold(0, 3, 1)[:n], 1.0), atol=1e-12, rtol=0)


def test_inputs_that_are_not_finite_are_not_taken_up():
    method = OWM(one_layer())
    method.begin_task(0)
    method.model.train()(torch.full((2, 6), torch.nan, dtype=torch.float64))
    assert torch.equal(method.memory["body.weight"][0], eye(6))


# Optimizers, precision, state.


def test_where_the_update_is_projected_weight_decay_is_too_from_the_first_step():
    method = OWM(one_layer(), alpha=0.1)
    W = method.model.body.weight.detach().clone().requires_grad_()
    X, Y = draw(0, 4, 6), draw(1, 4, 4)
    mse_loss(linear(X, W), Y).backward()
    method.begin_task(0)
    regress(method, X, Y, steps=1, lr=0.1, weight_decay=0.5)
    step = (W.grad + 0.5 * W) @ closed_form(X.mean(0, keepdim=True), 0.1)
    assert_close(method.model.body.weight, W - 0.1 * step, atol=1e-12, rtol=0)


@pytest.mark.parametrize("autocast", [False, True])
def test_a_float32_model_is_projected_by_a_matrix_of_float64(autocast):
    model = one_layer(d=40, o=3).float()
    method = OWM(model, alpha=0.01)
    method.begin_task(0)
    X = draw(0, 4, 40)
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        for x in X.float():
            output = model.train()(x.unsqueeze(0))
        output.float().sum().backward()
    P = closed_form(X, 0.01)
    assert method.memory["body.weight"].dtype == torch.float64
    assert_close(method.memory["body.weight"][0], P, atol=1e-6, rtol=0)
    G = torch.ones(3, 1, dtype=torch.float64) @ X[3:]
    assert_close(model.body.weight.grad.double(), G @ P, atol=1e-2 if autocast else 1e-5, rtol=0)


def test_the_best_epoch_is_restored_with_its_projector():
    method = OWM(mlp(), heads=["head"])
    batches = task_data(0)
    optimizer = torch.optim.SGD(method.model.parameters(), lr=0.1)
    method.guard(optimizer)
    method.begin_task(0)
    train(method.model, batches, optimizer, epochs=1)
    best, kept = method.state_dict(within_task=True), {name: P.clone() for name, P in method.memory.items()}
    train(method.model, batches, optimizer, epochs=2)
    assert not torch.equal(method.memory["first.weight"], kept["first.weight"])
    method.load_state_dict(best)
    for name, weight in method.weights.items():
        assert torch.equal(method.memory[name], kept[name])
        assert torch.equal(weight.projection.matrix, kept[name])
    train(method.model, batches, optimizer, epochs=1)
    assert torch.equal(
        best["memory"]["task"]["P"]["first.weight"], kept["first.weight"]
    )  # a snapshot stays what it was


def test_an_open_task_goes_on_from_a_saved_state():
    runs = []
    for interrupted in (False, True):
        method = OWM(mlp(), heads=["head"])
        for step, batch in enumerate(task_data(0) * 2):
            if step == 0:
                method.begin_task(0)
            elif interrupted:
                state, model = method.state_dict(), method.model
                method.guard(still := torch.optim.SGD(model.parameters(), lr=0.0))
                train(model, [batch], still, epochs=1)  # the state that was taken does not change
                fresh = mlp(seed=5)
                fresh.load_state_dict(model.state_dict())
                method = OWM(fresh, heads=["head"])
                method.load_state_dict(state)
            optimizer = torch.optim.SGD(method.model.parameters(), lr=0.1)
            method.guard(optimizer)
            train(method.model, [batch], optimizer, epochs=1)
        runs.append({**method.model.state_dict(), **{f"P of {name}": P for name, P in method.memory.items()}})
    for name, value in runs[0].items():
        assert torch.equal(value, runs[1][name]), name


def test_its_memory_is_a_square_matrix_for_each_group():
    model = nn.Sequential(nn.Conv2d(4, 6, 3, groups=2, bias=False), nn.Flatten(), nn.Linear(10, 2, bias=False))
    assert OWM(model).bytes() == {"memory": 8 * (2 * 18**2 + 10**2), "per_task": 0}


# What is refused.


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"alpha": 0.0}, "alpha must be a finite number above 0; got 0.0"),
        ({"alpha": {"*": -1.0}}, "alpha must be"),
        ({"alpha_end": float("inf")}, "alpha_end must be a finite number above 0; got inf"),
        ({"alpha": {"first*": 1.0}}, "no pattern matches 'second.weight'"),
        ({"alpha_end": {"first*": 1.0}}, "alpha_end: no pattern matches 'second.weight'"),
        ({"update": "epoch"}, "update must be 'batch' or 'task'"),
        ({"update": "task", "alpha_end": 0.1}, "alpha_end must be None with update='task'"),
        ({"patch_stride": 0}, "patch_stride must be a positive number"),
        ({"clip": 0.0}, "clip must be a norm above 0"),
    ],
)
def test_bad_settings_leave_the_model_alone(wrong, message):
    model = mlp()
    with pytest.raises(ValueError, match=message):
        OWM(model, heads=["head"], **wrong)
    assert not any("forward" in vars(module) for module in model.modules())


def test_a_falling_alpha_needs_watch():
    method = OWM(one_layer(), alpha_end=0.1)
    method.begin_task(0)
    with pytest.raises(RuntimeError, match=r"method\.watch\(loader\)"):
        method.model.train()(draw(0, 2, 6))


def test_training_in_evaluation_mode_is_noticed():
    method = OWM(one_layer())
    optimizer = torch.optim.SGD(method.model.parameters(), lr=0.1)
    method.guard(optimizer)
    method.begin_task(0)
    before = method.model.body.weight.detach().clone()
    method.model.eval()(draw(0, 2, 6)).sum().backward()
    with pytest.raises(RuntimeError, match=r"Call model\.train\(\)"):
        optimizer.step()
    assert torch.equal(method.model.body.weight, before)


def test_a_weight_that_is_used_without_a_call_is_noticed_before_training():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Linear(6, 4, bias=False)

        def forward(self, x):
            return linear(self.body(x), self.body.weight.mT)

    with pytest.raises(UnseenUse, match="outside a call"):
        OWM(Tied()).begin_task(0, [torch.randn(2, 6, generator=seeded(0))])

"""OWM against rank-1 updates in loops, against its closed form, and against what it promises."""

from collections import OrderedDict

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn.functional import cross_entropy, linear, mse_loss
from torch.testing import assert_close

from codecl import Conceptor, Method, check_method
from codecl.methods.owm import OWM, absorb
from codecl.training.check.promises import check_state_is_plain
from tests.methods.cases import CLASSES, drift, mlp, seeded, task_data, train
from tests.methods.owm_cases import closed_form, draw, eye, one_layer, regress
from tests.methods.owm_reference import Reference

# The update.


@given(
    g=st.integers(1, 3),
    n=st.integers(1, 9),
    d=st.integers(1, 6),
    alpha=st.sampled_from([1e-4, 0.3, 1.0, 20.0]),
    seed=st.integers(0, 99),
)
@settings(max_examples=40, deadline=None)
def test_all_rows_at_once_are_one_after_another_and_the_closed_form(g, n, d, alpha, seed):
    before, R = draw(seed, g, 2, d), draw(seed + 1, g, n, d)
    P = torch.stack([closed_form(X, 1.0) for X in before])
    sequential = P.clone()
    absorb(P, R, alpha)
    for matrix, rows in zip(sequential, R, strict=True):
        for r in rows:
            k = matrix @ r
            matrix -= torch.outer(k, k) / (alpha + r @ k)
    expected = [closed_form(torch.cat([X, r / alpha**0.5]), 1.0) for X, r in zip(before, R, strict=True)]
    assert_close(P, sequential, atol=1e-10, rtol=0)
    assert_close(P, torch.stack(expected), atol=1e-10, rtol=0)


@pytest.mark.parametrize("n", [1, 3, 20])
def test_as_alpha_falls_to_zero_it_becomes_an_orthogonal_projector(n):
    """Also where rows repeat and alpha is far below what float64 can tell apart."""
    R = draw(0, 1, n, 3) @ draw(1, 3, 8)
    P = eye(8).unsqueeze(0)
    for _ in range(3):
        absorb(P, R, 1e-30)
    B = torch.linalg.svd(R[0], full_matrices=False).Vh[: min(n, 3)]
    assert_close(P[0], eye(8) - B.mT @ B, atol=1e-8, rtol=0)


def test_float64_keeps_a_projector_symmetric_and_positive_where_float32_does_not():
    rows = 30 * draw(2, 1000, 5) @ draw(3, 5, 24)
    P, single, smallest = eye(24).unsqueeze(0), eye(24).float(), 1.0
    for r in rows:
        absorb(P, r.reshape(1, 1, -1), 1e-2)
        k = single @ r.float()
        smallest = min(smallest, float(1e-2 + r.float() @ k))
        single -= torch.outer(k, k) / (1e-2 + r.float() @ k)
    assert smallest < 0
    assert torch.equal(P, P.mT)
    spectrum = torch.linalg.eigvalsh(P[0])
    assert 0 < spectrum[:5].min() < spectrum[:5].max() < 1e-8
    assert_close(spectrum[5:], torch.ones(19, dtype=torch.float64), atol=1e-9, rtol=0)


# The method.


@st.composite
def networks(draw):
    """A convolution, a Linear layer and a head, and 5×6 images that fit."""
    torch.manual_seed(draw(st.integers(0, 99)))
    conv = nn.Conv2d(
        2,
        2,
        draw(st.sampled_from([(2, 2), (1, 3), (3, 2)])),
        stride=draw(st.sampled_from([1, 2, (2, 1)])),
        padding=draw(st.sampled_from([0, 1, (0, 1)])),
        dilation=draw(st.sampled_from([1, 2, (1, 2)])),
        groups=draw(st.sampled_from([1, 2])),
    )
    with torch.no_grad():
        features = conv(torch.zeros(1, 2, 5, 6)).numel()
    modules = [("conv", conv), ("tanh", nn.Tanh()), ("flat", nn.Flatten()), ("fc", nn.Linear(features, 5))]
    return nn.Sequential(OrderedDict([*modules, ("relu", nn.ReLU()), ("head", nn.Linear(5, CLASSES))])).double()


@given(
    model=networks(),
    choices=st.fixed_dictionaries(
        {
            "alpha": st.sampled_from([0.5, 1.0]),
            "alpha_end": st.sampled_from([None, 0.01]),
            "patch_stride": st.sampled_from([None, 2]),
            "clip": st.sampled_from([None, 0.01]),
        }
    ),
)
@settings(max_examples=15, deadline=None)
def test_the_same_weights_and_projectors_as_in_loops(model, choices):
    reference = Reference(model, lr=0.3, **choices)
    method = OWM(model, heads=["head"], bias="free", **choices)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    method.guard(optimizer)
    clipped = set()
    for task in range(2):
        X, y = 2 * draw(task, 12, 2, 5, 6), torch.randint(0, CLASSES, (12,), generator=seeded(task))
        batches = list(zip(X.split(4), y.split(4), strict=True))
        method.begin_task(task, batches)
        for epoch in range(2):
            model.train()
            for i, (x, t) in enumerate(method.watch(batches, epoch, 2)):
                optimizer.zero_grad()
                cross_entropy(model(x), t).backward()
                optimizer.step()
                clipped.add(reference.step(x, t, (epoch + i / 3) / 2) < 1)
            model.eval()
            cross_entropy(model(X), y)  # seen by nobody
        method.end_task(batches)
    for name, parameter in reference.model.named_parameters():
        assert_close(model.get_parameter(name), parameter, atol=1e-9, rtol=0)
    for name, P in reference.P.items():
        assert_close(method.memory[f"{name}.weight"], torch.stack(P), atol=1e-9, rtol=0)
    assert (choices["clip"] is not None) == (True in clipped)


def test_the_projector_is_one_minus_the_conceptor_of_the_mean_inputs():
    """With odds Σ r rᵀ/α, that is aperture √(n/α) over n means; the mean over a batch of sequences keeps positions."""
    method = OWM(one_layer(), alpha=0.3)
    X = draw(0, 12, 5, 6)
    method.begin_task(0, [X])
    regress(method, X, draw(1, 12, 5, 4), steps=3)
    method.end_task()
    means = X.reshape(3, 4, 5, 6).mean(1).reshape(15, 6)
    C = Conceptor.fit(means, aperture=(15 / 0.3) ** 0.5)
    assert_close(method.memory["body.weight"][0], eye(6) - C.dense(), atol=1e-10, rtol=0)


def test_a_step_moves_old_outputs_by_what_the_closed_form_leaves():
    """``ΔW r = −lr G P r``, with P of all means, that of the new batch included."""
    method = OWM(one_layer(), alpha=0.5)
    X, Y, x, y = draw(0, 12, 6), draw(1, 12, 4), draw(2, 4, 6), draw(3, 4, 4)
    method.begin_task(0)
    regress(method, X, Y, steps=3)
    method.end_task()
    method.begin_task(1)
    means = torch.stack([*(b.mean(0) for b in X.split(4)), x.mean(0)])
    W = method.model.body.weight.detach().clone().requires_grad_()
    mse_loss(linear(x, W), y).backward()
    regress(method, x, y, steps=1, lr=0.2)
    moved = linear(means, method.model.body.weight - W).detach()
    assert_close(moved, -0.2 * means @ closed_form(means, 0.5) @ W.grad.mT, atol=1e-12, rtol=0)


@pytest.mark.parametrize("update", ["batch", "task"])
def test_old_outputs_stay_where_alpha_is_small_and_only_there(update):
    """On batches of one input, which are their own means, in a space with room for both tasks."""
    tasks = [(draw(0, 3, 8), draw(1, 3, 4)), (draw(2, 3, 8), draw(3, 3, 4))]
    drifts, learned = [], []
    for alpha in (1e-9, 1e9):
        method = OWM(one_layer(d=8), alpha=alpha, update=update)
        body, told = method.model.body, []
        for task, (x, y) in enumerate(tasks):
            method.begin_task(task)
            before = linear(x, body.weight.detach())
            regress(method, x, y, steps=60, lr=0.2, batch=1)
            method.end_task(x.split(1))
            told.append(linear(tasks[0][0], body.weight.detach()))
            learned.append(float(mse_loss(linear(x, body.weight.detach()), y) / mse_loss(before, y)))
        drifts.append(drift(told[1], told[0]))
    assert drifts[0] < 1e-6
    assert drifts[1] > 1e-1
    small, large = learned[:2], learned[2:]
    assert max(large) < 0.1
    # Within a task, a hard projector forbids what the task itself needs; after tasks, only what others needed.
    assert min(small) > 0.9 if update == "batch" else max(small) < 0.1


def test_a_head_that_tasks_share_is_projected_unless_it_is_named_one():
    shared, named = OWM(mlp()), OWM(mlp(), heads=["head"])
    assert set(shared.memory) - set(named.memory) == {"head.weight"}
    for method in (shared, named):
        model = method.model
        method.begin_task(0)
        x, y = task_data(0)[0]
        plain = method.export(0)
        cross_entropy(plain(x), y).backward()
        cross_entropy(model.train()(x), y).backward()
        P = closed_form(plain[:-1](x).detach().mean(0, keepdim=True), 1.0)
        assert drift(P, eye(6)) > 1e-2
        expected = plain.head.weight.grad @ P if method is shared else plain.head.weight.grad
        assert_close(model.head.weight.grad, expected, atol=1e-12, rtol=0)


def test_each_weight_has_its_own_alpha_and_its_own_end():
    method = OWM(mlp(), heads=["head"], alpha={"first*": 0.1, "*": 7.0}, alpha_end={"first*": 1e-3, "*": 70.0})
    batches, plain = task_data(0), mlp()
    method.begin_task(0)
    for x, _ in method.watch(batches, epoch=1, epochs=2):
        method.model.train()(x)
    seen = {"first.weight": [x for x, _ in batches], "second.weight": [plain[:3](x).detach() for x, _ in batches]}
    halfway = torch.tensor([[0.5], [0.75]], dtype=torch.float64)
    for name, start, ratio in (("first.weight", 0.1, 0.01), ("second.weight", 7.0, 10.0)):
        means = torch.stack([x.mean(0) for x in seen[name]])
        expected = closed_form(means / (start * ratio**halfway).sqrt(), 1.0)
        assert_close(method.memory[name][0], expected, atol=1e-12, rtol=0)


@pytest.mark.slow
def test_it_keeps_what_every_method_promises():
    assert check_method(lambda model: OWM(model, alpha_end=1e-2, clip=1.0, patch_stride=2))
    check_state_is_plain(lambda model: OWM(model, update="task"))


# After tasks instead of within them.


def test_updated_after_tasks_it_learns_the_first_as_fine_tuning_and_remembers_batches():
    batches = task_data(0)
    methods = OWM(mlp(), heads=["head"], update="task", alpha=0.2), Method(mlp(), heads=["head"])
    for method in methods:
        optimizer = torch.optim.SGD(method.model.parameters(), lr=0.1)
        method.guard(optimizer)
        method.begin_task(0, batches)
        train(method.model, batches, optimizer, epochs=2)
        method.end_task(batches)
    owm, plain = methods
    for name, value in plain.model.state_dict().items():
        assert torch.equal(owm.model.state_dict()[name], value), name
    H = torch.stack([plain.model[:3](x).mean(0) for x, _ in batches]).detach()
    P = closed_form(H, 0.2)
    assert_close(owm.memory["second.weight"][0], P, atol=1e-12, rtol=0)
    assert_close(owm.weights["second.weight"].projection.matrix[0], P, atol=1e-12, rtol=0)


def test_the_readings():
    assert OWM.preset("paper") == {}
    assert OWM.preset("official") == {"patch_stride": 2, "clip": 10.0}
    OWM(mlp(), **OWM.preset("official"))

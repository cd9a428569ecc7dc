"""A task of CUBER in which the only old one may gain, in both layers: the cost of change, and demotion."""

import pytest
import torch
from torch.nn.functional import cross_entropy
from torch.testing import assert_close

from tests.algebra.cases import generator, normal
from tests.methods.cases import FIRST, SECOND, mlp, task_data
from tests.methods.cuber_cases import demote, gaining, step
from tests.methods.gpm_reference import projector
from tests.methods.trgp_reference import own_bases


@pytest.mark.parametrize("weight_decay", [0.0, 0.1], ids=["gradient projected", "update projected"])
def test_the_cost_of_change_and_its_gradient(weight_decay):
    method, _ = gaining(strength=0.7, weight_decay=weight_decay)
    S = {name: own_bases(method, 0, name)[0] for name in (FIRST, SECOND)}
    W = {name: method.model.get_parameter(name) for name in S}
    before = {name: value.detach().clone() for name, value in W.items()}
    watched = method.watch(task_data(1))
    next(watched)
    assert float(method.penalty().detach()) == 0.0
    found = torch.autograd.grad(method.penalty(), list(W.values()))
    assert all(torch.equal(G, torch.zeros_like(G)) for G in found)
    with torch.no_grad():
        for seed, value in enumerate(W.values()):
            value += 0.1 * normal(generator(seed), *value.shape)
    moved = {name: (W[name].detach() - before[name]) @ projector(S[name]) for name in S}
    expected = 0.7 * sum(float(D.square().sum()) ** 0.5 for D in moved.values())
    assert float(method.penalty().detach()) == pytest.approx(expected, rel=1e-12)
    found = torch.autograd.grad(method.penalty(), list(W.values()))
    for G, D in zip(found, moved.values(), strict=True):  # nothing is projected out: all of the past is open
        assert_close(G, 0.7 * D / D.norm(), atol=1e-12, rtol=0)
    # One direction of the past is no longer open.
    O = S[FIRST][:, :1]  # noqa: E741
    held = [{"columns": torch.tensor([0]), "beside": S[FIRST][:, :0]}]
    method.chosen.append({FIRST: held})
    method._project_out(method.effective)
    G = torch.autograd.grad(method.penalty(), W[FIRST])[0]
    D = moved[FIRST] / moved[FIRST].norm()
    assert_close(G, 0.7 * (D if weight_decay else D - D @ O @ O.mT), atol=1e-12, rtol=0)
    watched.close()


def test_the_cost_is_part_of_the_step_and_of_the_loss():
    for strength in (0.0, 0.5):
        method, optimizer = gaining(strength=strength)
        batches = task_data(1) * 2
        for x, y in method.watch(batches[:3]):
            step(method, optimizer, x, y)
        method.effective[FIRST].in_R3.fill_(True)
        method.effective[SECOND].in_R3.fill_(True)
        W = {name: method.model.get_parameter(name) for name in (FIRST, SECOND)}
        before = {name: value.detach().clone() for name, value in W.items()}
        for x, y in method.watch(batches[3:]):
            optimizer.zero_grad()
            loss = cross_entropy(method.model(x), y)
            plain = torch.autograd.grad(loss, list(W.values()), retain_graph=True)
            cost = method.penalty()
            extra = torch.autograd.grad(cost, list(W.values()))

            def closure(loss=loss):
                loss.backward()
                return loss

            assert float(optimizer.step(closure)) == pytest.approx(float((loss + cost).detach()), rel=1e-12)
        for (name, value), a, b in zip(W.items(), plain, extra, strict=True):
            assert_close(value.detach(), before[name] - 0.1 * (a + b), atol=1e-12, rtol=0)
            assert (b.abs().max() > 1e-3) == (strength > 0)


def test_a_loop_that_shows_no_batches_is_refused():
    method, optimizer = gaining()
    with pytest.raises(RuntimeError, match=r"cuber looks at the batches .* `for batch in method.watch\(loader\)"):
        step(method, optimizer, *task_data(1)[0])


def test_demotion_protects_what_was_open_and_stays():
    method, _ = gaining()
    A = {name: normal(generator(1), *method.weights[name].shape) for name in (FIRST, SECOND)}
    project = lambda name: method.weights[name].projection(A[name])  # noqa: E731
    assert all(torch.equal(project(name), A[name]) for name in A)
    demote(method, names=[SECOND])
    assert [method.effective[name].in_R3.tolist() for name in (FIRST, SECOND)] == [[True], [False]]
    assert torch.equal(project(FIRST), A[FIRST])
    (B,) = method.memory[SECOND]
    assert_close(project(SECOND), B.remove(A[SECOND]), atol=1e-12, rtol=0)
    demote(method, names=[SECOND])  # it agrees again
    assert [method.effective[name].in_R3.tolist() for name in (FIRST, SECOND)] == [[True], [False]]
    assert_close(project(SECOND), B.remove(A[SECOND]), atol=1e-12, rtol=0)


def test_demotion_looks_at_the_gradient_of_the_last_batch_through_effective_weights():
    method, optimizer = gaining()
    for x, y in method.watch(task_data(1)):
        step(method, optimizer, x, y)
        seen = x, y
    method.effective[FIRST].in_R3.fill_(True)
    bare = mlp()
    bare.load_state_dict(method.model.state_dict())
    effective = {name: method.weights[name].effective().requires_grad_() for name in (FIRST, SECOND)}
    assert (effective[FIRST] - method.model.get_parameter(FIRST)).abs().max() > 1e-4
    cross_entropy(torch.func.functional_call(bare, effective, (seen[0],)), seen[1]).backward()
    (S,), (Q,) = method.effective[FIRST].bases, method.effective[FIRST].Q
    change = torch.eye(8, dtype=torch.float64) + S[0] @ (Q[0].detach() - torch.eye(len(Q[0]))) @ S[0].mT
    G = effective[FIRST].grad @ change.mT
    for shift, stays in ((-1e-6, False), (1e-6, True)):
        method.effective[FIRST].in_R3.fill_(True)
        g = normal(generator(3), *G.shape)
        g = g - (g * G).sum() / G.square().sum() * G  # at right angles to G
        method.past_gradients[0][FIRST] = (g + shift * G * g.norm() / G.norm()).unsqueeze(0)
        for _ in method.watch([task_data(0)[0], seen]):
            pass
        assert method.effective[FIRST].in_R3.tolist() == [stays]


def test_a_layer_without_gradient_in_the_last_batch_keeps_its_regime():
    method, _ = gaining()
    method.gradients = lambda batches: {}
    demote(method)
    assert all(change.in_R3.all() for change in method.effective.values())
    method.gradients = lambda batches: {
        name: torch.zeros(method.weights[name].shape).double() for name in (FIRST, SECOND)
    }
    demote(method)
    assert all(change.in_R3.all() for change in method.effective.values())


@pytest.mark.parametrize(("momentum", "weight_decay"), [(0.0, 0.0), (0.9, 0.0), (0.9, 0.1)])
def test_after_demotion_nothing_moves_in_what_is_protected(momentum, weight_decay):
    method, optimizer = gaining(momentum=momentum, weight_decay=weight_decay)
    inside = lambda: {n: method.model.get_parameter(n) @ own_bases(method, 0, n)[0] for n in (FIRST, SECOND)}  # noqa: E731
    start = inside()
    for x, y in method.watch(task_data(1)):
        step(method, optimizer, x, y)
    method.effective[FIRST].in_R3.fill_(True)
    method.effective[SECOND].in_R3.fill_(True)
    demote(method)
    before = inside()
    assert all((before[name] - start[name]).abs().max() > 1e-4 for name in before)
    for x, y in method.watch(task_data(1) * 3):
        step(method, optimizer, x, y)
    for name, now in inside().items():
        assert_close(now, before[name], atol=1e-12, rtol=0)

"""The network as each task knows it: effective weights, heads, norms and biases, by name or number."""

import numpy as np
import pytest
import torch
from torch import nn, optim
from torch.testing import assert_close

from codecl import CodeCL, Method, MultiHead
from codecl.networks import MLP
from tests.methods.cases import drift, inputs, learn, mlp, outputs_of, task_data, train

TASKS = [task_data(0, n=4, batch=2), task_data(1), task_data(2)]
X = torch.randn(5, 8, generator=torch.Generator().manual_seed(3), dtype=torch.float64)


def three_tasks(names=("a", "b", "c"), **settings):
    """Three tasks learned, and what each then said about X, computed from W, U, M and the stored head by hand."""
    method = CodeCL(mlp(), heads=["head"], **{"aperture": 1e8, "free_dims": 3, "overlap": 0.0} | settings)
    optimizer = optim.SGD(method.model.parameters(), lr=0.1, momentum=0.9)
    method.guard(optimizer)
    heads = []
    for name, batches in zip(names, TASKS, strict=True):
        method.begin_task(name, batches)
        train(method.model, batches, optimizer, epochs=5)
        heads.append((method.model.head.weight.detach().clone(), method.model.head.bias.detach().clone()))
        method.end_task(batches)
    return method, heads


def by_hand(method, position, head):
    """The MLP of ``cases`` on effective weights formed as ``W + W U M Uᵀ``."""
    model, weights = method.model, {}
    for name, weight in method.weights.items():
        W, change = weight.parameter.detach(), method.per_task.effective[position].get(name)
        weights[name] = W if change is None else W + W @ change.U[0] @ change.M[0].detach() @ change.U[0].mT
    h = X @ weights["first.weight"].mT + model.first.bias
    h = torch.tanh(nn.functional.layer_norm(h, (16,), model.norm.weight, model.norm.bias))
    h = torch.relu(h @ weights["second.weight"].mT + model.second.bias)
    return (h @ head[0].mT + head[1]).detach()


def test_a_task_sees_its_effective_weights_and_its_head_by_name_or_number():
    method, heads = three_tasks()
    for position, name in enumerate("abc"):
        expected = by_hand(method, position, heads[position])
        assert_close(outputs_of(method, name, X), expected, atol=1e-12, rtol=0)
        assert torch.equal(outputs_of(method, position, X), outputs_of(method, name, X))
    assert drift(outputs_of(method, "a", X), outputs_of(method, "b", X)) > 1e-2
    assert drift(outputs_of(method, "b", X), outputs_of(method, "c", X)) > 1e-2


def test_numbers_are_names_where_tasks_were_numbered():
    method, heads = three_tasks(names=(7, 3, 0))
    for position, number in enumerate((7, 3, 0)):
        assert_close(outputs_of(method, number, X), by_hand(method, position, heads[position]), atol=1e-12, rtol=0)
    with pytest.raises(ValueError, match="there is no task 1"):
        outputs_of(method, 1, X)


def test_outside_of_a_context_the_last_task_is_shown():
    method, _ = three_tasks()
    assert torch.equal(method.model(X), outputs_of(method, "c", X))


def test_contexts_nest():
    method, _ = three_tasks()
    alone = {name: outputs_of(method, name, X) for name in "abc"}
    with torch.no_grad(), method.task("a"):
        with method.task("b"):
            with method.task("a"):
                assert torch.equal(method.model(X), alone["a"])
            assert torch.equal(method.model(X), alone["b"])
            with method.task("c"):
                assert torch.equal(method.model(X), alone["c"])
        assert torch.equal(method.model(X), alone["a"])
    assert torch.equal(method.model(X), alone["c"])


def test_an_exception_inside_a_context_restores_everything():
    method, _ = three_tasks()
    state = {name: value.clone() for name, value in method.model.state_dict().items()}
    now = method.model(X)
    with pytest.raises(ZeroDivisionError), method.task("a"), method.task("b"):
        _ = 1 / 0
    assert torch.equal(method.model(X), now)
    for name, value in method.model.state_dict().items():
        assert torch.equal(value, state[name])


def test_what_is_done_to_a_head_inside_a_context_is_gone_outside():
    method, _ = three_tasks()
    before = outputs_of(method, "a", X)
    with method.task("a"), torch.no_grad():
        method.model.head.weight.add_(1.0)
    assert torch.equal(outputs_of(method, "a", X), before)


def test_in_the_middle_of_a_task_old_ones_can_be_looked_at_and_training_goes_on_as_if_not():
    def run(look):
        method = CodeCL(mlp(), heads=["head"], free_dims=3, overlap=0.0)
        learn(method, TASKS[:1])
        optimizer = optim.SGD(method.model.parameters(), lr=0.1, momentum=0.9)
        method.guard(optimizer)
        method.begin_task("now", TASKS[1])
        for _ in range(3):
            train(method.model, TASKS[1], optimizer, epochs=1)
            if look:
                with method.task("now"), torch.no_grad():
                    current = method.model(X)
                    assert torch.equal(outputs_of(method, 0, X), outputs_of(method, 0, X))
                    with method.task(0), method.task("now"):
                        assert torch.equal(method.model(X), current)
                assert torch.equal(method.model(X), current)
                method.export(0)
        return method

    one, other = run(look=True), run(look=False)
    for name, value in one.model.state_dict().items():
        assert torch.equal(value, other.model.state_dict()[name])


@pytest.mark.parametrize("task", ["z", 3, -1, None])
def test_an_unknown_task_is_named_beside_the_known_ones(task):
    method, _ = three_tasks()
    with pytest.raises(ValueError, match=rf"there is no task {task!r}.*Known: 'a', 'b', 'c'"), method.task(task):
        pass
    with pytest.raises(ValueError, match=rf"there is no task {task!r}"):
        method.export(task)


@pytest.mark.parametrize("policy", ["freeze", "per-task", "free"])
def test_norms_and_biases_by_policy(policy):
    method, _ = three_tasks(norm=policy, bias=policy)
    names = ["first.bias", "norm.weight", "norm.bias", "second.bias"]
    values = []
    for task in range(3):
        with method.task(task):
            values.append([method.model.get_parameter(name).detach().clone() for name in names])
    same = [torch.equal(a, b) for a, b in zip(values[0], values[2], strict=True)]
    assert same == [policy != "per-task"] * 4
    trains = [method.model.get_parameter(name).requires_grad for name in names]
    assert trains == [policy != "freeze"] * 4


def test_per_task_copies_keep_the_promise():
    """With copies for each task, outputs of task 0 stay though biases and norms learn on."""
    method = CodeCL(mlp(), heads=["head"], aperture=1e8, free_dims=2, overlap=0.0, norm="per-task", bias="per-task")
    learn(method, TASKS[:1])
    before, bias = outputs_of(method, 0, inputs(TASKS[0])), method.model.first.bias.detach().clone()
    learn(method, TASKS[1:])
    assert (method.model.first.bias - bias).abs().max() > 1e-3
    assert drift(outputs_of(method, 0, inputs(TASKS[0])), before) < 1e-9


def test_running_statistics_are_held_or_kept_per_task():
    for norm in ("freeze", "per-task"):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 3)).double()
        method = CodeCL(model, heads=["3"], norm=norm, aperture=1e8, free_dims=0)
        learn(method, TASKS[:1])
        model.eval()
        before, mean = outputs_of(method, 0, inputs(TASKS[0])), model[1].running_mean.clone()
        model.train()
        learn(method, TASKS[1:2])
        model.eval()
        assert torch.equal(model[1].running_mean, mean) == (norm == "freeze")
        assert drift(outputs_of(method, 0, inputs(TASKS[0])), before) < 1e-9


def multihead(classes=3, **options):
    torch.manual_seed(0)
    return MultiHead(MLP((8, 7)), 7, classes, **options).double()


def test_multihead_adds_a_head_for_each_task_in_the_group_of_the_one_before():
    model = multihead(classes=[3, 4, 5], bias=True)
    optimizer = optim.SGD(
        [{"params": list(model.backbone.parameters())}, {"params": list(model.heads.parameters()), "lr": 0.3}], lr=0.1
    )
    method = CodeCL(model, aperture=1e8, free_dims=2, overlap=0.0)
    method.guard(optimizer)
    told = {}
    for task, batches in enumerate(TASKS):
        method.begin_task(task, batches)
        assert model.selected == task
        expected = [id(p) for p in model.heads.parameters()]
        assert [id(p) for p in optimizer.param_groups[1]["params"]] == expected
        head = model.heads[task].weight.detach().clone()
        train(model, batches, optimizer, epochs=5)
        assert (model.heads[task].weight - head).abs().max() > 1e-3
        method.end_task(batches)
        told[task] = outputs_of(method, task, inputs(batches))
    assert len(optimizer.param_groups) == 2
    for task, expected in told.items():
        assert outputs_of(method, task, X).shape == (5, 3 + task)
        assert drift(outputs_of(method, task, inputs(TASKS[task])), expected) < 1e-9
        assert model.selected == 2


@pytest.mark.parametrize("settings", [{"momentum": 0.9, "weight_decay": 0.1}, {"momentum": 0.9}])
def test_old_heads_never_move_and_heads_are_never_projected(settings):
    model = multihead()
    method = CodeCL(model, aperture=1e8, free_dims=0)
    method.guard(optimizer := optim.SGD(model.parameters(), lr=0.1, **settings))
    assert {row.name: row.role for row in method.layers}["heads.0.weight"] == "head"
    assert list(method.weights) == ["backbone.hidden.0.weight"]
    old = []
    for task, batches in enumerate(TASKS):
        method.begin_task(task, batches)
        for x, y in batches * 3:
            optimizer.zero_grad(set_to_none=False)
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
        for head, value in zip(model.heads, old, strict=False):
            assert torch.equal(head.weight, value)
        method.end_task(batches)
        old.append(model.heads[task].weight.detach().clone())


def test_a_new_head_joins_an_optimizer_that_holds_an_older_one_only():
    """As after loading three tasks into a model that was built with one head, and its optimizer with it."""
    learned = CodeCL(multihead(), free_dims=0)
    learn(learned, TASKS)
    model = multihead()
    method = CodeCL(model, free_dims=0)
    method.guard(optimizer := optim.SGD(model.parameters(), lr=0.1))
    model.load_state_dict(learned.model.state_dict())
    method.load_state_dict(learned.state_dict())
    method.begin_task(3, TASKS[0])
    head = model.heads[3].weight.detach().clone()
    train(model, TASKS[0], optimizer, epochs=1)
    assert (model.heads[3].weight - head).abs().max() > 1e-3


def test_fine_tuning_keeps_heads_and_nothing_else():
    method = Method(mlp(), heads=["head"])
    optimizer = optim.Adam(method.model.parameters(), lr=0.01)
    method.guard(optimizer)
    heads, W = [], method.model.first.weight
    for task, batches in enumerate(TASKS):
        method.begin_task(task)
        before = W.detach().clone()
        train(method.model, batches, optimizer)
        assert (W - before).abs().max() > 1e-3
        heads.append(method.model.head.weight.detach().clone())
        method.end_task()
    for task, head in enumerate(heads):
        with method.task(task):
            assert torch.equal(method.model.head.weight, head)
    assert method.bytes()["memory"] == 3 * (6 * 3 + 3) * 8


def test_names_of_tasks_are_plain_in_every_state(tmp_path):
    method = Method(nn.Linear(8, 2))
    for t in (*np.arange(2), np.str_("third")):
        method.begin_task(t, [X.float()])
        method.end_task([X.float()])
    torch.save(method.state_dict(), tmp_path / "state.pt")
    assert torch.load(tmp_path / "state.pt", weights_only=True)["tasks"] == [0, 1, "third"]
    with method.task(np.int64(1)):
        pass
    with pytest.raises(TypeError, match=r"^a task has a string or a whole number for a name; got 1\.5\.$"):
        method.begin_task(1.5, [X.float()])

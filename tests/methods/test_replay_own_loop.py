"""Samples kept in a loop of one's own: as they come, once each, as copies; what cannot be kept is refused."""

from contextlib import nullcontext

import pytest
import torch

from codecl.methods.a_gem import AGEM
from codecl.methods.er import ER
from codecl.training.check.promises import check_other_heads_are_untouched
from tests.methods.replay_cases import network
from tests.methods.replay_loops import batches, own_loop, steps


@pytest.mark.parametrize("make", [AGEM, ER], ids=["a-gem", "er"])
def test_in_a_loop_of_ones_own_samples_are_kept_as_they_come_once(make):
    torch.manual_seed(0)
    method, tasks = make(network()), [batches(0), batches(1)]
    own_loop(method, tasks)
    expected = [(x, t) for t, loader in enumerate(tasks) for xs, _ in loader for x in xs]
    kept = method.samples_kept()
    assert len(kept) == 32  # memory enough for all
    for x, t in expected:
        assert sum(sample.task == t and torch.equal(sample.x, x) for sample in kept) == 1


@pytest.mark.parametrize("make", [AGEM, ER], ids=["a-gem", "er"])
def test_a_step_is_the_same_with_and_without_a_closure(make):
    found = []
    for closure in (False, True):
        torch.manual_seed(0)
        method = make(network())
        own_loop(method, [batches(0), batches(1)], closure=closure)
        found.append(method.model.state_dict())
    for key, value in found[0].items():
        assert torch.equal(value, found[1][key]), key


@pytest.mark.parametrize("make", [AGEM, ER], ids=["a-gem", "er"])
def test_what_cannot_be_is_refused(make):
    with pytest.raises(ValueError, match=r"\['backbone.3'\] would be one module.*MultiHead.*leave heads out"):
        make(network(), heads=["backbone.3"])
    method = make(network())
    optimizer = torch.optim.SGD(method.model.backbone.parameters(), lr=0.1)
    method.guard(optimizer)
    method.begin_task(0)
    method.objective(batches(0)[0]).backward()
    with pytest.raises(ValueError, match=r"lacks \['heads.0.weight'.*one optimizer"):
        optimizer.step()

    method = make(network(), forward=lambda model, batch: model(batch["x"]), loss=lambda out, batch: out.sum())
    optimizer = torch.optim.SGD(method.model.parameters(), lr=0.1)
    method.guard(optimizer)
    method.begin_task(0)
    for batch in method.watch([{"x": batches(0)[0][0]}]):
        method.objective(batch).backward()
        with pytest.raises(TypeError, match="inputs and one of as many labels; got dict"):
            optimizer.step()

    method = make(network())
    optimizer = torch.optim.SGD(method.model.parameters(), lr=0.1)
    method.guard(optimizer)
    method.begin_task(0)
    method.objective(batches(0)[0]).backward()
    with pytest.raises(RuntimeError, match=r"for batch in method\.watch"):
        optimizer.step()


def test_a_head_that_is_held_all_the_same_is_noticed():
    class Holds(ER):
        def begin_task(self, task, loader=None):
            super().begin_task(task, loader)
            self.model.heads[0].weight.requires_grad_(False)

    with pytest.raises(AssertionError, match=r"\['heads.0.weight'\] do not train, though freezes_heads = False"):
        check_other_heads_are_untouched(Holds)


def test_heads_of_earlier_tasks_train_on():
    method = ER(network(), memory=50)
    own_loop(method, [batches(0)])
    before = method.model.heads[0].weight.detach().clone()
    optimizer = torch.optim.SGD(method.model.parameters(), lr=0.1)
    method.guard(optimizer)
    method.begin_task(1)
    assert all(parameter.requires_grad for parameter in method.model.parameters())
    for batch in method.watch(batches(1)):
        method.objective(batch).backward()
        optimizer.step()
    assert not torch.equal(before, method.model.heads[0].weight)


@pytest.mark.parametrize("make", [AGEM, ER], ids=["a-gem", "er"])
def test_an_epoch_that_is_left_early_was_one(make):
    method = make(network())
    optimizer = torch.optim.SGD(method.model.parameters(), lr=0.1)
    method.guard(optimizer)
    for t in range(2):
        method.begin_task(t)
        for _ in range(3):
            steps(method, optimizer, batches(t), stop=2)
        method.end_task()
        assert len(method.samples_kept()) == 8 * (t + 1)


def test_samples_of_accumulated_batches_are_all_offered():
    for make, warns in ((AGEM, nullcontext()), (ER, pytest.warns(UserWarning, match="and 2 came since the last step"))):
        method = make(network())
        optimizer = torch.optim.SGD(method.model.parameters(), lr=0.1)
        method.guard(optimizer)
        method.begin_task(0)
        with warns:
            steps(method, optimizer, batches(0), per_step=2)
        assert len(method.samples_kept()) == 16


@pytest.mark.parametrize("make", [AGEM, ER], ids=["a-gem", "er"])
def test_kept_samples_are_copies(make):
    method = make(network())
    optimizer = torch.optim.SGD(method.model.parameters(), lr=0.1)
    method.guard(optimizer)
    method.begin_task(0)
    loader = batches(0)
    expected = [x.clone() for xs, _ in loader for x in xs]
    steps(method, optimizer, loader)
    for xs, ys in loader:
        xs.zero_()
        ys.fill_(9)
    kept = method.samples_kept()
    assert all(any(torch.equal(sample.x, x) for x in expected) and sample.y < 9 for sample in kept)
    assert len(kept) == 16


BAD = [
    (lambda x, y: (x, y, y), "a tensor of inputs and one of as many labels; got tuple of 3 elements"),
    (lambda x, y: (x[..., :4, :], y), r"inputs must be alike: \[2, 8, 8\] torch.float64 before, \[2, 4, 8\] .* now"),
    (lambda x, y: (x, y.int()), r"labels must be alike: \[\] torch.int64 before, \[\] torch.int32 now"),
]


@pytest.mark.parametrize(("change", "message"), BAD)
@pytest.mark.parametrize("make", [AGEM, ER], ids=["a-gem", "er"])
def test_batches_whose_samples_cannot_be_kept_are_refused(make, change, message):
    method = make(network())
    optimizer = torch.optim.SGD(method.model.parameters(), lr=0.1)
    method.guard(optimizer)
    method.begin_task(0)
    good, other = batches(0)[0], change(*batches(0)[1])
    for i, _ in enumerate(method.watch([good, other])):
        method.model.zero_grad()
        method.objective(good).backward()
        if i == 0:
            optimizer.step()
    method._batch, method.new_batches = other, [other]
    with pytest.raises((TypeError, ValueError), match=message):
        method.after_step()

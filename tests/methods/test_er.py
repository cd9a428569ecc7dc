"""ER against a loop over single samples, and the reservoir against the probabilities of the theory."""

import copy
from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.testing import assert_close

from codecl.methods.er import ER, Reservoir
from codecl.randomness import method_seed
from codecl.training.check import CHECKS, check_method
from tests.methods.test_a_gem import network, task_batches

LR, SEED = 0.2, 11


def literal(model, multi, size, replay, rule):
    """One step on the mean loss over current and stored samples, one by one; then the reservoir."""
    parameters, memory, seen, step = list(model.parameters()), [], 0, 0

    def random(use):
        return torch.Generator().manual_seed(method_seed(SEED, step, use))

    for t in range(3):
        for epoch in range(2):
            for x, y in task_batches(t):
                chosen = range(len(memory))
                if len(memory) > replay:
                    chosen = torch.randperm(len(memory), generator=random("draw"))[:replay].tolist()
                lot = [(one, label, t) for one, label in zip(x, y, strict=True)] + [memory[i] for i in chosen]
                features = (model.backbone if multi else model[:5])(torch.stack([one for one, _, _ in lot]))
                losses = []
                for i, (_, label, task) in enumerate(lot):
                    head = model.heads[task] if multi else model[5]
                    losses.append(F.cross_entropy(head(features[i : i + 1]), label[None]))
                found = torch.autograd.grad(sum(losses) / len(losses), parameters, allow_unused=True)
                with torch.no_grad():
                    for parameter, gradient in zip(parameters, found, strict=True):
                        if gradient is not None:
                            parameter.sub_(LR * gradient)
                slots = random("slots")
                for one, label in zip(x, y, strict=True) if epoch == 0 else ():
                    if seen < size:
                        memory.append((one, label, t))
                    elif (j := int(torch.randint(seen + (rule == "standard"), (), generator=slots))) < size:
                        memory[j] = (one, label, t)
                    seen += 1
                step += 1
    return memory


@pytest.mark.parametrize("rule", ["standard", "published"])
@pytest.mark.parametrize(("multi", "size", "replay"), [(True, 30, 10), (True, 5, 10), (False, 30, 4)])
def test_the_same_weights_and_samples_as_the_literal_loop(multi, size, replay, rule):
    model = network(multi)
    theirs = copy.deepcopy(model)
    method = ER(model, memory=size, replay=replay, reservoir=rule, seed=SEED)
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    method.guard(optimizer)
    for t in range(3):
        method.begin_task(t)
        for _ in range(2):
            for batch in method.watch(task_batches(t)):
                optimizer.zero_grad()
                method.objective(batch).backward()
                optimizer.step()
        method.end_task()
    memory = literal(theirs, multi, size, replay, rule)
    for name, value in theirs.named_parameters():
        assert_close(model.get_parameter(name), value, atol=1e-9, rtol=1e-9, msg=name)
    assert len(method.slots) == size
    for sample, (x, y, t) in zip(method.slots, memory, strict=True):
        assert sample.task == t
        assert torch.equal(sample.x, x)
        assert torch.equal(sample.y, y)
    assert len({sample.task for sample in method.slots}) > 1


def test_a_closure_is_called_only_while_the_memory_is_empty():
    method, called = ER(network(True), memory=50), []
    optimizer = torch.optim.SGD(method.model.parameters(), lr=LR)
    method.guard(optimizer)
    method.begin_task(0)
    for i, batch in enumerate(method.watch(task_batches(0))):

        def closure(batch=batch, i=i):
            called.append(i)
            optimizer.zero_grad()
            loss = method.objective(batch)
            loss.backward()
            return loss

        assert float(optimizer.step(closure).detach()) > 0
    assert called == [0]


SIZE, COUNT, RUNS = 6, 30, 4000


def inclusion(rule):
    """How often each of ``COUNT`` numbers is in the reservoir in the end, over ``RUNS`` runs."""
    counts = torch.zeros(COUNT)
    for run in range(RUNS):
        reservoir, slots = Reservoir(SIZE, rule), [None] * SIZE
        for number in range(COUNT):
            if number % 5 == 0:  # a step of five samples, as the method seeds it
                reservoir.generator = torch.Generator().manual_seed(method_seed(run, number // 5, "slots"))
            if (slot := reservoir.place()) is not None:
                slots[slot] = number
        counts[slots] += 1
    return counts


def expected(rule):
    """A number comes in with probability M/s, s the numbers drawn from, and survives each later one with 1 − 1/s."""
    extra = 1 if rule == "standard" else 0
    chances = []
    for i in range(COUNT):
        chance = 1.0 if i < SIZE else SIZE / (i + extra)
        for later in range(max(i + 1, SIZE), COUNT):
            chance *= 1 - 1 / (later + extra)
        chances.append(chance)
    return torch.tensor(chances)


def distance(counts, p):
    """``Σ (count − N p)² / (N p (1 − p))``: about COUNT − 1, its standard deviation about √(2 COUNT)."""
    return float(((counts - RUNS * p) ** 2 / (RUNS * p * (1 - p))).sum())


def test_samples_are_kept_with_the_probability_of_the_theory():
    bound = COUNT + 5 * (2 * COUNT) ** 0.5
    standard, published = inclusion("standard"), inclusion("published")
    assert_close(expected("standard"), torch.full((COUNT,), SIZE / COUNT))
    assert distance(standard, expected("standard")) < bound
    assert distance(published, expected("published")) < bound
    assert distance(published, expected("standard")) > bound  # the comparison tells the two rules apart
    assert all(a <= b + 1e-6 for a, b in pairwise(expected("published").tolist()))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"memory": 0}, "memory must be a positive"),
        ({"replay": -1}, "replay must be a positive"),
        ({"reservoir": "tall"}, "reservoir must be 'standard' or 'published'; got 'tall'"),
    ],
)
def test_wrong_settings_are_refused(wrong, message):
    with pytest.raises(ValueError, match=message):
        ER(nn.Linear(2, 3), **wrong)


def test_the_published_reading_has_the_published_reservoir():
    assert ER.preset("official") == {"reservoir": "published"}
    assert ER.preset("paper") == {}


@pytest.mark.slow
def test_it_keeps_every_promise():
    assert len(check_method(lambda model: ER(model, memory=40))) == len(CHECKS)

"""What is drawn in training comes from the seed alone: order, samples and dropout, each from a stream of its own."""

import random
from dataclasses import replace

import pytest
import torch

from codecl import CodeCL, Method
from codecl.randomness import generator, seeded
from codecl.training import engine
from tests.training.small import PLAN, Recording, assert_same_bits, differ, small_stream, train


def orders(stream):
    return [task.train.taken for task in stream.tasks]


def test_the_data_order_comes_from_seed_task_and_epoch():
    plan = replace(PLAN, epochs=2, patience=9)
    stream = small_stream(2, Recording)
    train(Method, stream, plan)
    for t, task in enumerate(stream.tasks):
        expected = []
        for epoch in range(2):
            order = torch.randperm(45, generator=generator(plan.seed, "order", t, epoch))
            expected += [some.tolist() for some in order.split(8)]
        assert task.train.taken == expected  # fine-tuning asks for no sample, so none is read


def test_a_method_sees_as_many_inputs_as_it_asks_for_the_same_in_every_run():
    seen = []

    class Asks(Method):
        samples = 20

        def prepare(self, loader):
            seen.append([x.clone() for x, _ in loader])
            return {}

        remember = prepare

    for _ in range(2):
        train(Asks, small_stream(2), replace(PLAN, epochs=1))
    assert [[len(x) for x in sample] for sample in seen] == [[20]] * 6
    task = small_stream(2).tasks[1].train.inputs
    for when, sample in (("before", seen[1]), ("after", seen[2])):
        order = torch.randperm(45, generator=generator(PLAN.seed, "sample", 1, when))
        assert torch.equal(sample[0], task[order[:20]])
    assert all(torch.equal(a[0], b[0]) for a, b in zip(seen[:3], seen[3:], strict=True))


def test_other_dropout_masks_change_the_weights_but_not_the_data(monkeypatch):
    here, there = small_stream(2, Recording), small_stream(2, Recording)
    plan = replace(PLAN, patience=9, epochs=3)
    one = train(CodeCL, here, plan)

    def other(seed, *names):
        return seeded(seed + 1 if names[0] == "dropout" else seed, *names)

    monkeypatch.setattr(engine, "seeded", other)
    another = train(CodeCL, there, plan)
    assert orders(here) == orders(there)
    assert differ(one.model.state_dict(), another.model.state_dict())


def test_what_an_observer_draws_changes_nothing():
    def draws(event):
        torch.manual_seed(event.get("epoch", 0))
        torch.rand(5)
        random.random()

    plain, watched = train(CodeCL), train(CodeCL, observers=(draws,))
    assert plain.progress.accuracy == watched.progress.accuracy
    assert_same_bits(plain.model.state_dict(), watched.model.state_dict())


def test_training_leaves_the_global_random_state_alone():
    torch.manual_seed(5)
    before, python = torch.get_rng_state(), random.getstate()
    train(CodeCL)
    assert torch.equal(before, torch.get_rng_state())
    assert python == random.getstate()


@pytest.mark.parametrize("make", [Method, CodeCL], ids=["finetune", "code-cl"])
def test_the_same_seed_gives_the_same_bits_and_another_seed_others(make):
    one, same, other = train(make), train(make), train(make, plan=replace(PLAN, seed=4))
    assert one.progress.accuracy == same.progress.accuracy
    assert_same_bits(one.model.state_dict(), same.model.state_dict())
    assert differ(one.model.state_dict(), other.model.state_dict())
    assert one.progress.accuracy != other.progress.accuracy

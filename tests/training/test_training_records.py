"""What training records: time where it is spent, events, losses, and how far earlier tasks moved."""

import itertools
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from codecl import CodeCL, Method
from codecl.randomness import generator, seeded
from codecl.training import engine
from codecl.training.engine import Trainer
from tests.training.small import PLAN, network, small_stream, train


def test_time_is_measured_where_it_is_spent(monkeypatch):
    ticks = itertools.count()
    monkeypatch.setattr(engine.time, "perf_counter", lambda: float(next(ticks)))
    events = []
    trainer = train(plan=replace(PLAN, epochs=2, patience=9), observers=(events.append,))
    # one tick within every timed block: 3 tasks of 2 epochs, a validation each, a row of tests after each task, and the
    # outputs of earlier tasks before the second and the third
    assert trainer.progress.seconds == {"train": 6.0, "between_tasks": 6.0, "evaluate": 11.0}
    assert [e["seconds"] for e in events if e["event"] == "epoch"] == [5.0] * 6


def test_events_tell_all_that_a_person_wants_to_see():
    events = []
    trainer = train(CodeCL, small_stream(2), replace(PLAN, epochs=2, patience=9), observers=(events.append,))
    assert [(e["event"], e["task"], e.get("epoch")) for e in events] == [
        ("epoch", 0, 1), ("epoch", 0, 2), ("task", 0, None), ("epoch", 1, 1), ("epoch", 1, 2), ("task", 1, None)
    ]  # fmt: skip
    assert set(events[0]) == {
        "event", "task", "epoch", "of", "loss", "validation_loss", "validation_accuracy", "lr", "seconds"
    }  # fmt: skip
    assert events[0]["of"] == 2
    last = events[-1]
    assert last["accuracy"] == trainer.progress.accuracy[-1]
    assert last["name"] == "task 1"
    assert last["bytes"] == trainer.method.bytes()
    assert last["bytes"]["memory"] > 0
    assert last["layers"] == trainer.method.memory_summary() != events[2]["layers"]
    assert events[2]["accuracy"][1] is None


def test_the_loss_of_an_epoch_is_the_mean_over_its_examples():
    losses = []
    plan = replace(PLAN, lr=1e-12, epochs=1)
    stream = small_stream(1)
    train(plan=plan, stream=stream, observers=(losses.append,))
    model, part, total = network(), stream.tasks[0].train, 0.0
    order = torch.randperm(45, generator=generator(plan.seed, "order", 0, 0))
    with seeded(plan.seed, "dropout", 0, 0), torch.no_grad():
        for some in order.split(8):
            total += F.cross_entropy(model.train()(part.inputs[some]), part.labels[some], reduction="sum").item()
    assert losses[0]["loss"] == pytest.approx(total / 45, rel=1e-6)


def outputs_on_validation(trainer, task):
    part = trainer.stream.tasks[task].validation
    with trainer.method.task(task), torch.no_grad():
        return torch.cat([trainer.model.eval()(part.inputs[i : i + 7]) for i in range(0, len(part.inputs), 7)])


@pytest.mark.parametrize("make", [Method, lambda model: CodeCL(model, aperture=20.0, free_dims=2, overlap=0.05)])
def test_how_far_earlier_tasks_moved_is_recorded(make):
    told, before, expected = [], {}, {}

    def watch(event):
        if event["event"] != "task":
            return
        told.append(event.get("moved"))
        now = {t: outputs_on_validation(trainer, t) for t in range(event["task"] + 1)}
        expected[event["task"]] = [float((now[t] - y).norm() / y.norm()) for t, y in before.items()]
        before.update(now)

    trainer = Trainer(make(network()), small_stream(), PLAN, None, (watch,))
    moved = trainer.run().moved
    assert told == [None, *moved[1:]]
    assert moved[0] == [None, None, None]
    assert moved[1][1:] == [None, None]
    assert moved[1][:1] == pytest.approx(expected[1], rel=1e-4)
    assert moved[2][:2] == pytest.approx(expected[2], rel=1e-4)
    assert min(expected[2]) > 1e-3


def test_where_tasks_are_tested_last_they_are_seen_to_move_last():
    moved = train(plan=replace(PLAN, evaluate="last")).progress.moved
    assert moved[:2] == [[None] * 3] * 2
    assert None not in moved[2][:2]

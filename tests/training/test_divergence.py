"""A loss that is no finite number ends training, and what came before is kept."""

from dataclasses import replace

import pytest

from codecl import Method
from codecl.training.engine import Trainer
from codecl.training.schedule import Diverged
from tests.training.small import PLAN, network, small_stream


class Kept:
    """A store that forgets nothing."""

    def __init__(self):
        self.saved = []

    def save_task(self, task, tree):
        self.saved.append((task, 0))

    def save_epoch(self, task, epoch, tree):
        self.saved.append((task, epoch))

    def latest(self):
        return None


def test_a_loss_that_is_no_number_ends_the_run_and_keeps_what_came_before():
    stream = small_stream(2)
    stream.tasks[1].train.inputs[3, 2] = float("nan")
    store = Kept()
    trainer = Trainer(Method(network()), stream, replace(PLAN, epochs=2, patience=9), store)
    with pytest.raises(Diverged, match=r"task 1 became nan in epoch 1, at learning rate 0.3.*kept.*--set lr"):
        trainer.run()
    assert store.saved == [(0, 0), (0, 1), (0, 2), (1, 0)]
    assert len(trainer.progress.accuracy) == 1


def test_an_infinite_validation_loss_ends_the_run_too():
    stream = small_stream(1)
    stream.tasks[0].validation.inputs[0, 0] = float("inf")
    store = Kept()
    with pytest.raises(Diverged, match="validation loss is nan"):
        Trainer(Method(network()), stream, PLAN, store).run()
    assert store.saved == [(0, 0)]

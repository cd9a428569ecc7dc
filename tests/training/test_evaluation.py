"""Evaluation: fixed batches in the stored order, loss and accuracy by value, and the loss that is trained."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from codecl import Method
from codecl.training.engine import Trainer
from codecl.training.plan import Plan
from codecl.training.stream import Stream, Task, Tensors
from tests.training.small import PLAN, Recording, literal_evaluation, small_stream, train


def test_evaluation_takes_batches_of_a_fixed_size_in_the_stored_order():
    stream = small_stream(2, Recording)
    trainer = train(Method, stream, replace(PLAN, epochs=1))
    for part in (stream.tasks[0].validation, stream.tasks[0].test):
        rows = [list(range(i, min(i + 7, len(part)))) for i in range(0, len(part), 7)]
        assert part.taken[: len(rows)] == rows
        assert len(part.taken) % len(rows) == 0
    assert len(stream.tasks[0].test.taken) == 2 * 5  # after both tasks
    part = small_stream(1).tasks[0].test
    before = trainer.evaluate(part)
    trainer.plan = replace(PLAN, evaluation_batch=30)
    assert trainer.evaluate(part) != before  # without running statistics the composition of a batch matters


def test_evaluation_measures_loss_and_accuracy():
    trainer, part = train(plan=replace(PLAN, epochs=1)), small_stream(1).tasks[0].test
    with trainer.method.task(0):
        loss, accuracy = trainer.evaluate(part)
        assert (loss, accuracy) == literal_evaluation(trainer.model, part, PLAN)
    assert accuracy == trainer.progress.accuracy[-1][0]


def squares(output, batch):
    return (output - F.one_hot(batch[1], 3)).square().mean()


OWN = {
    "forward": {"forward": lambda model, batch: model(3 * batch[0])},
    "loss": {"loss": squares},
    "forward and loss": {"forward": lambda model, batch: model(3 * batch[0]).softmax(1), "loss": squares},
    "an output that has its loss": {
        "forward": lambda model, batch: SimpleNamespace(
            logits=model(batch[0]), loss=F.cross_entropy(model(batch[0]), batch[1], label_smoothing=0.5)
        )
    },
}


@pytest.mark.parametrize("own", OWN.values(), ids=OWN)
def test_validation_measures_what_is_trained(own):
    """The same data, weights that stand still: training and validation see the same loss, and it is not the usual."""
    x = torch.randn(40, 6, generator=torch.Generator().manual_seed(1))
    part = Tensors(x, (x @ torch.ones(6, 3).tril()).argmax(1))
    plan = Plan(epochs=1, batch_size=8, lr=1e-12, evaluation_batch=10)

    def first_epoch(**options):
        events = []
        torch.manual_seed(0)
        method = Method(nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)), **options)
        Trainer(method, Stream("same", [Task("task", 3, part, part, part)]), plan, None, (events.append,)).run()
        with torch.no_grad():
            output = method.forward(method.model, part.take(torch.arange(40)))
        logits = output if isinstance(output, torch.Tensor) else output.logits
        expected = 100 * (logits.argmax(1) == part.labels).double().mean().item()
        assert events[0]["validation_accuracy"] == events[1]["accuracy"][0] == pytest.approx(expected)
        return events[0]["loss"], events[0]["validation_loss"]

    trained, validated = first_epoch(**own)
    assert validated == pytest.approx(trained, rel=1e-6)
    assert abs(validated - first_epoch()[1]) > 0.01

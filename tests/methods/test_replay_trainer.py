"""Samples kept in a trainer: as the stream stores them, once each, the same after a stop, and no more than stated."""

import copy
from dataclasses import replace

import pytest
import torch

from codecl.methods.a_gem import AGEM
from codecl.methods.er import ER
from codecl.networks import MultiHead
from codecl.training.engine import Plan, Trainer
from codecl.training.stream import Stream, Task, Tensors
from tests.marks import slow_but
from tests.methods.cases import seeded
from tests.methods.replay_cases import WIDTHS, network
from tests.methods.replay_loops import batches, steps

PLAN = Plan(epochs=3, batch_size=8, lr=0.1, patience=9, evaluation_batch=16, seed=1)


class Scale:
    """Images of one or two channels as two, another scale for every task."""

    def __init__(self, task):
        self.task = task

    def __call__(self, x):
        x.clamp_(min=1)  # a function of the user's may work in place
        x = x.float() / (50 + 100 * self.task)
        return x if x.shape[1] == 2 else x.repeat(1, 2, 1, 1)


def images(tasks=3):
    """uint8 images; those of the second task are grey."""
    made = []
    for t in range(tasks):
        draw = seeded(t)
        parts = []
        for count in (40, 10, 10):
            x = torch.randint(0, 256, (count, 1 if t == 1 else 2, 8, 8), dtype=torch.uint8, generator=draw)
            teacher = torch.randn(x[0].numel(), WIDTHS[t], generator=seeded(50 + t))
            y = ((x.flatten(1).float() - 128) @ teacher).argmax(1)
            parts.append(Tensors(x, y, Scale(t)))
        made.append(Task(f"task {t}", WIDTHS[t], *parts))
    return Stream("images", made)


def fresh():
    model = network(dtype=torch.float32)
    return MultiHead(model.backbone, 6, WIDTHS, bias=True)


MAKE = {"a-gem": lambda: AGEM(fresh(), memory_per_class=4, reference=9), "er": lambda: ER(fresh(), memory=25)}
MOST = {"a-gem": 4 * sum(WIDTHS), "er": 25}


@pytest.mark.parametrize("name", MAKE)
def test_images_are_kept_as_the_stream_stores_them(name):
    method, stream = MAKE[name](), images()
    Trainer(method, stream, PLAN).run()
    kept = method.samples_kept()
    assert 20 <= len(kept) <= MOST[name]
    assert {sample.task for sample in kept} == {0, 1, 2}
    for sample in kept:
        part = stream.tasks[sample.task].train
        same = [bool(torch.equal(sample.x, x) and sample.y == y) for x, y in zip(part.inputs, part.labels, strict=True)]
        assert sample.x.dtype == torch.uint8
        assert sum(same) == 1
    assert len({(sample.task, sample.x.numpy().tobytes()) for sample in kept}) == len(kept)  # each of them once
    x, y, at = method.batch_of(kept)
    ordered = sorted(kept, key=lambda sample: sample.task)
    for row, label, t, sample in zip(x, y, at.tolist(), ordered, strict=True):
        assert t == sample.task
        assert label == sample.y
        assert torch.equal(row, Scale(t)(sample.x[None])[0])
    pixels = sum(sample.x.numel() for sample in kept)
    assert pixels < method.bytes()["memory"] <= pixels + len(kept) * 16  # and labels and places, 8 bytes each


class Cut(Exception):
    pass


class Storage:
    """Keeps the newest of both kinds as copies, and interrupts at a given epoch of a given task."""

    def __init__(self, at):
        self.at, self.task, self.epoch = at, None, None

    def save_task(self, task, tree):
        self.task, self.epoch = copy.deepcopy(tree), None

    def save_epoch(self, task, epoch, tree):
        self.epoch = copy.deepcopy(tree)
        if (task, epoch) == self.at:
            self.at = None
            raise Cut

    def latest(self):
        return None if self.task is None else copy.deepcopy((self.task, self.epoch))


def same_samples(ours, theirs):
    return len(ours) == len(theirs) and all(
        a.task == b.task and torch.equal(a.x, b.x) and torch.equal(a.y, b.y) for a, b in zip(ours, theirs, strict=True)
    )


@pytest.mark.parametrize("at", slow_but([(0, 1), (1, 1), (1, 2), (2, 3)], (1, 2)))
@pytest.mark.parametrize("name", MAKE)
def test_a_run_that_goes_on_has_the_very_same_samples(name, at):
    whole = MAKE[name]()
    Trainer(whole, images(), PLAN).run()
    storage = Storage(at)
    with pytest.raises(Cut):
        Trainer(MAKE[name](), images(), PLAN, storage).run()
    resumed = MAKE[name]()
    Trainer(resumed, images(), PLAN, storage).run()
    assert same_samples(resumed.samples_kept(), whole.samples_kept())
    for key, value in whole.model.state_dict().items():
        assert torch.equal(value, resumed.model.state_dict()[key]), key


def test_the_best_epoch_takes_no_samples_back():
    method = ER(fresh(), memory=30, every_epoch=True)
    losses, after = [], []

    def observe(event):
        if event["event"] == "epoch":
            losses.append(event["validation_loss"])
            after.append(list(method.samples_kept()))

    Trainer(method, images(1), replace(PLAN, lr=0.5, epochs=4), None, (observe,)).run()
    best = losses.index(min(losses))
    assert best < 3
    assert same_samples(method.samples_kept(), after[3])
    assert not same_samples(after[best], after[3])
    assert method.reservoir.seen == 4 * 40


@pytest.mark.parametrize("name", MAKE)
def test_samples_of_a_trainer_are_not_fed_as_they_are_stored(name):
    trained, fresh_one = MAKE[name](), MAKE[name]()
    Trainer(trained, images(2), PLAN).run()
    fresh_one.model.load_state_dict(trained.model.state_dict())
    fresh_one.load_state_dict(trained.state_dict())
    with pytest.raises(RuntimeError, match=r"task 0 as the stream of a trainer stores them.*set method.decode"):
        fresh_one.batch_of(fresh_one.samples_kept())
    fresh_one.decode = images(2).decode
    ours, theirs = (method.batch_of(method.samples_kept()) for method in (fresh_one, trained))
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))
    # what a loop of one's own adds is kept as it comes, and not prepared again
    optimizer = torch.optim.SGD(fresh_one.model.parameters(), lr=0.01)
    fresh_one.guard(optimizer)
    fresh_one.begin_task(2)
    loader = [(x.float(), y) for x, y in batches(2)]
    steps(fresh_one, optimizer, loader)
    new = [sample for sample in fresh_one.samples_kept() if sample.task == 2]
    x, _, _ = fresh_one.batch_of(new)
    assert len(new) > 2
    assert all(any(torch.equal(one, other) for xs, _ in loader for other in xs) for one in x)

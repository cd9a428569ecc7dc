"""Samples that are kept: as the stream stores them, once each, the same after a stop, and no more than stated."""

import copy
from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from codecl.method.state import ForeignState
from codecl.methods.a_gem import AGEM
from codecl.methods.er import ER
from codecl.methods.replay import Sample, pack, unpack
from codecl.networks import MultiHead
from codecl.training.check.promises import check_other_heads_are_untouched
from codecl.training.engine import Plan, Trainer
from codecl.training.stream import Stream, Task, Tensors
from tests.marks import slow_but
from tests.methods.cases import seeded
from tests.methods.replay_cases import WIDTHS, mixed_batch, network

# Samples as state.

samples = st.lists(
    st.builds(
        lambda t, v: Sample(torch.full((t + 1, 2), v, dtype=torch.uint8), torch.tensor(v % 3), t),
        st.integers(0, 3),
        st.integers(0, 255),
    ),
    max_size=12,
)


@given(samples)
def test_packed_samples_come_back_in_their_order(kept):
    back = unpack(pack(kept))
    assert len(back) == len(kept)
    for one, other in zip(back, kept, strict=True):
        assert one.task == other.task
        assert one.x.dtype == torch.uint8
        assert torch.equal(one.x, other.x)
        assert torch.equal(one.y, other.y)


# In a trainer: images as the stream stores them.

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


# In a loop of one's own.


def own_loop(method, tasks, epochs=2, closure=False):
    optimizer = torch.optim.SGD(method.model.parameters(), lr=0.1)
    method.guard(optimizer)
    for t, loader in enumerate(tasks):
        method.begin_task(t)
        for _ in range(epochs):
            for batch in method.watch(loader):

                def loss(batch=batch):
                    optimizer.zero_grad()
                    value = method.objective(batch)
                    value.backward()
                    return value

                if closure:
                    optimizer.step(loss)
                else:
                    loss()
                    optimizer.step()
        method.end_task()


def batches(t, n=16, size=4):
    (x, y), _ = mixed_batch([t] * n, t)
    return list(zip(x.split(size), y.split(size), strict=True))


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


def steps(method, optimizer, loader, per_step=1, stop=None):
    """One pass of the user's: a step after every ``per_step`` batches, left after ``stop`` of them."""
    for i, batch in enumerate(method.watch(loader)):
        if i % per_step == 0:
            optimizer.zero_grad()
        method.objective(batch).backward()
        if i % per_step == per_step - 1:
            optimizer.step()
        if stop is not None and i + 1 == stop:
            break


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


@pytest.mark.parametrize(("small", "large"), [(AGEM, {"memory_per_class": 5}), (ER, {"memory": 50})])
def test_a_state_with_another_number_of_samples_is_refused(small, large):
    method = small(network(), **large)
    own_loop(method, [batches(0)])
    (setting, value), state = next(iter(large.items())), method.state_dict()
    other = small(network(), **{setting: 2})
    with pytest.raises(ForeignState, match=f"kept with {setting} = {value}; here it is {setting} = 2"):
        other.load_state_dict(state)
    assert other.samples_kept() == []


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

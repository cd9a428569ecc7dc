"""The loop against a literal one: plain Python, one thing after the other."""

import itertools
import math
import random
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from codecl import CodeCL, Method
from codecl.networks import MultiHead
from codecl.randomness import generator, seeded
from codecl.training import engine
from codecl.training.check import Memory
from codecl.training.engine import Trainer
from codecl.training.plan import Plan
from codecl.training.schedule import Diverged
from codecl.training.stream import Stream, Task, Tensors, as_part
from tests.marks import slow_but
from tests.training.storage import Interrupted, Storage

PLAN = Plan(epochs=7, batch_size=8, lr=0.3, patience=1, factor=2.0, min_lr=0.1, evaluation_batch=7, seed=3)


class Backbone(nn.Module):
    """Dropout, and norms with and without running statistics: order, masks and batch composition all matter."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(6, 10), nn.Linear(10, 8, bias=False)
        self.norm, self.batch_norm = nn.BatchNorm1d(10), nn.BatchNorm1d(8, track_running_stats=False)
        self.dropout = nn.Dropout(0.25)

    def forward(self, x):
        return self.batch_norm(self.second(self.dropout(self.norm(self.first(x)).relu()))).relu()


def network(seed=PLAN.seed):
    with seeded(seed, "init"):
        return MultiHead(Backbone(), 8, 3, bias=True)


def small_stream(tasks=3, wrap=lambda x, y: Tensors(x, y)):
    made = []
    for t in range(tasks):
        draw = torch.Generator().manual_seed(t)
        teacher = torch.randn(6, 3, generator=draw)
        inputs = [torch.randn(count, 6, generator=draw) for count in (45, 20, 30)]
        made.append(Task(f"task {t}", 3, *(wrap(x, (x @ teacher).argmax(1)) for x in inputs)))
    return Stream("small", made)


def train(make=Method, stream=None, plan=PLAN, store=None, observers=()):
    trainer = Trainer(make(network(plan.seed)), stream or small_stream(), plan, store, observers)
    trainer.run()
    return trainer


def assert_same_bits(ours, theirs):
    assert ours.keys() == theirs.keys()
    for name in ours:
        assert torch.equal(ours[name], theirs[name]), name


def differ(ours, theirs):
    return any(not torch.equal(ours[name], theirs[name]) for name in ours)


# The literal loop.


def literal_evaluation(model, part, plan):
    model.eval()
    loss, right = 0.0, 0
    with torch.no_grad():
        for begin in range(0, len(part.labels), plan.evaluation_batch):
            rows = list(range(begin, min(begin + plan.evaluation_batch, len(part.labels))))
            x, y = part.inputs[rows], part.labels[rows]  # copies: a slice is aligned otherwise, which moves last bits
            logits = model(x)
            loss += F.cross_entropy(logits, y, reduction="sum").item()
            right += sum(int(row.argmax() == label) for row, label in zip(logits, y, strict=True))
    return loss / len(part.labels), 100 * right / len(part.labels)


def literal_epoch(model, part, plan, task, epoch, lr, momenta):
    order = torch.randperm(len(part.labels), generator=generator(plan.seed, "order", task, epoch)).tolist()
    model.train()
    with seeded(plan.seed, "dropout", task, epoch):
        for begin in range(0, len(order), plan.batch_size):
            chosen = order[begin : begin + plan.batch_size]
            if plan.rule == "annealed":
                lr = literal_annealing(plan, epoch, begin // plan.batch_size, -(-len(order) // plan.batch_size))
            for parameter in model.parameters():
                parameter.grad = None
            F.cross_entropy(model(part.inputs[chosen]), part.labels[chosen]).backward()
            with torch.no_grad():
                for parameter in model.parameters():
                    if parameter.grad is None:  # the head of another task
                        continue
                    step = gradient = parameter.grad.add(parameter, alpha=plan.weight_decay)
                    if plan.momentum:
                        if parameter in momenta:
                            step = momenta[parameter].mul(plan.momentum).add(gradient)
                        momenta[parameter] = step
                    if plan.nesterov:
                        step = gradient.add(step, alpha=plan.momentum)
                    parameter.add_(step, alpha=-lr)
    return lr


def literal_annealing(plan, epoch, batch, batches):
    """The rate of a step: a line up to ``lr``, then half a cosine down to 0."""
    k, steps = epoch * batches + batch, plan.epochs * batches
    w = round(plan.warm_up * steps)
    return plan.lr * ((k + 1) / w) if k < w else plan.lr / 2 * (1 + math.cos(math.pi * (k - w) / (steps - w)))


def literal_training(stream, plan):
    """Fine-tuning: the accuracy matrix, the final weights, and the learning rate of every epoch of every task."""
    model, matrix, rates = network(plan.seed), [], []
    for t, task in enumerate(stream.tasks):
        if t > 0:
            with seeded(plan.seed, "init", t):
                model.select(t)
        lr, book, best, bad, kept, momenta = plan.lr, plan.lr, None, 0, None, {}
        rates.append([])
        for epoch in range(plan.epochs):
            rates[-1].append(literal_epoch(model, task.train, plan, t, epoch, lr, momenta))
            loss, accuracy = literal_evaluation(model, task.validation, plan)
            score = -loss if plan.rule == "loss" else accuracy
            if plan.rule == "annealed":
                if plan.keep == "last" or best is None or score >= best:
                    best, kept = score, {name: value.clone() for name, value in model.state_dict().items()}
                continue
            if best is None or score > best:
                best, bad = score, 0
                kept = {name: value.clone() for name, value in model.state_dict().items()}
                continue
            bad += 1
            if plan.rule == "loss" and bad == plan.patience:
                lr, bad = lr / plan.factor, 0
                if lr < plan.min_lr:
                    break
            elif plan.rule == "accuracy" and bad == plan.patience + 1:
                lr, book, bad = lr / plan.decay, book / plan.factor, 0
            elif plan.rule == "accuracy" and book < plan.min_lr:
                break
        model.load_state_dict(kept)
        row = []
        for seen in range(len(stream)):
            if seen <= t:
                model.select(seen)
                row.append(literal_evaluation(model, stream.tasks[seen].test, plan)[1])
            else:
                row.append(None)
        model.select(t)
        matrix.append(row)
    return matrix, model.state_dict(), rates


PLANS = {
    "loss": PLAN,
    "accuracy": replace(PLAN, rule="accuracy", factor=3.0, decay=1.5, min_lr=0.2),
    "momentum": replace(PLAN, lr=0.1, min_lr=0.01, momentum=0.9),
    "weight decay": replace(PLAN, weight_decay=0.05, epochs=3),
    "annealed": replace(PLAN, rule="annealed", epochs=4),
    "annealed, without warm-up": replace(PLAN, rule="annealed", epochs=2, warm_up=0.0),
    "annealed, the best": replace(PLAN, rule="annealed", keep="best"),
    "annealed, all of SGD": replace(
        PLAN, rule="annealed", lr=0.1, epochs=3, momentum=0.9, nesterov=True, weight_decay=0.01
    ),
    "all epochs": replace(PLAN, patience=50, epochs=4),
    "one batch": replace(PLAN, batch_size=1000, evaluation_batch=1000, epochs=2),
}


@pytest.mark.parametrize("name", slow_but(PLANS, "loss", "accuracy", "annealed, all of SGD", "one batch"))
def test_fine_tuning_is_the_literal_loop_bit_for_bit(name):
    rates, plan = [], PLANS[name]
    trainer = train(
        plan=plan, observers=(lambda e: rates.append((e["task"], e["lr"])) if e["event"] == "epoch" else 0,)
    )
    matrix, weights, expected = literal_training(small_stream(), plan)
    assert trainer.progress.accuracy == matrix
    assert_same_bits(trainer.model.state_dict(), weights)
    assert rates == [(t, lr) for t, of in enumerate(expected) for lr in of]
    assert trainer.progress.epochs == [len(of) for of in expected]


def test_the_plans_above_stop_early_and_decay():
    for name in ("loss", "accuracy"):
        rates = literal_training(small_stream(), PLANS[name])[2]
        assert any(len(of) < PLAN.epochs for of in rates), name
        assert any(len(set(of)) > 1 for of in rates), name


def test_the_best_of_the_annealed_epochs_is_not_the_last():
    best, last = (
        literal_training(small_stream(), replace(PLANS["annealed, the best"], keep=k))[1] for k in ("best", "last")
    )
    assert differ(best, last)


# The best epoch.


def learned(method):
    return [parameter.detach().clone() for parameter in method.parameters()]


class Watched(CodeCL):
    """Notes what it is asked to remember."""

    def remember(self, loader):
        self.ended = getattr(self, "ended", [])
        self.ended.append(({n: v.clone() for n, v in self.model.state_dict().items()}, learned(self)))
        super().remember(loader)


def test_the_best_epoch_is_restored_with_its_mixing_and_head():
    method, epochs = Watched(network(), aperture=8.0, free_dims=3, overlap=0.0, samples=20), []

    def observe(event):
        if event["event"] == "epoch":
            weights = {name: value.clone() for name, value in method.model.state_dict().items()}
            epochs.append((event["task"], event["validation_loss"], weights, learned(method)))

    Trainer(method, small_stream(), replace(PLAN, patience=3), None, (observe,)).run()
    earlier = 0
    for t in range(3):
        of = [(loss, weights, mixing) for task, loss, weights, mixing in epochs if task == t]
        best = min(range(len(of)), key=lambda i: of[i][0])
        earlier += best < len(of) - 1
        assert_same_bits(method.ended[t][0], of[best][1])
        assert len(method.ended[t][1]) == (0 if t == 0 else 2)
        for ours, theirs in zip(method.ended[t][1], of[best][2], strict=True):
            assert torch.equal(ours, theirs)
            assert bool((ours != 0).any())
        assert torch.equal(method.model.state_dict()[f"heads.{t}.weight"], of[best][1][f"heads.{t}.weight"])
    assert earlier > 0  # else nothing had to be restored


# Random streams.


class Recording(Tensors):
    """A part that notes what is taken from it."""

    def __init__(self, x, y):
        super().__init__(x, y)
        object.__setattr__(self, "taken", [])

    def take(self, indices):
        self.taken.append(indices.tolist())
        return super().take(indices)


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


# Data of every kind.


@pytest.mark.parametrize(
    "wrap",
    [
        lambda x, y: as_part((x, y)),
        lambda x, y: as_part(TensorDataset(x, y)),
        lambda x, y: as_part(DataLoader(TensorDataset(x, y), batch_size=13, shuffle=True)),
    ],
    ids=["pair", "dataset", "loader"],
)
def test_datasets_and_loaders_give_the_numbers_of_tensors(wrap):
    plain, wrapped = train(CodeCL), train(CodeCL, small_stream(wrap=wrap))
    assert plain.progress.accuracy == wrapped.progress.accuracy
    assert_same_bits(plain.model.state_dict(), wrapped.model.state_dict())


# Evaluation.


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


# Going on.


@pytest.mark.parametrize("rule", slow_but(["loss", "accuracy", "annealed"], "loss"))
def test_rule_and_momentum_go_on_where_they_were(rule):
    """From every write of a run in which the learning rate falls and momentum builds up."""
    plan = replace(PLAN, rule=rule, momentum=0.9, lr=0.2, min_lr=0.05, decay=1.5, epochs=5)
    rates = []
    whole = train(CodeCL, small_stream(2), plan, observers=(lambda e: rates.append(e.get("lr")),))
    assert len(set(rates)) > 2
    store = Memory()
    train(CodeCL, small_stream(2), plan, store)
    assert len(store.copies) == 2 + sum(whole.progress.epochs)
    for number, copied in enumerate(store.copies, start=1):
        resumed = train(CodeCL, small_stream(2), plan, copied)
        assert resumed.progress.accuracy == whole.progress.accuracy, number
        assert resumed.progress.epochs == whole.progress.epochs
        assert_same_bits(resumed.model.state_dict(), whole.model.state_dict())


# When something goes wrong.


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


# Records.


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


@pytest.mark.parametrize("writes", [3, 12])
def test_a_run_that_goes_on_records_the_same(writes):
    storage = Storage(writes)
    with pytest.raises(Interrupted):
        train(store=storage)
    storage.writes = -1
    assert train(store=storage).progress.moved == train().progress.moved


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

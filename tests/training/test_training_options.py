"""Optimizers, half precision, augmentation, workers and sparse evaluation: each by value, and exact on resume."""

import dataclasses

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.utils.data import Dataset

from codecl import AGEM, API, CUBER, DFGP, ER, EWC, GPM, HAT, OWM, SGP, TRGP, TRGPSD, CodeCL, Method, Multitask
from codecl.networks import MultiHead
from codecl.randomness import generator, seeded
from codecl.training import metrics
from codecl.training.augment import Augmentation
from codecl.training.check import Memory, Stop, same_weights, small_stream
from codecl.training.engine import Trainer
from codecl.training.loader import BatchLoader
from codecl.training.plan import Plan
from codecl.training.stream import FromDataset, JointPart, Stream, Task

METHODS = [Method, CodeCL, GPM, SGP, TRGP, CUBER, TRGPSD, DFGP, API, OWM, EWC, HAT, AGEM, ER, Multitask]
PLAN = Plan(epochs=2, batch_size=16, lr=0.01, evaluation_batch=24)
OPTIONS = {
    "adam": {"optimizer": "adam", "weight_decay": 0.01},
    "adamw": {"optimizer": "adamw", "weight_decay": 0.01},
    "bf16": {"precision": "bf16"},
    "crop and flip": {"crop": 1, "flip": True},
    "annealed sgd": {"rule": "annealed", "momentum": 0.9, "nesterov": True},
    "all of them": {"optimizer": "adamw", "precision": "bf16", "crop": 1, "flip": True, "rule": "annealed"},
}


class Network(nn.Module):
    """A convolution, dropout and a linear layer: small, and traceable by HAT."""

    features = 8

    def __init__(self):
        super().__init__()
        self.conv, self.last = nn.Conv2d(2, 4, 3, padding=1), nn.Linear(4 * 16, 8)
        self.dropout = nn.Dropout(0.2)

    def forward(self, x):
        return self.last(self.dropout(self.conv(x).relu()).flatten(1)).relu()


def network():
    with seeded(0, "network"):
        return MultiHead(Network(), Network.features, 3)


def train(make, plan, stream=None, store=None, **more):
    trainer = Trainer(make(network()), stream or small_stream(2), plan, store, **more)
    trainer.run()
    return trainer


def assert_exact_on_resume(make, plan, stream=None, writes=(2, 5)):
    """From what it saved within and after the first task, a run goes on to the bits that it came to."""
    store = Memory()
    whole = train(make, plan, stream, store)
    assert len(store.copies) >= max(writes) or make is Multitask, "less was saved"
    for write in writes:
        if write <= len(store.copies):
            resumed = train(make, plan, stream, store.copies[write - 1])
            assert resumed.progress.accuracy == whole.progress.accuracy
            same_weights(resumed.model, whole.model, f"stopped after write {write}")


@pytest.mark.slow
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("make", METHODS, ids=lambda method: method.name)
def test_every_option_is_exact_on_resume_with_every_method(make, options):
    assert_exact_on_resume(make, dataclasses.replace(PLAN, **options))


@pytest.mark.parametrize(
    ("options", "kind", "extra"),
    [
        ({"optimizer": "adam", "weight_decay": 0.1}, torch.optim.Adam, {"weight_decay": 0.1}),
        ({"optimizer": "adamw", "weight_decay": 0.1}, torch.optim.AdamW, {"weight_decay": 0.1}),
        ({"momentum": 0.5}, torch.optim.SGD, {"momentum": 0.5}),
    ],
)
def test_an_optimizer_steps_as_torchs_own_does(options, kind, extra):
    plan = dataclasses.replace(PLAN, epochs=1, batch_size=48, **options)
    found = train(Method, plan, small_stream(1)).model
    model, part = network(), small_stream(1).tasks[0].train
    optimizer = kind(model.parameters(), plan.lr, **extra)
    order = torch.randperm(48, generator=generator(0, "order", 0, 0))
    with seeded(0, "dropout", 0, 0):
        F.cross_entropy(model(part.inputs[order]), part.labels[order]).backward()
    optimizer.step()
    same_weights(found, model, "one step over the whole part")


def test_half_precision_reaches_the_forward_pass_and_nothing_else():
    seen = set()

    class Watches(Method):
        def objective(self, batch, net=None):
            output = self.forward(self.model, batch)
            seen.add(("output", output.dtype))
            return self.loss(output, batch)

    model = network()
    model.backbone.last.register_forward_hook(lambda _, args, out: seen.add(("layer", out.dtype)))
    trainer = Trainer(Watches(model), small_stream(1), dataclasses.replace(PLAN, precision="bf16"))
    plain = trainer.method.forward
    trainer.run()
    assert seen == {("output", torch.float32), ("layer", torch.bfloat16)}
    assert trainer.method.forward is plain
    assert all(p.dtype == torch.float32 and p.grad.dtype == torch.float32 for p in model.parameters())
    near = train(Method, PLAN, small_stream(1)).model.state_dict()
    for name, value in trainer.model.state_dict().items():
        torch.testing.assert_close(value, near[name], atol=0.02, rtol=0.1)


def test_float16_scales_its_loss_and_keeps_the_scale_on_resume():
    plan = dataclasses.replace(PLAN, precision="fp16", epochs=3)
    assert_exact_on_resume(GPM, plan, writes=(2, 3, 6))
    store = Memory(3)
    with pytest.raises(Stop):
        train(Method, plan, None, store)
    _, epoch = store.latest()
    assert epoch["scaler"]["scale"] >= 1


# Augmentation.


def literal_augmentation(x, crop, flip, generator):
    """One image at a time, from the definition."""
    n, _, height, width = x.shape
    down, right = torch.randint(0, 2 * crop + 1, (2, n, 1), generator=generator) if crop else torch.zeros(2, n, 1)
    mirrored = torch.rand(n, 1, generator=generator) < 0.5 if flip else torch.zeros(n, 1)
    images = []
    for image, d, r, m in zip(x, down, right, mirrored, strict=True):
        border = F.pad(image, (crop,) * 4)[:, int(d) : int(d) + height, int(r) : int(r) + width]
        images.append(border.flip(2) if m else border)
    return torch.stack(images)


@given(st.integers(1, 5), st.integers(1, 3), st.integers(1, 6), st.integers(1, 6), st.integers(0, 4), st.booleans())
def test_augmentation_is_a_crop_with_a_border_and_a_flip(n, channels, height, width, crop, flip):
    x = torch.randn(n, channels, height, width)
    found = Augmentation(crop, flip, torch.Generator().manual_seed(1))(x)
    assert torch.equal(found, literal_augmentation(x, crop, flip, torch.Generator().manual_seed(1)))
    assert found.is_contiguous()


def test_augmentation_needs_images():
    with pytest.raises(ValueError, match=r"crop and flip need images .* got inputs \[3, 7\]"):
        Augmentation(1, False, torch.Generator())(torch.zeros(3, 7))


def test_augmentation_changes_training_alone_and_no_other_random_stream():
    seen = {}

    class Records(Method):
        def objective(self, batch, net=None):
            seen.setdefault(len(seen), batch[0].clone())
            return super().objective(batch, net)

    for options in ({}, {"flip": True}):
        seen.clear()
        trainer = train(Records, dataclasses.replace(PLAN, epochs=1, **options), small_stream(1))
        batches = dict(seen)
        if not options:
            plain, before = batches, trainer
    for i, x in batches.items():  # the same inputs in the same order, each as it is or mirrored
        for image, original in zip(x, plain[i], strict=True):
            assert torch.equal(image, original) or torch.equal(image, original.flip(2))
    assert any(not torch.equal(x, plain[i]) for i, x in batches.items())
    assert trainer.evaluate(small_stream(1).tasks[0].test)[0] != before.evaluate(small_stream(1).tasks[0].test)[0]


# Workers.


class Files(Dataset):
    """Stands for a dataset that reads files; ``noisy`` draws in ``__getitem__``."""

    def __init__(self, part, noisy=False):
        self.part, self.noisy = part, noisy

    def __len__(self):
        return len(self.part)

    def __getitem__(self, i):
        x = self.part.inputs[i]
        return x + 0.1 * torch.randn(x.shape) if self.noisy else x, int(self.part.labels[i])


def from_files(noisy=False):
    tasks = [
        Task(task.name, task.classes, Files(task.train, noisy), Files(task.validation), Files(task.test))
        for task in small_stream(2).tasks
    ]
    return Stream("files", tasks)


def test_workers_read_the_same_batches():
    part = FromDataset(Files(small_stream(1).tasks[0].train))
    order = torch.randperm(48)
    for kind in (part, JointPart([part, part])):
        one, two = (list(BatchLoader(kind, 10, order=order, workers=workers)) for workers in (0, 2))
        for ours, theirs in zip(one, two, strict=True):
            assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("make", [CodeCL, ER, Multitask], ids=lambda method: method.name)
def test_a_run_with_workers_is_the_run_without_and_exact_on_resume(make):
    plan = dataclasses.replace(PLAN, epochs=1, workers=2)
    stream = from_files()
    without = train(make, dataclasses.replace(plan, workers=0), stream)
    same_weights(train(make, plan, stream).model, without.model, "with workers")
    assert_exact_on_resume(make, plan, stream, writes=(2,))


@pytest.mark.slow
def test_what_a_dataset_draws_in_workers_is_exact_on_resume():
    assert_exact_on_resume(Method, dataclasses.replace(PLAN, workers=2), from_files(noisy=True), writes=(2,))


# When all tasks are tested, and measures of one's own.


@pytest.mark.parametrize(
    ("evaluate", "measured"),
    [
        ("all", [[0], [0, 1], [0, 1, 2], [0, 1, 2, 3]]),
        ("last", [[0], [1], [2], [0, 1, 2, 3]]),
        ("every:2", [[0], [0, 1], [2], [0, 1, 2, 3]]),
        ("every:3", [[0], [1], [0, 1, 2], [0, 1, 2, 3]]),
        ("every:99", [[0], [1], [2], [0, 1, 2, 3]]),
    ],
)
def test_evaluate_says_after_which_tasks_all_are_tested(evaluate, measured):
    plan = dataclasses.replace(PLAN, epochs=1)
    full = train(Method, plan, small_stream(4)).progress.accuracy
    found = train(Method, dataclasses.replace(plan, evaluate=evaluate), small_stream(4)).progress.accuracy
    assert [[j for j, value in enumerate(row) if value is not None] for row in found] == measured
    assert all(found[i][j] == full[i][j] for i in range(4) for j in measured[i])
    assert (metrics.acc(found), metrics.bwt(found)) == (metrics.acc(full), metrics.bwt(full))


def test_a_measure_of_ones_own_is_the_mean_over_each_test_part():
    def margin(outputs, labels):
        return outputs.gather(1, labels[:, None])[:, 0] - outputs.mean(1)

    events = []
    plan = dataclasses.replace(PLAN, epochs=1, evaluation_batch=7)
    stream = small_stream(2)
    trainer = train(Method, plan, stream, observers=(events.append,), measures={"margin": margin})
    (first, second) = trainer.progress.measures["margin"]
    assert first[1] is None
    trainer.model.eval()
    for t, task in enumerate(stream.tasks):
        with trainer.method.task(t), torch.no_grad():
            expected = margin(trainer.model(task.test.inputs), task.test.labels).mean()
        assert second[t] == pytest.approx(float(expected), rel=1e-5)
    assert [event["measures"]["margin"] for event in events if event["event"] == "task"] == [first, second]
    store = Memory(4)
    with pytest.raises(Stop):
        train(Method, plan, stream, store, measures={"margin": margin})
    assert train(Method, plan, stream, store, measures={"margin": margin}).progress.measures["margin"] == [
        first,
        second,
    ]


def test_a_measure_gives_a_number_for_each_input():
    for measure, found in ((lambda x, y: x.mean(), r"shape \[\]"), (lambda x, y: 1.0, "float")):
        with pytest.raises(ValueError, match=rf"measure 'odd' must give a number for each of 24 inputs, .*got {found}"):
            train(Method, PLAN, small_stream(1), measures={"odd": measure})

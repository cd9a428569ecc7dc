"""Misuses of the library, and what each is told: one line with what was given and what was expected."""

import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, RandomSampler, TensorDataset, WeightedRandomSampler

import codecl
from codecl import (
    API,
    CUBER,
    DFGP,
    ER,
    EWC,
    GPM,
    HAT,
    OWM,
    SGP,
    TRGP,
    CodeCL,
    Conceptor,
    Method,
    MultiHead,
    Multitask,
)  # fmt: skip
from codecl.training import metrics
from codecl.training.check import small_stream
from codecl.training.engine import Trainer
from codecl.training.loader import BatchLoader
from codecl.training.plan import Plan
from codecl.training.stream import Stream, Task, Tensors, as_part

X, Y = torch.randn(12, 6), torch.arange(12) % 3
GOOD = (X, Y)
NAN = math.nan


def model(norm=None):
    layers = [nn.Linear(6, 8), *([norm] if norm else []), nn.ReLU()]
    return MultiHead(nn.Sequential(*layers), 8, 3)


def task(name="mine", classes=3, train=GOOD, validation=GOOD, test=GOOD):
    return Task(name, classes, train, validation, test)


def trainer(stream=None, plan=None, make=Method, norm=None, **more):
    return Trainer(make(model(norm)), stream or Stream("s", [task()]), plan or Plan(epochs=1), **more)


class Items(Dataset):
    """A dataset with these labels."""

    def __init__(self, labels):
        self.labels = labels

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, i):
        return X[i], self.labels[i]


class Broken(Dataset):
    """A dataset whose item 7 is ``odd``, or cannot be read."""

    def __init__(self, odd=None):
        self.odd = odd

    def __len__(self):
        return 12

    def __getitem__(self, i):
        if i == 7 and self.odd is None:
            raise KeyError("seven")
        return (self.odd if i == 7 else X[i]), i % 3


def with_broken(odd=None):
    """A task's part of which two items are read, one of them the broken one."""
    return task(train=Broken(odd)).train.take(torch.tensor([3, 7]))


class Changed(nn.Module):
    """A network of one layer, and what becomes of its outputs."""

    def __init__(self, change):
        super().__init__()
        self.layer, self.change = nn.Linear(6, 3), change

    def forward(self, x):
        return self.change(self.layer(x))


class Endless(torch.utils.data.IterableDataset):
    def __iter__(self):
        return iter([])


def learned(make=Method):
    method = make(model())
    method.begin_task(0, [GOOD])
    method.end_task([GOOD])
    return method


def foreign_optimizer():
    method = learned(GPM)
    method.guard(torch.optim.LBFGS(method.model.parameters()))


def two_tasks_of_one_name():
    learned().begin_task(0, [GOOD])


def begun_twice():
    method = Method(model())
    method.begin_task(0, [GOOD])
    method.begin_task(1, [GOOD])


def late_label():
    part = task(train=Items([0] * 11 + [7])).train
    part.take(torch.tensor([11]))


def measured(function):
    return lambda: trainer(measures={"mine": function}).run()


def teach(network, make=Method, **settings):
    """A trainer of this network on two tasks of three classes."""
    return Trainer(make(network, **settings), Stream("s", [task(), task("second")]), Plan(epochs=1))


MISUSES = {
    # Parts.
    "a number as a part": (lambda: as_part(3), "a pair of tensors, a map-style dataset or a DataLoader"),
    "an endless dataset": (lambda: as_part(Endless()), "map-style dataset"),
    "a loader over an endless dataset": (lambda: as_part(DataLoader(Endless())), "map-style dataset"),
    "more labels than inputs": (lambda: as_part((X, Y[:5])), "as many labels as inputs are needed; got 5 and 12"),
    "a weighted sampler": (
        lambda: as_part(DataLoader(TensorDataset(X, Y), sampler=WeightedRandomSampler([1.0] * 12, 40))),
        "draws by a WeightedRandomSampler, which would be ignored",
    ),
    "draws with replacement": (
        lambda: as_part(DataLoader(TensorDataset(X, Y), sampler=RandomSampler(X, replacement=True, num_samples=40))),
        "draws by a RandomSampler, which would be ignored",
    ),
    "batches of one's own": (
        lambda: as_part(DataLoader(TensorDataset(X, Y), batch_sampler=[[0, 1], [2, 3]])),
        "draws by a list, which would be ignored",
    ),
    # Tasks.
    "an empty training part": (lambda: task(train=(X[:0], Y[:0])), "task 'mine', train part: it is empty"),
    "an empty validation part": (lambda: task(validation=(X[:0], Y[:0])), "task 'mine', validation part: it is empty"),
    "an empty test part": (lambda: task(test=[]), "task 'mine', test part: it is empty"),
    "a part that is none": (lambda: task(test=None), "task 'mine', test part: a part of a task is a pair of tensors"),
    "labels from 5 on": (lambda: task(train=(X, Y + 5)), "labels must count from 0 .* 0 to 2; got 5 to 7. Subtract 5."),
    "a label too many": (lambda: task(validation=(X, Y + 1)), "validation part: labels .* got 1 to 3. Subtract 1."),
    "negative labels": (lambda: task(train=(X, Y - 1)), "train part: labels .* got -1 to 1."),
    "float labels": (lambda: task(train=(X, Y.float())), "whole numbers, int64; got torch.float32. Use labels.long"),
    "boolean labels": (lambda: task(train=(X, Y > 0)), "whole numbers, int64; got torch.bool"),
    "one-hot labels": (
        lambda: task(train=(X, torch.eye(3)[Y].long())),
        r"one class for each input, \[n\]; got \[12, 3\]",
    ),
    "labels in a column": (lambda: task(train=(X, Y[:, None])), r"got \[12, 1\]"),
    "a dataset with text as labels": (
        lambda: task(train=Items(["a"] * 12)),
        "train part: its first item cannot be read",
    ),
    "a dataset with a label out of range": (lambda: task(train=Items([9] * 12)), "train part: labels .* got 9 to 9"),
    "a dataset with a late label out of range": (late_label, "train part: labels .* got 7 to 7"),
    "another width in the test part": (lambda: task(test=(X[:, :5], Y)), r"its test inputs are \[5\] .* \[6\] of"),
    "another dtype in validation": (lambda: task(validation=(X.double(), Y)), "validation inputs are .*float64"),
    "arrays of another dtype": (
        lambda: trainer(Stream("s", [task(*["t", 3], *[(X.numpy().astype(np.float64), Y.numpy())] * 3)])),
        "task 't': its inputs are torch.float64, the model's weights torch.float32",
    ),
    "NaN in an input": (lambda: task(test=(X.index_fill(0, Y[:1], NAN), Y)), "test part: its inputs hold NaN or inf"),
    "an infinite input": (lambda: task(train=(X / 0, Y)), "train part: its inputs hold NaN or infinite values"),
    "sparse inputs": (lambda: task(train=(X.to_sparse(), Y)), "train part: inputs must be a dense tensor with values"),
    "inputs without values": (lambda: task(train=(X.to("meta"), Y)), "dense tensor with values; got .*, meta"),
    "a second task that the network does not take": (
        lambda: trainer(Stream("s", [task(), task("wide", 3, *[(torch.randn(12, 9), Y)] * 3)])),
        r"task 'wide': its inputs are \[9\] of torch.float32, unlike those of the first .* \(RuntimeError: mat1",
    ),
    "a second task of whole numbers": (
        lambda: trainer(Stream("s", [task(), task("whole", 3, *[(X.long(), Y)] * 3)])),
        r"task 'whole': its inputs are \[6\] of torch.int64",
    ),
    "a first task that is too wide": (
        lambda: trainer(Stream("s", [task("wide", 3, *[(torch.randn(12, 9), Y)] * 3)])),
        r"task 'wide': its inputs are \[9\] of torch.float32, and the network does not take them \(RuntimeError: .*\). "
        r"'backbone.0', Linear\(in_features=6, .*\), was given \[2, 9\]. Give it inputs that it is made for",
    ),
    "a first task of whole numbers": (
        lambda: trainer(Stream("s", [task("whole", 3, *[(X.long(), Y)] * 3)])),
        r"task 'whole': its inputs are \[6\] of torch.int64, and the network does not take them",
    ),
    "a first task of other channels": (
        lambda: Trainer(
            Method(MultiHead(nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten()), 16, 3)),
            Stream("s", [task("grey", 3, *[(torch.randn(12, 1, 4, 4), Y)] * 3)]),
            Plan(epochs=1),
        ),
        r"task 'grey': its inputs are \[1, 4, 4\] .*'backbone.0', Conv2d\(3, .*\), was given \[2, 1, 4, 4\]\.",
    ),
    "no classes": (lambda: task(classes=0), "classes must be a whole number above 0; got 0"),
    "half a class": (lambda: task(classes=2.5), "classes must be a whole number above 0; got 2.5"),
    "an item that cannot be read": (
        lambda: with_broken(),
        r"task 'mine', train part: its item 7 cannot be read \(KeyError: 'seven'\). Repair it, or leave it out\.",
    ),
    "an item that cannot be read, from a process": (
        lambda: list(BatchLoader(task(train=Broken()).train, 4, workers=1)),
        r"^task 'mine', train part: its item 7 cannot be read \(KeyError: 'seven'\).",
    ),
    "an item of NaN": (
        lambda: with_broken(torch.full((6,), NAN)),
        "task 'mine', train part: its item 7 holds NaN or infinite values. Remove or replace them",
    ),
    "an item of another shape": (
        lambda: with_broken(torch.ones(5)),
        r"train part: its items 3, 7 cannot be made a batch \(RuntimeError: .*\). All items must be an input",
    ),
    # Networks.
    "fewer outputs than classes": (
        lambda: trainer(Stream("s", [task("t", 4)])),
        r"task 't' has 4 classes, and the network's output for it 3: .* one for each. Give its head more outputs",
    ),
    "fewer outputs than the second task has classes": (
        lambda: trainer(Stream("s", [task(), task("t", 5)])),
        "task 't' has 5 classes, and the network's output for it 3: the cross entropy needs one for each",
    ),
    "a second head with too few outputs": (
        lambda: teach(MultiHead(nn.Linear(6, 8), 8, [3, 2])),
        "task 'second' has 3 classes, and the network's output for it 2",
    ),
    "one head for all tasks with too few outputs": (
        lambda: teach(nn.Sequential(nn.Linear(6, 8), nn.Linear(8, 2))),
        "task 'mine' has 3 classes, and the network's output for it 2",
    ),
    "joint learning with too few outputs": (
        lambda: teach(MultiHead(nn.Linear(6, 8), 8, [3, 2]), Multitask),
        "task 'second' has 3 classes, and the network's output for it 2",
    ),
    "heads for one task of two": (
        lambda: teach(MultiHead(nn.Linear(6, 8), 8, [3])),
        r"the stream has 2 tasks, and the network names the heads of 1: classes=\[3\]. Name those of all tasks",
    ),
    "class numbers as outputs": (
        lambda: teach(Changed(lambda x: x.argmax(1))),
        r"task 'mine': for 2 inputs the network puts out \[2\] of torch.int64; .* \[2, 3\], .* Return the logits",
    ),
    "outputs at several places": (
        lambda: teach(Changed(lambda x: x[:, :, None])),
        r"for 2 inputs the network puts out \[2, 3, 1\] of torch.float32; the cross entropy needs \[2, 3\]",
    ),
    "a pair of outputs": (
        lambda: teach(Changed(lambda x: (x, x))),
        r"task 'mine': for 2 inputs the network puts out a tuple; the cross entropy needs \[2, 3\]",
    ),
    # Streams.
    "no tasks": (lambda: Stream("s", []), "stream 's': expected a list of Task, at least one"),
    "pairs as tasks": (lambda: Stream("s", [GOOD]), "stream 's': expected a list of Task"),
    "more tasks than there are": (lambda: Stream("s", [task()]).first(2), "s has 1 tasks; got tasks = 2"),
    "no first task": (lambda: Stream("s", [task()]).first(0), "s has 1 tasks; got tasks = 0"),
    # The plan.
    "no epochs": (lambda: Plan(epochs=0), "epochs must be a whole number, 1 or more.*got 0"),
    "half an epoch": (lambda: Plan(epochs=0.5), "epochs must be a whole number"),
    "a huge number of epochs": (lambda: Plan(epochs=10**30), "epochs must be a whole number"),
    "no batch": (lambda: Plan(batch_size=0), "batch_size must be a whole number, 1 or more"),
    "a batch of text": (lambda: Plan(batch_size="64"), "batch_size must be a whole number"),
    "no evaluation batch": (lambda: Plan(evaluation_batch=-1), "evaluation_batch must be a whole number"),
    "a rate of zero": (lambda: Plan(lr=0.0), "lr must be above 0; got 0.0"),
    "a rate without bounds": (lambda: Plan(lr=1e308), r"lr must be a number, 0 or more, below 1e\+06; got 1e\+308"),
    "a rate of NaN": (lambda: Plan(lr=NAN), "lr must be a number.*got nan"),
    "a rate of text": (lambda: Plan(lr="fast"), "lr must be a number.*got 'fast'"),
    "a momentum of 2": (lambda: Plan(momentum=2), "momentum must be a number, 0 or more, below 1; got 2"),
    "negative decay": (lambda: Plan(weight_decay=-1.0), "weight_decay must be a number, 0 or more"),
    "an unknown rule": (lambda: Plan(rule="luck"), "rule must be 'loss', 'accuracy' or 'annealed'; got 'luck'"),
    "an unknown optimizer": (lambda: Plan(optimizer="lion"), "optimizer must be 'sgd', 'adam' or 'adamw'; got 'lion'"),
    "an unknown precision": (lambda: Plan(precision="int8"), "precision must be 'float32', 'bf16' or 'fp16'"),
    "momentum for Adam": (lambda: Plan(optimizer="adam", momentum=0.9), "momentum and nesterov belong to sgd"),
    "Nesterov without momentum": (lambda: Plan(nesterov=True), "nesterov needs a momentum above 0"),
    "no such time to evaluate": (lambda: Plan(evaluate="often"), "evaluate must be 'all', 'last' or 'every:N'"),
    "every zeroth task": (lambda: Plan(evaluate="every:0"), "evaluate must be .* got 'every:0'"),
    "a crop inwards": (lambda: Plan(crop=-1), "crop must be a whole number, 0 or more"),
    "workers that are not whole": (lambda: Plan(workers=1.5), "workers must be a whole number"),
    "a warm-up of all steps": (lambda: Plan(rule="annealed", warm_up=1.0), "warm_up is a share of the steps"),
    "a factor of one": (lambda: Plan(factor=1.0), "factor must be a finite number above 1"),
    # The trainer.
    "a model in place of a method": (
        lambda: Trainer(model(), Stream("s", [task()]), Plan()),
        r"a codecl.Method; got MultiHead. Attach one to it: Trainer\(CodeCL\(model\), stream, plan\)",
    ),
    "a class in place of a method": (
        lambda: Trainer(CodeCL, Stream("s", [task()]), Plan()),
        r"a codecl.Method; got the class CodeCL. Make it: Trainer\(CodeCL\(model\)",
    ),
    "a list in place of a stream": (
        lambda: Trainer(Method(model()), [task()], Plan()),
        r"stream must be a codecl.training.stream.Stream, Stream\(name, tasks\); got list\.",
    ),
    "a number of epochs in place of a plan": (
        lambda: Trainer(Method(model()), Stream("s", [task()]), 5),
        r"plan must be a codecl.training.plan.Plan, .*; got int\.",
    ),
    "a check of a number": (lambda: codecl.check_method(3), "takes a function of a model .*: its class, .*; got 3"),
    "a check of a model": (lambda: codecl.check_method(lambda m: m), "got one that gives a MultiHead"),
    "one input and a batch norm": (
        lambda: trainer(Stream("s", [task(train=(X[:1], Y[:1]))]), norm=nn.BatchNorm1d(8)),
        "task 'mine': the model's batch norm needs two inputs in a batch; its train part has 1",
    ),
    "batches of one and a batch norm": (
        lambda: trainer(plan=Plan(batch_size=1), norm=nn.BatchNorm1d(8)),
        "its train part has 12, in batches of 1",
    ),
    "one test input and a norm without statistics": (
        lambda: trainer(Stream("s", [task(test=(X[:1], Y[:1]))]), norm=nn.BatchNorm1d(8, track_running_stats=False)),
        "its test part has 1",
    ),
    "one sample and a norm without statistics": (
        lambda: trainer(make=lambda m: GPM(m, samples=1), norm=nn.BatchNorm1d(8, track_running_stats=False)),
        "samples must be 2 or more: the model has a batch norm without running statistics",
    ),
    "a model in another precision": (
        lambda: Trainer(Method(model().double()), Stream("s", [task()]), Plan()),
        "its inputs are torch.float32, the model's weights torch.float64",
    ),
    "crops of what is no image": (lambda: trainer(plan=Plan(crop=2)).run(), "crop and flip need images"),
    "a measure that gives one number": (measured(lambda x, y: x.mean()), "measure 'mine' must give a number for each"),
    "a measure that gives a Python number": (measured(lambda x, y: 0.5), "measure 'mine' .* got float"),
    "inputs that overflow": (
        lambda: trainer(Stream("s", [task(train=(X.sign() * 3e38, Y))])).run(),
        "the training loss of task 0 became (nan|inf) in epoch 1, at learning rate",
    ),
    # Settings of methods.
    "half a direction": (lambda: CodeCL(model(), free_dims=2.5), "free_dims must be a whole number; got 2.5"),
    "an aperture of text": (lambda: CodeCL(model(), aperture="big"), "aperture must be a number.* got 'big'"),
    "an aperture of zero": (lambda: CodeCL(model(), aperture=0), "aperture must be a finite number above 0; got 0"),
    "an aperture of NaN": (lambda: CodeCL(model(), aperture=NAN), "aperture must be a finite number above 0; got nan"),
    "a huge aperture": (lambda: CodeCL(model(), aperture=10**400), "aperture must be a number.* got a huge number"),
    "an aperture for no layer": (lambda: CodeCL(model(), aperture={"x": 1.0}), "aperture: there is no weight 'x'"),
    "no samples": (lambda: CodeCL(model(), samples=0), "samples must be a positive number of inputs, or None"),
    "an unknown policy": (
        lambda: CodeCL(model(), norm="thaw"),
        "norm must be 'freeze', 'per-task' or 'free'; got 'thaw'",
    ),
    "a threshold above one": (lambda: GPM(model(), threshold=1.5), r"threshold must be a share in \(0, 1\]; got 1.5"),
    "a truth for a number": (lambda: SGP(model(), alpha=True), "alpha must be a number; got True"),
    "patterns that are no text": (lambda: TRGP(model(), closed=[1]), r"closed must be a list, each text; got \[1\]"),
    "one pattern": (lambda: TRGP(model(), closed="a"), "closed must be a list, each text; got 'a'"),
    "a cosine of 3": (lambda: CUBER(model(), agreement=3), "agreement must be a cosine"),
    "an infinite alpha": (lambda: DFGP(model(), alpha=math.inf), "alpha must be a number from 1e-6 to 1e6; got inf"),
    "a share of 2": (lambda: API(model(), rho=2), r"rho must be a share in \[0, 1\]; got 2"),
    "a negative strength": (lambda: EWC(model(), strength=-1), "strength must be a finite number, 0 or more; got -1"),
    "an unknown Fisher": (lambda: EWC(model(), fisher="max"), "fisher must be 'mean', 'sum' or 'online'; got 'max'"),
    "a gate below one": (lambda: HAT(model(), smax=0.5), "smax must be a finite number, 1 or more; got 0.5"),
    "no memory": (lambda: ER(model(), memory=0), "memory must be a positive number of samples; got 0"),
    "an unknown update": (lambda: OWM(model(), update="epoch"), "update must be 'batch' or 'task'; got 'epoch'"),
    "a head that is not there": (lambda: Method(nn.Linear(6, 3), heads=["head"]), "head"),
    # Learning.
    "an optimizer that cannot be projected": (foreign_optimizer, "LBFGS"),
    "a task learned already": (two_tasks_of_one_name, "task 0 has been learned already"),
    "a task begun within another": (begun_twice, "end_task"),
    "an end without a beginning": (lambda: Method(model()).end_task([GOOD]), "no task is being learned"),
    "a task that is not known": (lambda: learned().task(7).__enter__(), "7"),
    "an export of a task that is not known": (lambda: learned().export(3), "3"),
    "a state of another method": (lambda: learned(GPM).load_state_dict(learned(EWC).state_dict()), "."),
    # Algebra and measures.
    "a conceptor of nothing": (lambda: Conceptor.fit(torch.zeros(0, 4), aperture=1.0), "."),
    "a conceptor of NaN": (lambda: Conceptor.fit(torch.full((3, 4), NAN), aperture=1.0), "finite|NaN|nan"),
    "an unfinished run": (lambda: metrics.forgetting([[80.0, None]]), "not finished: 1 of 2 tasks"),
    "an accuracy above 100": (lambda: metrics.acc([[101.0]]), r"accuracy\[0\]\[0\] is 101.0"),
}


@pytest.mark.parametrize("name", MISUSES)
def test_a_misuse_is_one_clear_line(name):
    call, message = MISUSES[name]
    with pytest.raises((ValueError, TypeError, RuntimeError, KeyError, ArithmeticError), match=message) as refused:
        call()
    assert type(refused.value) is not KeyError
    text = str(refused.value)
    assert 10 < len(text) < 400
    assert len(text.splitlines()) == 1


def test_there_are_enough_of_them():
    assert len(MISUSES) >= 60
    assert codecl.check_method is not None


def test_what_is_right_is_taken():
    """The other side of the table: arrays, int32 labels, pairs, loaders over subsets, integers for floats."""
    parts = (X.numpy(), Y.int().numpy())
    made = task(train=parts, validation=DataLoader(TensorDataset(X, Y), shuffle=True), test=[X, Y.to(torch.uint8)])
    assert made.train.take(torch.arange(12))[1].dtype == made.test.labels.dtype == torch.int64
    chosen = torch.utils.data.SubsetRandomSampler([3, 4, 8])
    part = as_part(DataLoader(TensorDataset(X, Y), sampler=chosen))
    assert (len(part), part.take(torch.arange(3))[1].tolist()) == (3, [0, 1, 2])
    assert isinstance(made.train, Tensors)
    assert len(trainer(Stream("s", [made]), make=lambda m: CodeCL(m, aperture=20)).run().accuracy) == 1
    assert len(small_stream(1)) == 1


def test_tasks_of_other_shapes_that_the_network_takes_are_learned():
    class Pooled(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(1, 8)

        def forward(self, x):
            return self.layer(x.mean(1, keepdim=True)).relu()

    wide = torch.randn(12, 9), Y
    stream = Stream("s", [task(), task("wide", 3, wide, wide, wide)])
    found = Trainer(Method(MultiHead(Pooled(), 8, 3)), stream, Plan(epochs=1)).run()
    assert [[value is not None for value in row] for row in found.accuracy] == [[True, False], [True, True]]


class Own:
    """An output that knows its loss, as those of transformers do."""

    def __init__(self, logits, labels):
        self.logits, self.loss = logits, nn.functional.cross_entropy(logits, labels)


class Growing(Method):
    """A method of one's own may widen the head that all tasks share: what it puts out later is not known."""


def joined(model, batch):
    return Own(model(batch[0]), batch[1])


@pytest.mark.parametrize(
    ("network", "make", "settings", "second"),
    [
        (lambda: MultiHead(nn.Linear(6, 8), 8, [3, 5, 9]), Method, {}, 5),
        (lambda: MultiHead(nn.Linear(6, 8), 8, 5), Multitask, {}, 5),
        (lambda: nn.Linear(6, 5), Method, {}, 5),
        (lambda: nn.Linear(6, 3), Growing, {}, 5),
        (lambda: nn.Linear(6, 3), Method, {"forward": joined}, 3),
        (lambda: Changed(lambda x: x[:, :, None]), Method, {"loss": lambda output, batch: output.mean()}, 5),
        (lambda: nn.Sequential(MultiHead(nn.Linear(6, 8), 8, [2, 2]), nn.Linear(2, 5)), Method, {}, 5),
    ],
    ids=[
        "more heads",
        "joint",
        "one head",
        "a head that grows",
        "its own loss",
        "a loss of one's own",
        "a layer behind",
    ],
)
def test_outputs_that_fit_are_taken(network, make, settings, second):
    stream = Stream("s", [task(), task("second", second)])
    assert Trainer(make(network(), **settings), stream, Plan(epochs=1)).progress.accuracy == []

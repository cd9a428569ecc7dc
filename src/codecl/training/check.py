"""Checks of what every method promises, for the methods here and for a user's own.

    from codecl import check_method

    check_method(MyMethod)  # or check_method(lambda model: MyMethod(model, strength=2.0))

Each check takes a function that makes the method, and raises an ``AssertionError`` that says which promise failed.
"""

from __future__ import annotations

import io
import random
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from codecl.methods import Method
from codecl.networks import MultiHead
from codecl.randomness import seeded
from codecl.training.engine import Trainer
from codecl.training.plan import Plan
from codecl.training.stream import Stream, Task, Tensors

Make = Callable[[nn.Module], Method]
Check = Callable[[Make], None]


class Network(nn.Module):
    """Small, and with something of everything: a grouped convolution, norms with and without statistics, biases."""

    features = 12

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 4, 3, padding=1, groups=2)
        self.norm = nn.BatchNorm2d(4)
        self.hidden = nn.Linear(4 * 16, 16)
        self.batch_norm = nn.BatchNorm1d(16, track_running_stats=False)
        self.last = nn.Linear(16, self.features, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.conv(x)).relu().flatten(1)
        out: Tensor = self.last(self.batch_norm(self.hidden(x)).relu()).relu()
        return out


def small_stream(tasks: int = 3) -> Stream:
    """Tasks of random images whose class is a linear function of them, another function for every task."""
    made = []
    for t in range(tasks):
        with seeded(t, "check"):
            teacher = torch.randn(32, 3)
            parts = []
            for count in (48, 12, 24):
                x = torch.randn(count, 2, 4, 4)
                parts.append(Tensors(x, (x.flatten(1) @ teacher).argmax(1)))
        made.append(Task(f"task {t}", 3, *parts))
    return Stream("check", made)


def network() -> MultiHead:
    """The network of the checks, always with the same initial weights."""
    with seeded(0, "check", "network"):
        return MultiHead(Network(), Network.features, 3)


PLAN = Plan(epochs=3, batch_size=16, lr=0.05, patience=5, evaluation_batch=24)


def train(make: Make, tasks: int = 3, store: Any = None, watch: tuple[Callable[[Any], None], ...] = ()) -> Trainer:
    """Train a method on the small stream."""
    trainer = Trainer(make(network()), small_stream(tasks), PLAN, store, watch)
    trainer.run()
    return trainer


def check_first_task_is_plain(make: Make) -> None:
    """The first task is learned as fine-tuning learns it, unless the method says ``plain_first_task = False``."""
    ours = train(make, 1)
    if not ours.method.plain_first_task:
        return
    plain = train(Method, 1)
    for name, value in plain.model.state_dict().items():
        assert torch.equal(value, ours.model.state_dict()[name]), (
            f"'{name}' differs from fine-tuning after the first task"
        )


class _Memory:
    """A store in memory, of what ``torch.save`` writes; it raises ``Stop`` after ``writes`` writes."""

    def __init__(self, writes: int | None = None) -> None:
        self.writes, self.task, self.epoch = writes, b"", b""

    def save_task(self, task: int, tree: Any) -> None:
        self.task, self.epoch = _bytes(tree), b""
        self._count()

    def save_epoch(self, task: int, epoch: int, tree: Any) -> None:
        self.epoch = _bytes(tree)
        self._count()

    def latest(self) -> Any:
        return (_tree(self.task), _tree(self.epoch) if self.epoch else None) if self.task else None

    def _count(self) -> None:
        if self.writes is not None:
            self.writes -= 1
            if self.writes == 0:
                self.writes = None
                raise Stop


class Stop(Exception):
    """A run that is interrupted."""


def check_resume_equals_no_interruption(make: Make) -> None:
    """A run that is stopped after any checkpoint and goes on in a new process gives the same bits."""
    whole = train(make, 3)
    for writes in range(1, 3 * (1 + PLAN.epochs) + 1):
        store = _Memory(writes)
        try:
            train(make, 3, store)
        except Stop:
            pass
        else:
            break
        resumed = train(make, 3, store)
        assert resumed.progress.accuracy == whole.progress.accuracy, (
            f"stopped after checkpoint {writes}: other accuracies"
        )
        for name, value in whole.model.state_dict().items():
            assert torch.equal(value, resumed.model.state_dict()[name]), (
                f"stopped after checkpoint {writes}: other '{name}'"
            )


def check_state_is_plain(make: Make) -> None:
    """The state holds tensors, numbers and strings only, and survives saving and loading."""
    trained = train(make, 2).method
    state = _tree(_bytes(trained.state_dict()))
    fresh = make(network())
    fresh.model.load_state_dict(trained.model.state_dict())
    fresh.load_state_dict(state)
    assert fresh.bytes() == trained.bytes(), "a restored method reports other bytes"
    x = small_stream(2).tasks[0].test.take(torch.arange(24))[0]
    for t in range(2):
        with trained.task(t), fresh.task(t):
            assert torch.equal(trained.model.eval()(x), fresh.model.eval()(x)), (
                f"a restored method sees task {t} differently"
            )


def check_other_heads_are_untouched(make: Make) -> None:
    """Learning a task leaves the heads of the others as they were; with ``holds_heads = False``, all of them train."""
    heads: dict[int, Tensor] = {}
    method = make(network())
    if not method.holds_heads:
        Trainer(method, small_stream(2), PLAN).run()
        stopped = [n for n, p in method.model.named_parameters() if n.startswith("heads.") and not p.requires_grad]
        assert not stopped, f"{stopped} do not train, though holds_heads = False"
        return

    def watch(event: Any) -> None:
        if event["event"] == "task":
            assert isinstance(method.model, MultiHead)
            for t, head in enumerate(method.model.heads):
                weight = head.get_parameter("weight")
                if t < event["task"]:
                    assert torch.equal(weight, heads[t]), (
                        f"the head of task {t} moved while {event['task']} was learned"
                    )
                heads[t] = weight.detach().clone()

    Trainer(method, small_stream(3), PLAN, None, (watch,)).run()


def check_memory_is_reported(make: Make) -> None:
    """``bytes()`` gives whole numbers that are not negative, and no less for all than for a task."""
    size = train(make, 2).method.bytes()
    assert set(size) == {"memory", "per_task"}, f"bytes() has the keys {sorted(size)}"
    assert all(isinstance(value, int) and value >= 0 for value in size.values()), f"bytes() is {size}"
    assert size["per_task"] <= size["memory"], f"bytes() is {size}"


def check_random_state_is_untouched(make: Make) -> None:
    """Beginning and ending a task draw no global random number."""
    method, stream = make(network()), small_stream(2)
    for t, task in enumerate(stream.tasks):
        if isinstance(method.model, MultiHead):
            method.model.select(t)  # a new head is drawn, and may be
        before = torch.get_rng_state(), random.getstate()
        method.begin_task(t, [task.train.take(torch.arange(48))])
        method.end_task([task.train.take(torch.arange(48))])
        assert torch.equal(before[0], torch.get_rng_state()), "torch's random state changed"
        assert before[1] == random.getstate(), "Python's random state changed"


def check_state_dict_is_the_bare_models(make: Make) -> None:
    """While attached, the model's ``state_dict`` has the keys of the bare model."""
    bare = list(network().state_dict())
    trainer = train(make, 1)
    assert list(trainer.model.state_dict()) == bare


def check_model_is_handed_back_clean(make: Make) -> None:
    """``detach()`` leaves no forward, hook or flag behind."""
    model = network()
    flags = {name: parameter.requires_grad for name, parameter in model.named_parameters()}
    method = make(model)
    Trainer(method, small_stream(2), PLAN).run()
    method.detach()
    assert not any("forward" in vars(module) for module in model.modules()), "a forward was left behind"
    hooked = [m for m in model.modules() if m._forward_hooks or m._forward_pre_hooks or m._backward_hooks]
    assert not hooked, f"hooks were left behind on {hooked}"
    assert all(parameter.requires_grad == flags.get(name, True) for name, parameter in model.named_parameters())


def check_export_equals_the_task(make: Make) -> None:
    """``export(t)`` is a plain module with the outputs that ``task(t)`` shows."""
    trainer = train(make, 3)
    x = trainer.stream.tasks[0].test.take(torch.arange(24))[0]
    for t in range(3):
        plain = trainer.method.export(t).eval()
        with trainer.method.task(t), torch.no_grad():
            torch.testing.assert_close(plain(x), trainer.model.eval()(x))


CHECKS: tuple[Check, ...] = (
    check_first_task_is_plain,
    check_resume_equals_no_interruption,
    check_state_is_plain,
    check_other_heads_are_untouched,
    check_memory_is_reported,
    check_random_state_is_untouched,
    check_state_dict_is_the_bare_models,
    check_model_is_handed_back_clean,
    check_export_equals_the_task,
)


def check_method(make: Make) -> list[str]:
    """Run every check on a method.

    Args:
        make: A function that attaches the method to a model: its class, or a ``lambda model: …`` with settings.

    Returns:
        The names of the checks; all of them passed, or an ``AssertionError`` was raised.
    """
    for check in CHECKS:
        check(make)
    return [check.__name__ for check in CHECKS]


def _bytes(tree: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save(tree, buffer)
    return buffer.getvalue()


def _tree(data: bytes) -> Any:
    return torch.load(io.BytesIO(data), weights_only=True)

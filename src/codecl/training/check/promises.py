"""What every method promises about learning, remembering and being taken off again."""

from __future__ import annotations

import random
from typing import Any

import torch
from torch import Tensor

from codecl.methods import Method
from codecl.training.check.setting import Make, Memory, loaded, network, same_weights, saved, small_stream, train


def check_first_task_is_plain(make: Make) -> None:
    """The first task is learned as fine-tuning learns it, unless the method says ``plain_first_task = False``."""
    method = make(network())
    if method.plain_first_task:
        plain = train(Method(network()), 1)
        same_weights(train(method, 1).model, plain.model, "the first task is not learned as by fine-tuning")


def check_resume_equals_no_interruption(make: Make) -> None:
    """A run that is stopped after any checkpoint and goes on in a new process gives the same bits."""
    whole, store = train(make(network())), Memory()
    runs = {"with checkpoints": train(make(network()), 3, store)}
    for number, copy in enumerate(store.copies, start=1):
        runs[f"stopped after checkpoint {number}"] = train(make(network()), 3, copy)
    for why, run in runs.items():
        assert run.progress.accuracy == whole.progress.accuracy, f"{why}: other accuracies"
        same_weights(run.model, whole.model, why)


def check_state_is_plain(make: Make) -> None:
    """The state holds tensors, numbers and strings only, and survives saving and loading."""
    trained, fresh = train(make(network()), 2).method, make(network())
    fresh.model.load_state_dict(trained.model.state_dict())
    fresh.load_state_dict(loaded(saved(trained.state_dict())))
    assert fresh.bytes() == trained.bytes(), "a restored method reports other bytes"
    x = small_stream(2).tasks[0].test.take(torch.arange(24))[0]
    for t in range(2):
        with trained.task(t), fresh.task(t):
            same = torch.equal(trained.model.eval()(x), fresh.model.eval()(x))
        assert same, f"a restored method sees task {t} differently"


def check_other_heads_are_untouched(make: Make) -> None:
    """Learning a task leaves other heads as they were; with ``freezes_heads = False``, all of them train."""
    heads: dict[int, Tensor] = {}
    model = network()
    method = make(model)

    def watch(event: Any) -> None:
        for t, head in enumerate(model.heads if event["event"] == "task" else []):
            weight = head.get_parameter("weight")
            moved = t in heads and t < event["task"] and not torch.equal(weight, heads[t])
            assert not (moved and method.freezes_heads), f"the head of task {t} moved while {event['task']} was learned"
            heads[t] = weight.detach().clone()

    train(method, 3, None, watch)
    stopped = [name for name, p in model.named_parameters() if name.startswith("heads.") and not p.requires_grad]
    assert method.freezes_heads or not stopped, f"{stopped} do not train, though freezes_heads = False"


def check_memory_is_reported(make: Make) -> None:
    """``bytes()`` gives whole numbers that are not negative, and no less for all than for a task."""
    size = train(make(network()), 2).method.bytes()
    assert set(size) == {"memory", "per_task"}, f"bytes() has the keys {sorted(size)}"
    assert all(isinstance(value, int) and value >= 0 for value in size.values()), f"bytes() is {size}"
    assert size["per_task"] <= size["memory"], f"bytes() is {size}"


def check_random_state_is_untouched(make: Make) -> None:
    """Beginning and ending a task draw no global random number."""
    model = network()
    method = make(model)
    for t, task in enumerate(small_stream(2).tasks):
        model.select(t)  # a new head is drawn, and may be
        before, batch = (torch.get_rng_state(), random.getstate()), task.train.take(torch.arange(48))
        method.begin_task(t, [batch])
        method.end_task([batch])
        assert torch.equal(before[0], torch.get_rng_state()), "torch's random state changed"
        assert before[1] == random.getstate(), "Python's random state changed"


def check_state_dict_is_the_bare_models(make: Make) -> None:
    """While attached, the model's ``state_dict`` has the keys of the bare model."""
    bare, attached = list(network().state_dict()), list(train(make(network()), 1).model.state_dict())
    assert attached == bare, f"the attached model's state_dict has the keys {attached}, the bare one's {bare}"


def check_model_is_handed_back_clean(make: Make) -> None:
    """``detach()`` leaves no forward, hook or flag behind."""
    model = network()
    flags = {name: parameter.requires_grad for name, parameter in model.named_parameters()}
    train(make(model), 2).method.detach()
    assert not any("forward" in vars(module) for module in model.modules()), "a forward was left behind"
    hooked = [m for m in model.modules() if m._forward_hooks or m._forward_pre_hooks or m._backward_hooks]
    assert not hooked, f"hooks were left behind on {hooked}"
    changed = [name for name, p in model.named_parameters() if p.requires_grad != flags.get(name, True)]
    assert not changed, f"requires_grad of {changed} is not what it was"


def check_export_equals_the_task(make: Make) -> None:
    """``export(t)`` is a plain module with the outputs that ``task(t)`` shows."""
    trainer = train(make(network()))
    x = trainer.stream.tasks[0].test.take(torch.arange(24))[0]
    for t in range(3):
        plain = trainer.method.export(t).eval()
        with trainer.method.task(t), torch.no_grad():
            torch.testing.assert_close(plain(x), trainer.model.eval()(x))

"""What every method promises when something goes wrong, or becomes large: it fails whole, or not at all."""

from __future__ import annotations

import inspect
import math
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from codecl.methods import Method
from codecl.networks import MultiHead
from codecl.randomness import seeded
from codecl.training.check.setting import Make, loaded, network, same_weights, saved, small_stream, train
from codecl.training.precision import autocast_forward
from codecl.training.stream import Batch

MANY, FEW = 100, 10


class Failure(Exception):
    """Raised by a loader, as a reader of files may."""


def check_a_failed_begin_can_be_repeated(make: Make) -> None:
    """A ``begin_task`` that fails on its data leaves the method as it was, and can be repeated."""
    for what, bad in _bad_loaders(1).items():
        method, twin = (_learned(make(network()), 1) for _ in range(2))
        before = saved(method.state_dict())
        if not _fails(lambda: _begin(method, 1, bad)):  # noqa: B023
            continue
        assert _same(loaded(before), method.state_dict()), f"begin_task on {what} failed and changed the state"
        for one in (method, twin):
            _begin(one, 1)
        assert _same(twin.state_dict(), method.state_dict()), f"begin_task after {what} differs from a first one"


def check_a_failed_end_can_be_repeated(make: Make) -> None:
    """An ``end_task`` that fails on its data leaves the method as it was, and can be repeated."""
    for what, bad in _bad_loaders(1).items():
        method, twin = (_learned(make(network()), 1) for _ in range(2))
        for one in (method, twin):
            _begin(one, 1)
        before = saved(method.state_dict(within_task=True))
        if not _fails(lambda: method.end_task(bad)):  # noqa: B023
            assert _finite(method.state_dict()), f"end_task accepted {what}, and remembers what is not finite"
            continue
        after = method.state_dict(within_task=True)
        assert _same(loaded(before), after), f"end_task on {what} failed and changed the state"
        for one in (method, twin):
            one.end_task([_batch(1)])
        assert _same(twin.state_dict(), method.state_dict()), f"end_task after {what} differs from a first one"


def check_weights_that_are_not_finite_are_not_remembered(make: Make) -> None:
    """An ``end_task`` over NaN in a weight fails and changes nothing, or remembers finite numbers only."""
    model = network()
    method = _learned(make(model), 1)
    _begin(method, 1)
    before = saved(method.state_dict())
    with _a_weight_of_nan(model):
        failed = _fails(lambda: method.end_task([_batch(1)]))
    if not failed:
        assert _finite(method.state_dict()), "end_task accepted a weight of NaN, and remembers what is not finite"
        return
    after = method.state_dict()
    assert _same(loaded(before), after), "end_task over a weight of NaN failed and changed the state"
    with warnings.catch_warnings(action="ignore"):
        method.end_task([_batch(1)])


def check_a_task_is_not_begun_over_weights_that_are_not_finite(make: Make) -> None:
    """A ``begin_task`` over NaN in a weight fails and changes nothing, and can be repeated once the weight is back."""
    for learned in (0, 1):
        models = [network() for _ in range(2)]
        method, twin = (_learned(make(model), learned) for model in models)
        before = saved(method.state_dict())
        with _a_weight_of_nan(models[0]):
            failed = _fails(lambda: _begin(method, learned))  # noqa: B023
        assert failed, f"begin_task of task {learned} accepted a weight of NaN"
        assert _same(loaded(before), method.state_dict()), "begin_task over a weight of NaN changed the state"
        with warnings.catch_warnings(action="ignore"):
            for one in (method, twin):
                _begin(one, learned)
        assert _same(twin.state_dict(), method.state_dict()), "begin_task after a weight of NaN differs from a first"


def check_whole_numbers_serve_as_settings(make: Make) -> None:
    """A setting whose default is a float such as 20.0 may be given as 20, with the same result.

    Where ``make`` is a function, its settings are not known, and nothing is checked.
    """
    if not isinstance(make, type):
        return
    plain = train(make(network()), 2)
    for name, parameter in inspect.signature(make).parameters.items():
        if type(parameter.default) is float and parameter.default.is_integer():
            whole = train(make(network(), **{name: int(parameter.default)}), 2)
            same_weights(whole.model, plain.model, f"with {name}={int(parameter.default)}")


def check_half_precision_remembers_what_full_precision_does(make: Make) -> None:
    """Under bf16 autocast a layer is remembered with nearly the rank and capacity that float32 has."""
    half, full = (_learned(make(network()), 0) for _ in range(2))
    for one, precision in ((half, "bf16"), (full, "float32")):
        _begin(one, 0)
        with autocast_forward(one, precision, "cpu"):
            one.end_task([_batch(0)])
    assert _finite(half.state_dict()), "the state is not finite"
    found, expected = half.memory_summary(), full.memory_summary()
    for layer, facts in expected.items():
        for name in ("rank", "capacity"):
            if isinstance(facts.get(name), int | float):
                ours, theirs = found[layer][name], facts[name]
                near = abs(ours - theirs) <= max(0.15 * abs(theirs), 0.05 if name == "capacity" else 2)
                assert near, f"{name} of {layer} is {ours:g} in bf16 and {theirs:g} in float32"


def check_a_switch_costs_the_same_after_many_tasks(make: Make) -> None:
    """``with method.task(k)`` takes as many calls of functions after 100 tasks as after ten, give or take a half."""
    with seeded(0, "check", "many"):
        model = MultiHead(nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 6)), 6, 2)
    method = make(model)
    cost: dict[int, int] = {}
    for t in range(MANY):
        with seeded(t, "check", "many"):
            x = torch.randn(8, 6)
        batch = (x, (x[:, 0] > 0).long())
        with seeded(t, "check", "begin"):
            method.begin_task(t, [batch])
            method.end_task([batch])
        if t + 1 in (FEW, MANY) and not method.joint:
            cost[t + 1] = max(_calls(method, k) for k in (0, t // 2, t))
    if cost:
        assert cost[MANY] <= 1.5 * cost[FEW] + 20, (
            f"a switch takes {cost[MANY]} calls after {MANY} tasks, {cost[FEW]} after {FEW}"
        )


@contextmanager
def _a_weight_of_nan(model: nn.Module) -> Iterator[None]:
    """NaN in one weight of the network, which is put back; warnings that it was changed by hand are not shown."""
    weight = model.get_parameter("backbone.hidden.weight")
    kept = weight.detach().clone()
    with torch.no_grad(), warnings.catch_warnings(action="ignore"):
        weight[0, 0] = math.nan
        with torch.enable_grad():
            yield
        weight.copy_(kept)


def _calls(method: Method, task: int) -> int:
    """How many functions are called in a switch to ``task`` and back."""
    count = 0

    def tally(_: Any, event: str, __: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    previous = sys.getprofile()
    sys.setprofile(tally)
    try:
        with method.task(task):
            pass
    finally:
        sys.setprofile(previous if callable(previous) else None)  # a profiler written in C sets itself
    return count


def _batch(task: int) -> Batch:
    return small_stream(task + 1).tasks[task].train.take(torch.arange(48))


def _learned(method: Method, tasks: int) -> Method:
    """The method after some tasks of the small stream, each looked at and not trained."""
    for t in range(tasks):
        _begin(method, t)
        method.end_task([_batch(t)])
    return method


def _begin(method: Method, task: int, loader: Iterable[Batch] | None = None) -> None:
    """Begin a task; what is drawn for it, its head say, is always the same."""
    with seeded(task, "check", "begin"):
        method.begin_task(task, [_batch(task)] if loader is None else loader)


class _Torn:
    """A loader that fails after its first batch, every time."""

    def __init__(self, batch: Batch) -> None:
        self.batch = batch

    def __iter__(self) -> Iterator[Batch]:
        yield self.batch
        raise Failure("the second batch cannot be read")


def _bad_loaders(task: int) -> dict[str, Iterable[Batch]]:
    x, y = _batch(task)
    return {"no batches": [], "NaN inputs": [(x * math.nan, y)], "a loader that fails": _Torn((x[:4], y[:4]))}


def _fails(call: Callable[[], None]) -> bool:
    """Whether a call is refused: by the loader, or by a message for people."""
    try:
        call()
    except (Failure, ValueError, ArithmeticError, RuntimeError):
        return True
    return False


def _same(ours: Any, theirs: Any) -> bool:
    """Whether two trees hold the same bits; NaN equals NaN."""
    if isinstance(ours, Tensor):
        return (
            isinstance(theirs, Tensor)
            and ours.shape == theirs.shape
            and torch.equal(
                ours.nan_to_num(nan=12345.0) if ours.is_floating_point() else ours,
                theirs.nan_to_num(nan=12345.0) if theirs.is_floating_point() else theirs,
            )
        )
    if isinstance(ours, dict):
        return ours.keys() == theirs.keys() and all(_same(ours[key], theirs[key]) for key in ours)
    if isinstance(ours, list | tuple):
        return len(ours) == len(theirs) and all(map(_same, ours, theirs))
    return bool(ours == theirs)


def _finite(tree: Any) -> bool:
    if isinstance(tree, Tensor):
        return not tree.is_floating_point() or not bool(tree.isnan().any())
    if isinstance(tree, dict):
        return all(map(_finite, tree.values()))
    return all(map(_finite, tree)) if isinstance(tree, list | tuple) else tree == tree

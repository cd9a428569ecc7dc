"""``samples=None``: every input of a task counts, and none of them is kept."""

import weakref
from collections.abc import Callable, Iterator
from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close
from torch.utils.data import DataLoader, TensorDataset

from codecl import GPM, CodeCL, Method
from tests.algebra import dense
from tests.methods.cases import CLASSES, mlp, seeded

TASKS, BATCHES, D = 3, 12, 8


class Batch(list):
    """Inputs and labels, to which weak references are possible."""

    __hash__ = object.__hash__  # type: ignore[assignment]


class Watched:
    """Batches made as they are read; ``most`` is how many of them were there at a time."""

    def __init__(self, task: int) -> None:
        self.task, self.most = task, 0
        self._made: weakref.WeakSet[Batch] = weakref.WeakSet()

    def __iter__(self) -> Iterator[Batch]:
        draw = seeded(self.task)
        for _ in range(BATCHES):
            x = torch.randn(5, D, generator=draw, dtype=torch.float64)
            batch = Batch([x, torch.randint(0, CLASSES, (5,), generator=draw)])
            self._made.add(batch)
            self.most = max(self.most, len(self._made))
            yield batch
            del batch


METHODS: dict[str, Callable[[nn.Module], Method]] = {
    "code-cl": partial(CodeCL, heads=["head"], samples=None, overlap=0.0, free_dims=4),
    "code-cl own": partial(CodeCL.own, heads=["head"], samples=None),
    "gpm": partial(GPM, heads=["head"], samples=None),
}


@pytest.mark.parametrize("make", METHODS.values(), ids=METHODS)
def test_one_batch_is_in_memory_at_a_time(make: Callable[[nn.Module], Method]) -> None:
    method = make(mlp())
    for t in range(TASKS):
        loader = Watched(t)
        method.begin_task(t, loader)
        method.end_task(loader)
        assert loader.most <= 2  # the one that is looked at, and the next while it is made


@pytest.mark.parametrize("kind", ["list", "loader", "iterator"])
def test_all_inputs_count_whatever_they_are_read_from(kind: str) -> None:
    method = CodeCL(mlp(), heads=["head"], samples=None, aperture=3.0)
    seen = []
    for t in range(TASKS):
        batches = list(Watched(t))
        X = torch.cat([batch[0] for batch in batches])
        seen.append(X)
        y = torch.cat([batch[1] for batch in batches])
        several = {"list": batches, "loader": DataLoader(TensorDataset(X, y), 7, shuffle=True)}
        for step in (method.begin_task, method.end_task):
            loader = iter(batches) if kind == "iterator" else several[kind]
            before = torch.get_rng_state()
            step(t, loader) if step == method.begin_task else step(loader)  # type: ignore[call-arg,arg-type]
            assert torch.equal(torch.get_rng_state(), before)
    odds = sum(9.0 * X.mT @ X / len(X) for X in seen)
    expected = dense.negate(torch.linalg.inv(dense.identity(D) + odds))
    assert_close(method.memory["first.weight"][0].dense(), expected, atol=1e-10, rtol=0)


def test_a_loader_that_uses_the_model_is_not_listened_to() -> None:
    model = mlp()

    def through_the_model(X: Tensor) -> Iterator[Tensor]:
        for x in X.split(6):
            model(100 * x)
            yield x

    X = torch.randn(30, D, generator=seeded(0), dtype=torch.float64)
    method = CodeCL(model, heads=["head"], samples=None, aperture=3.0)
    method.begin_task(0, through_the_model(X))
    method.end_task(through_the_model(X))
    assert_close(method.memory["first.weight"][0].dense(), dense.fit(X, 3.0), atol=1e-10, rtol=0)


def test_what_is_read_several_times_is_kept() -> None:
    """The adaptation of apertures goes over the inputs again, also over those of an iterator."""
    found = []
    for read in (list, iter):
        method = CodeCL(mlp(), heads=["head"], samples=None, gain=0.9)
        for t in range(2):
            method.begin_task(t, read(list(Watched(t))))
            method.end_task(read(list(Watched(t))))
        found.append(method.memory["second.weight"][0].dense())
    assert torch.equal(*found)


def test_nothing_to_read_is_one_message() -> None:
    method = CodeCL(mlp(), heads=["head"], samples=None)
    method.begin_task(0)
    with pytest.raises(ValueError, match="the loader yielded no inputs"):
        method.end_task([])
    with pytest.raises(TypeError, match="a loader is any iterable of batches; got None"):
        method.end_task()
    method.end_task(list(Watched(0)))
    assert method.tasks == [0]

"""Parts, tasks and streams: every way to hand over data gives the same batches."""

import doctest

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from codecl.training import loader
from codecl.training import stream as streams
from codecl.training.loader import BatchLoader, sizes
from codecl.training.stream import FromDataset, Prepared, Stream, Task, Tensors, as_part

X = torch.arange(14.0).reshape(7, 2)
Y = torch.arange(7) % 3


class Pairs(Dataset):
    """A map-style dataset whose labels are Python numbers, as torchvision's are."""

    def __len__(self):
        return 7

    def __getitem__(self, i):
        if not 0 <= i < 7:
            raise IndexError(i)
        return X[i], int(Y[i])


class Endless(IterableDataset):
    def __len__(self):
        return 7

    def __iter__(self):
        return iter(zip(X, Y, strict=True))


PARTS = {
    "tensors": lambda: (X, Y),
    "list of tensors": lambda: [X, Y],
    "part": lambda: Tensors(X, Y),
    "dataset": Pairs,
    "tensor dataset": lambda: TensorDataset(X, Y),
    "list of examples": lambda: [(x, int(y)) for x, y in zip(X, Y, strict=True)],
    "loader": lambda: DataLoader(Pairs(), batch_size=5, shuffle=True),
}


@pytest.mark.parametrize("make", PARTS.values(), ids=PARTS)
def test_every_kind_of_data_gives_the_same_batches(make):
    part = as_part(make())
    assert len(part) == 7
    order = torch.tensor([6, 0, 3, 3, 1, 2])
    for (x, y), chosen in zip(BatchLoader(part, 2, order=order), ([6, 0], [3, 3], [1, 2]), strict=True):
        assert torch.equal(x, X[chosen])
        assert torch.equal(y, Y[chosen])
        assert y.dtype == torch.int64


def test_without_an_order_batches_come_as_they_are_stored():
    assert torch.equal(torch.cat([x for x, _ in BatchLoader(Tensors(X, Y), 3)]), X)
    for size, expected in ((4, [4, 3]), (100, [7]), (3, [3, 4])):
        batches = BatchLoader(Tensors(X, Y), size)
        assert [len(y) for _, y in batches] == expected
        assert (len(batches), batches.inputs) == (len(expected), 7)
    assert BatchLoader(Tensors(X, Y), 3, order=torch.arange(5)).inputs == 5


def test_batches_come_on_the_device_and_keep_what_is_stored():
    (batch,) = BatchLoader(Tensors(X, Y, lambda x: x / 2), 7, "meta")
    assert all(value.is_meta for value in batch)
    assert isinstance(batch, Prepared)
    assert torch.equal(batch.raw, X)


def test_nothing_is_read_before_a_batch_is_asked_for():
    taken = []

    class Watched(Tensors):
        def take(self, indices):
            taken.append(indices.tolist())
            return super().take(indices)

    loader = BatchLoader(Watched(X, Y), 2)
    assert (len(loader), taken) == (3, [])
    next(iter(loader))
    assert taken == [[0, 1]]


def test_a_part_of_ones_own_is_taken_as_it_is():
    class Own:
        def __len__(self):
            return 1

        def take(self, indices):
            return X[indices], Y[indices]

    own = Own()
    assert as_part(own) is own


def test_a_loader_keeps_its_way_of_making_a_batch():
    def doubled(examples):
        return 2 * torch.stack([x for x, _ in examples]), torch.tensor([y for _, y in examples])

    part = as_part(DataLoader(Pairs(), batch_size=5, collate_fn=doubled))
    assert torch.equal(part.take(torch.tensor([4, 2]))[0], 2 * X[[4, 2]])


NOT_PARTS = [3, None, iter([]), Endless(), DataLoader(Endless(), batch_size=2)]


@pytest.mark.parametrize("data", NOT_PARTS, ids=lambda data: type(data).__name__)
def test_data_without_an_index_is_refused_with_what_is_needed(data):
    with pytest.raises(TypeError, match=r"pair of tensors, a map-style dataset.*got "):
        as_part(data)


def test_prepare_sees_the_batch_and_not_the_whole_part():
    seen = []

    def halve(x):
        seen.append(len(x))
        return x / 2

    x, y = Tensors(X, Y, halve).take(torch.tensor([5, 1]))
    assert torch.equal(x, X[[5, 1]] / 2)
    assert torch.equal(y, Y[[5, 1]])
    assert seen == [2]


def test_inputs_without_labels_are_refused():
    with pytest.raises(ValueError, match="got 6 and 7"):
        Tensors(X, Y[:6])


def test_a_stream_is_cut_to_its_first_tasks():
    part = FromDataset(Pairs())
    stream = Stream("s", [Task(f"task {t}", 3, part, part, part) for t in range(3)], data="subset")
    assert len(stream) == 3
    assert stream.first(None) is stream
    cut = stream.first(2)
    assert [task.name for task in cut.tasks] == ["task 0", "task 1"]
    assert (cut.name, cut.data) == ("s", "subset")
    for tasks in (0, -1, 4):
        with pytest.raises(ValueError, match=f"s has 3 tasks; got tasks = {tasks}"):
            stream.first(tasks)


@given(st.integers(0, 50), st.integers(1, 12))
def test_no_batch_is_a_single_input_that_was_left_over(inputs, size):
    found = sizes(inputs, size)
    assert sum(found) == inputs
    assert all(length == size for length in found[:-1])
    if found and size > 1 and inputs > 1:
        assert 2 <= found[-1] <= size + 1
        assert found[-1] <= size or inputs % size == 1


def test_the_examples_in_the_docstrings():
    assert doctest.testmod(streams) == (0, 1)
    assert doctest.testmod(loader) == (0, 1)

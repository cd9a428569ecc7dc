"""Batches of another size: every input once and in order, in the containers it came in."""

from typing import NamedTuple

import torch
from hypothesis import given
from hypothesis import strategies as st

from codecl.attach.batches import rebatched


class Pair(NamedTuple):
    x: torch.Tensor
    names: list[str]


def test_by_hand():
    X, y = torch.arange(13.0), torch.arange(13)
    batches = [(X[:5], y[:5]), (X[5:6], y[5:6]), (X[6:], y[6:])]
    for size, counts in ((1, [1] * 13), (4, [4, 4, 5]), (6, [6, 7]), (5, [5, 5, 3]), (12, [13]), (20, [13])):
        found = list(rebatched(batches, size))
        assert [len(x) for x, _ in found] == counts
        assert torch.equal(torch.cat([x for x, _ in found]), X)
        assert torch.equal(torch.cat([y for _, y in found]), y)


@given(
    st.lists(st.integers(1, 9), min_size=1, max_size=6), st.integers(1, 8), st.sampled_from([Pair, tuple, list, dict])
)
def test_everything_that_belongs_to_an_input_stays_with_it(counts, size, container):
    n, batches = 0, []
    for count in counts:
        x = torch.arange(n, n + count)
        names = [f"input {i}" for i in x.tolist()]
        n += count
        batches.append(Pair(x, names) if container is Pair else container({"x": x, "names": names}.items()))
    if container in (tuple, list):
        batches = [container(value for _, value in batch) for batch in batches]
    found = list(rebatched(batches, size))
    values = [batch.values() if container is dict else batch for batch in found]
    assert {type(batch) for batch in found} == {container}
    assert [i for x, _ in values for i in x.tolist()] == list(range(n))
    assert [name for _, names in values for name in names] == [f"input {i}" for i in range(n)]
    lengths = [len(x) for x, _ in values]
    assert all(length == size for length in lengths[:-1])
    assert lengths[-1] <= max(size + 1, 1) or size == 1
    assert n == 1 or size == 1 or min(lengths) > 1


def test_what_belongs_to_no_single_input_stays_whole():
    X, weights = torch.arange(13.0), torch.tensor([0.5, 2.0, 1.0])
    found = list(rebatched([{"x": X, "k": 3, "s": torch.tensor(1.0), "w": weights}], 7))
    assert [batch["x"].tolist() for batch in found] == [X[:7].tolist(), X[7:].tolist()]
    assert all((batch["k"], float(batch["s"])) == (3, 1.0) and torch.equal(batch["w"], weights) for batch in found)
    several = list(rebatched([(X[:5], weights), (X[5:], weights)], 9))
    assert [(len(x), w.tolist()) for x, w in several] == [(9, weights.tolist()), (4, weights.tolist())]


def test_what_does_not_fit_together_is_not_joined():
    """Texts that are padded batch by batch, other keys, other weights, another dtype."""
    five, seven = torch.zeros(3, 5), torch.ones(4, 7)
    assert [tuple(x.shape) for (x,) in rebatched([(five,), (seven,), (seven,)], 6)] == [(3, 5), (6, 7), (2, 7)]
    for other in ({"y": five}, {"x": five, "k": 2}, {"x": five.double()}, {"x": five, "k": "one"}):
        apart = [{"x": five, "k": 1}, other]
        assert list(rebatched(apart, 8)) == apart


def test_a_batch_that_only_the_user_understands_passes():
    assert list(rebatched(["strange", "things"], 4)) == ["strange", "things"]

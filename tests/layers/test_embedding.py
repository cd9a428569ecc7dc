"""Embeddings against the Linear layer that multiplies one-hot rows."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.testing import assert_close

from codecl import GPM, CodeCL, UncoveredWeights, UnseenUse
from codecl.attach import capture_moments, survey
from tests.attach.capture_cases import gram
from tests.layers.cases import attached, memory_of, normal, redrawn, seeds

CLOSE = {"rtol": 1e-10, "atol": 1e-10}


@st.composite
def lookups(draw):
    V, shape, seed = draw(st.integers(1, 7)), draw(st.lists(st.integers(0, 4), max_size=3)), draw(seeds)
    generator = torch.Generator().manual_seed(seed)
    return redrawn(nn.Embedding(V, draw(st.integers(1, 4))), seed), torch.randint(0, V, shape, generator=generator)


@given(lookups())
def test_moments_are_those_of_one_hot_rows(case):
    table, ids = case
    X = F.one_hot(ids.flatten(), table.num_embeddings).double()
    with attached(table) as weights:
        seen = capture_moments(table, weights, [ids, ids])
        rows = weights["weight"].kind.rows(ids)
    assert_close(rows.squeeze(-1).mT, X, **CLOSE)
    if len(X) == 0:
        assert seen == {}
        return
    assert [m.count for m in seen["weight"]] == [2 * len(X)] * table.num_embeddings
    assert_close(torch.stack([gram(m).squeeze() for m in seen["weight"]]), 2 * (X.mT @ X).diagonal(), **CLOSE)


@given(lookups(), seeds)
def test_conceptors_are_those_of_the_dense_layer(case, seed):
    """``C`` of the one-hot rows over two tasks is diagonal, and its diagonal is what the table remembers."""
    table, ids = case
    if ids.numel() == 0:
        return
    V = table.num_embeddings
    other = torch.randint(0, V, (5,), generator=torch.Generator().manual_seed(seed))
    method, dense = CodeCL(table, aperture=2.0), CodeCL(redrawn(nn.Linear(V, 2)), aperture=2.0, free_dims=0)
    for t, x in enumerate((ids.flatten(), other)):
        method.begin_task(t, [x])
        method.end_task([x])
        rows = F.one_hot(x, V).double()
        dense.begin_task(t, [rows])
        dense.end_task([rows])
    C = torch.stack([c.dense().squeeze() for c in method.memory["weight"]])
    assert_close(torch.diag(C), dense.memory["weight"][0].dense(), rtol=1e-8, atol=1e-8)
    G = normal(1, V, 2)
    o = table.embedding_dim
    projected = method.weights["weight"].project(G[:, :1].expand(V, o))
    assert_close(projected[:, 0], dense.weights["weight"].project(G.mT)[0], rtol=1e-8, atol=1e-8)


def test_gpm_holds_the_entries_that_were_looked_up():
    table = redrawn(nn.Embedding(6, 3))
    method = GPM(table)
    method.begin_task(0, [torch.tensor([1, 1, 1, 1, 4])])
    method.end_task([torch.tensor([1, 1, 1, 1, 4])])
    G = normal(0, 6, 3)
    held = torch.tensor([0, 1, 0, 0, 1, 0], dtype=torch.bool)
    assert_close(method.weights["weight"].project(G), torch.where(held.unsqueeze(1), 0.0, G), **CLOSE)


def test_a_padding_entry_is_looked_up_like_any_other_and_learns_nothing():
    table = redrawn(nn.Embedding(4, 2, padding_idx=0))
    with attached(table) as weights:
        weights["weight"].projection = memory_of(0, 1, [1, 0, 1, 0], [0] * 4).projection(table.weight)
        s = torch.rand(1, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        table(torch.tensor([0, 1, 2, 2])).sum().backward()
    expected = torch.tensor([0.0, 1.0, 2.0, 0.0], dtype=torch.float64)
    expected[2] *= 1 - s.item()
    assert_close(table.weight.grad, expected.unsqueeze(1).expand(4, 2), **CLOSE)


def test_a_table_that_changes_itself_or_has_sparse_gradients_is_refused():
    with pytest.raises(UncoveredWeights, match="'0' is Embedding: max_norm changes the weight in every call"):
        survey(nn.Sequential(nn.Embedding(4, 2, max_norm=1.0)))
    with pytest.raises(UncoveredWeights, match="'0' is Embedding: its sparse gradients cannot be projected"):
        survey(nn.Sequential(nn.Embedding(4, 2, sparse=True)))


class Scaled(nn.Embedding):
    def forward(self, ids):
        return 3 * super().forward(ids)


class Shifted(nn.Embedding):
    """Positions of what a mask shows, two further on, as OPT and BART look them up."""

    def forward(self, mask, past=0):
        return super().forward((mask.cumsum(1) * mask - 1).long()[:, past:] + 2)


class Sliced(nn.Embedding):
    """Positions as Whisper takes them."""

    def forward(self, ids, past=0):
        return self.weight[past : past + ids.shape[1]]


class Picked(nn.Embedding):
    def forward(self, ids):
        return torch.cat([self.weight[ids], self.weight.index_select(0, ids[0]).expand(len(ids), -1, -1)])


class Whole(nn.Embedding):
    """Returned as it is, and in another call of it put through a function."""

    def forward(self, ids):
        return self.weight if ids.sum() == 0 else self.weight.tanh()


FORWARDS = {
    "scaled": (Scaled, (torch.tensor([[0, 1, 1]]),), [1, 2, 0, 0, 0, 0]),
    "shifted": (Shifted, (torch.tensor([[1, 1, 0], [1, 1, 1]]),), [0, 1, 2, 2, 1, 0]),
    "shifted further": (Shifted, (torch.tensor([[1, 1, 1]]), 1), [0, 0, 0, 1, 1, 0]),
    "sliced": (Sliced, (torch.zeros(2, 3), 1), [0, 1, 1, 1, 0, 0]),
    "picked": (Picked, (torch.tensor([[5, 5], [0, 1]]),), [1, 1, 0, 0, 0, 4]),
    "whole": (Whole, (torch.zeros(2),), [1, 1, 1, 1, 1, 1]),
    "function": (Whole, (torch.ones(2),), [1, 1, 1, 1, 1, 1]),
}


@pytest.mark.parametrize("name", FORWARDS)
def test_a_forward_of_its_own_is_followed_to_the_entries(name):
    """Shares are counted, not numbers: a part of the table is seen once for each of its columns."""
    table_type, args, counts = FORWARDS[name]
    table = redrawn(table_type(6, 3))
    before = table(*args).detach()
    with attached(table) as weights:
        seen = capture_moments(table, weights, [args], lambda model, batch: model(*batch))["weight"]
        shares = torch.stack([gram(m).squeeze() / m.count for m in seen])
        assert_close(shares, torch.tensor(counts, dtype=torch.float64) / sum(counts), **CLOSE)
        assert_close(table(*args), before)
    free = torch.tensor(counts) == 0
    with torch.no_grad():
        table.weight[free] += 1
    assert torch.equal(table(*args), before)


@st.composite
def bags(draw):
    """A layer and the arguments of a call; and how much of each entry is in each bag, counted one by one."""
    V, seed, mode = draw(st.integers(2, 5)), draw(seeds), draw(st.sampled_from(["sum", "mean", "max"]))
    last, padding = draw(st.booleans()), draw(st.sampled_from([None, 0]))
    layer = nn.EmbeddingBag(V, 2, mode=mode, include_last_offset=last, padding_idx=padding)
    sizes = draw(st.lists(st.integers(0, 3), min_size=1, max_size=4))
    table = draw(st.booleans())
    sizes = [2] * len(sizes) if table else sizes
    ids = torch.randint(0, V, (sum(sizes),), generator=torch.Generator().manual_seed(seed))
    weights = normal(seed + 5, sum(sizes)).abs() + 0.1 if mode == "sum" and draw(st.booleans()) else None
    x, i = torch.zeros(len(sizes), V, dtype=torch.float64), 0
    for bag, size in enumerate(sizes):
        inside = [j for j in range(i, i + size) if int(ids[j]) != padding]
        for j in inside:
            x[bag, ids[j]] += (1 if weights is None else weights[j]) / (len(inside) if mode == "mean" else 1)
        i += size
    starts = torch.tensor([0, *torch.tensor(sizes).cumsum(0).tolist()])
    if table:
        args = (ids.reshape(-1, 2), None, None if weights is None else weights.reshape(-1, 2))
    else:
        args = (ids, starts if last else starts[:-1], weights)
    return redrawn(layer, seed), args, x


@given(bags())
def test_bags_hold_their_entries(case):
    layer, args, x = case
    with attached(layer) as weights:
        kind = weights["weight"].kind
        assert_close(kind.call(args, {}), x, **CLOSE)
        assert_close(kind.rows(x), x.mT.unsqueeze(-1))
        if layer.mode != "max":
            assert_close(layer(*args), x @ layer.weight, **CLOSE)
        assert kind.describes(x, lambda: layer(*args))
        seen = capture_moments(layer, weights, [args], lambda model, batch: model(*batch))["weight"]
        assert_close(torch.stack([gram(m).squeeze() for m in seen]), (x * x).sum(0), **CLOSE)
    before = layer(*args).detach()
    with torch.no_grad():
        layer.weight[(x == 0).all(0)] += 1
    assert_close(layer(*args), before, **CLOSE)


def test_a_bag_with_a_forward_of_its_own_is_refused():
    class Doubled(nn.EmbeddingBag):
        def forward(self, ids):
            return 2 * super().forward(ids)

    model = redrawn(nn.Sequential(Doubled(4, 2)))
    with attached(model) as weights, pytest.raises(UnseenUse, match="'0' is Doubled"):
        capture_moments(model, weights, [torch.tensor([[0, 1]])])


@pytest.mark.slow
def test_nothing_of_a_large_table_is_square():
    """A square of this table would take 3 GB; the bytes are those of one number for each entry."""
    table = nn.Embedding(20_000, 2)
    method = CodeCL(table)
    ids = torch.arange(1000).reshape(10, 100)
    method.begin_task(0, [ids])
    method.end_task([ids])
    assert method.bytes()["memory"] == 1000 * 8
    assert method.weights["weight"].projection.matrix.shape == (20_000, 1, 1)

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
from tests.attach.test_capture import gram
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


def test_a_scaled_table_is_refused():
    model = redrawn(nn.Sequential(Scaled(4, 2)))
    with attached(model) as weights, pytest.raises(UnseenUse, match="'0' is Scaled"):
        capture_moments(model, weights, [torch.tensor([0, 1])])


def test_nothing_of_a_large_table_is_square():
    """A square of this table would take 3 GB; the bytes are those of one number for each entry."""
    table = nn.Embedding(20_000, 2)
    method = CodeCL(table)
    ids = torch.arange(1000).reshape(10, 100)
    method.begin_task(0, [ids])
    method.end_task([ids])
    assert method.bytes()["memory"] == 1000 * 8
    assert method.weights["weight"].projection.matrix.shape == (20_000, 1, 1)

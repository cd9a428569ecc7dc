"""Raw parameters whose rows are found by running the forward, against the rows written down beside it."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.testing import assert_close

from codecl import GPM, UncoveredWeights
from codecl.attach import capture_moments, survey
from codecl.layers import base as kinds
from codecl.layers import register_matrices
from tests.attach.capture_cases import gram
from tests.layers.cases import attached, normal, redrawn, seeds

CLOSE = {"rtol": 1e-9, "atol": 1e-9}


@pytest.fixture(autouse=True)
def own_registry(monkeypatch):
    monkeypatch.setattr(kinds, "_KINDS", dict(kinds._KINDS))
    monkeypatch.setattr(kinds, "_PATTERNS", dict(kinds._PATTERNS))


class Raw(nn.Module):
    """A matrix or a stack of them, used as ``use`` says."""

    def __init__(self, use, shape):
        super().__init__()
        self.use, self.kernel = use, nn.Parameter(torch.empty(shape))

    def forward(self, x):
        return self.use(x, self.kernel)


def experts(x, W):
    """Input ``i`` goes to expert ``i % 3``; the last of four has none."""
    return torch.cat([F.linear(x[e::3], W[e]) for e in range(3)])


def halves(x, W):
    up, down = W.chunk(2)
    return F.linear(x, up) + F.linear(2 * x, down)


def of_experts(x):
    return [x[e::3] for e in range(3)] + [x[:0]]


# How a weight is used on inputs [6, 4]; its shape; whether it stands as [d, o]; its rows for each matrix.
USES = {
    "linear": (F.linear, (3, 4), False, lambda x: [x]),
    "linear by name": (lambda x, W: F.linear(input=x, weight=W), (3, 4), False, lambda x: [x]),
    "matmul": (lambda x, W: x @ W, (4, 3), True, lambda x: [x]),
    "turned matmul": (lambda x, W: torch.matmul(x, W.mT), (3, 4), False, lambda x: [x]),
    "from the left": (lambda x, W: W @ x.mT, (3, 4), False, lambda x: [x]),
    "vector": (lambda x, W: W @ x[0], (3, 4), False, lambda x: [x[:1]]),
    "mm": (lambda x, W: torch.mm(x, W.t()), (3, 4), False, lambda x: [x]),
    "addmm": (lambda x, W: torch.addmm(x.new_ones(3), x, W), (4, 3), True, lambda x: [x]),
    "cast": (lambda x, W: F.linear(x, W.to(x.dtype).contiguous()), (3, 4), False, lambda x: [x]),
    "halves": (halves, (6, 4), False, lambda x: [torch.cat([x, 2 * x])]),
    "bmm": (lambda x, W: torch.bmm(x.reshape(2, 3, 4), W), (2, 4, 3), True, lambda x: list(x.reshape(2, 3, 4))),
    "baddbmm": (
        lambda x, W: torch.baddbmm(x.new_ones(2, 1, 3), x.reshape(2, 3, 4), W.mT),
        (2, 3, 4), False, lambda x: list(x.reshape(2, 3, 4)),
    ),
    "experts": (experts, (4, 3, 4), False, of_experts),
    "square": (lambda x, W: x @ W, (4, 4), True, lambda x: [x]),
    "transposed experts": (lambda x, W: torch.cat([x[e::3] @ W[e] for e in range(3)]), (4, 4, 3), True, of_experts),
}  # fmt: skip


@given(st.sampled_from(sorted(USES)), seeds)
def test_rows_are_those_written_down(name, seed):
    use, shape, transposed, rows = USES[name]
    register_matrices(Raw, "kernel", transposed=transposed)
    layer, x = redrawn(Raw(use, shape), seed), normal(seed + 7, 6, 4)
    before = layer(x).detach()
    with attached(layer) as weights:
        seen = capture_moments(layer, weights, [x])["kernel"]
        assert_close(layer(x), before)
    assert weights["kernel"].shape[2] == 4
    assert len(seen) == len(rows(x))
    for moments, X in zip(seen, rows(x), strict=True):
        assert_close(gram(moments), X.mT @ X, **CLOSE)


REFUSED = {
    "norm": (lambda x, W: x * W.norm(), "'0.kernel': its inputs cannot be seen in norm"),
    "other side": (lambda x, W: x[:, :3] @ W, "'0.kernel': matmul multiplies another side"),
    "a part": (lambda x, W: F.linear(x[:, :2], W[:, :2]), "'0.kernel': linear multiplies another side"),
    "einsum": (lambda x, W: torch.einsum("nd,od->no", x, W), "'0.kernel': its inputs cannot be seen in einsum"),
    "scaled": (lambda x, W: F.linear(x, 2 * W), "'0.kernel': its inputs cannot be seen in"),
    "returned": (lambda x, W: W, "'0.kernel': its inputs cannot be seen in"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_any_other_use_is_refused_by_name_before_the_first_task(name):
    use, message = REFUSED[name]
    register_matrices(Raw, "kernel")
    model = redrawn(nn.Sequential(Raw(use, (3, 4))))
    method = GPM(model)
    with pytest.raises(ValueError, match=message):
        method.begin_task(0, [normal(0, 5, 4)])
    assert method.tasks == []


def test_without_a_line_of_registration_it_is_uncovered():
    with pytest.raises(UncoveredWeights, match=r"'0.kernel' \(Raw\): no layer kind is registered"):
        survey(nn.Sequential(Raw(F.linear, (3, 4))))


@pytest.mark.parametrize("name", USES)
def test_a_second_task_moves_nothing_of_the_first(name):
    use, shape, transposed, _ = USES[name]
    register_matrices(Raw, "kernel", transposed=transposed)
    model = redrawn(nn.Sequential(nn.Linear(4, 4, bias=False), Raw(use, shape)))
    x = normal(1, 1, 4).expand(6, 4).contiguous()  # one direction, so that others are free
    method = GPM(model, threshold=1.0)
    method.begin_task(0, [x])
    method.end_task([x])
    before, W = model(x).detach(), model[1].kernel.detach().clone()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    method.guard(optimizer)
    other = normal(2, 6, 4)
    method.begin_task(1, [other])
    for _ in range(5):
        optimizer.zero_grad()
        model(other).square().sum().backward()
        optimizer.step()
    assert_close(model(x), before, **CLOSE)
    assert (model[1].kernel - W).abs().max() > 0.01

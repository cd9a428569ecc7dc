"""One parameter on both sides: a table of words that is also the output layer, and ``W`` beside ``Wᵀ``."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.testing import assert_close

from codecl import API, GPM, HAT, OWM, SGP, TRGP, TRGPSD, CodeCL, UncoveredWeights
from codecl.attach import capture_moments, survey
from codecl.layers import base as kinds
from codecl.layers import register
from tests.attach.capture_cases import gram
from tests.layers.cases import attached, memories, normal, redrawn, seeds
from tests.layers.test_register import Conv1D, TransposedLinear

CLOSE = {"rtol": 1e-9, "atol": 1e-9}
V, D = 24, 10


class Words(nn.Module):
    """Predicts the next word with the table that it reads words from, as GPT-2 does."""

    def __init__(self):
        super().__init__()
        self.words, self.mix, self.out = nn.Embedding(V, D), nn.Linear(D, D), nn.Linear(D, V, bias=False)
        self.out.weight = self.words.weight

    def forward(self, ids):
        return self.out(torch.tanh(self.mix(self.words(ids))))


def tied(seed=0):
    return redrawn(Words(), seed)


def test_the_table_names_both_sides():
    table = survey(tied())
    assert [row.name for row in table] == ["words.weight", "mix.weight", "mix.bias"]
    assert (
        table["words.weight"].note
        == "10 outputs × 1 inputs in each of 24 groups, tied with 'out.weight': on both sides"
    )
    words, out = table.protected["words.weight"], table.protected["out.weight"]
    assert words.parameter is out.parameter
    assert (words.twins, out.twins) == ([out], [words])
    assert (words.shape, out.shape) == ((V, D, 1), (1, V, D))


@given(st.data(), seeds)
def test_gradients_and_steps_pass_both_projections(data, seed):
    """``(I − P) G (I − C)``, with ``P`` of the words and ``C`` of the inputs of the output layer."""
    model, bare = tied(seed), tied(seed)
    ids = torch.randint(0, V, (2, 3), generator=torch.Generator().manual_seed(seed))
    with attached(model) as weights:
        words, out = weights["words.weight"], weights["out.weight"]
        held_words, held_out = data.draw(memories(V, 1)), data.draw(memories(1, D))
        words.projection = held_words.projection(words.parameter)
        out.projection = held_out.projection(out.parameter)
        model(ids).square().sum().backward()
        bare(ids).square().sum().backward()
        eye = torch.eye(V, dtype=torch.float64), torch.eye(D, dtype=torch.float64)
        left, right = eye[0] - torch.diag(held_words.dense.flatten()), eye[1] - held_out.dense[0]
        wanted = left @ bare.words.weight.grad @ right
        assert_close(model.words.weight.grad, wanted, **CLOSE)
        step = normal(seed, V, D)
        for side in (words, out):
            assert_close(side.project(step), left @ step @ right, **CLOSE)
            before = side.snapshot()
            with torch.no_grad():
                side.parameter += step
            side.restrict(before)
            assert_close(side.parameter.detach(), before + left @ step @ right, **CLOSE)
        for side in (words, out):  # one side that a guard takes off takes off both
            side.projects_gradient = False
            assert not any(twin.learns_projected for twin in (words, out))
            side.projects_gradient = True


@given(seeds)
def test_each_side_has_its_own_rows(seed):
    model = tied(seed)
    ids = torch.randint(0, V, (2, 3), generator=torch.Generator().manual_seed(seed))
    with attached(model) as weights, torch.no_grad():
        seen = capture_moments(model, weights, [ids])
        X = torch.tanh(model.mix(model.words(ids))).flatten(0, 1)
    assert_close(gram(seen["out.weight"][0]), X.mT @ X, **CLOSE)
    counts = torch.bincount(ids.flatten(), minlength=V).double()
    assert_close(torch.stack([gram(m).squeeze() for m in seen["words.weight"]]), counts, **CLOSE)


METHODS = {
    "gpm": lambda m: GPM(m, threshold=1.0),
    "code-cl": lambda m: CodeCL(m, aperture=1e7, overlap=0.0, free_dims=4),
    "code-cl replace": lambda m: CodeCL(m, aperture=1e7, overlap=0.0, free_dims=4, replace=True, random_start=True),
    "trgp": lambda m: TRGP(m, threshold=1.0),
    "trgp-sd": lambda m: TRGPSD(m, threshold=1.0),
    "sgp": lambda m: SGP(m, threshold=1.0, alpha=1e12),
}  # fmt: skip
FIRST, SECOND = torch.tensor([[1, 2, 3, 4]]), torch.tensor([[11, 12, 13, 14], [15, 2, 16, 17]])


def loss(model, ids):
    return F.cross_entropy(model(ids)[:, :-1].flatten(0, 1), ids[:, 1:].flatten())


def train(method, optimizer, ids, steps=10):
    for batch in method.watch([ids] * steps):

        def closure(batch=batch):
            optimizer.zero_grad()
            value = loss(method.model, batch)
            value.backward()
            return value

        optimizer.step(closure)


OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "decay": lambda p: torch.optim.SGD(p, lr=0.1, weight_decay=0.05),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.02),
}


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("name", METHODS)
def test_a_second_text_moves_nothing_of_the_first(name, optimizer):
    torch.manual_seed(0)
    model = tied()
    method = METHODS[name](model)
    method.loss = lambda output, ids: F.cross_entropy(output[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
    step = OPTIMIZERS[optimizer](model.parameters())
    method.guard(step)
    method.begin_task(0, [FIRST])
    train(method, step, FIRST)
    method.end_task([FIRST])
    before, W = model(FIRST).detach(), model.words.weight.detach().clone()
    method.begin_task(1, [SECOND])
    begun = loss(model, SECOND).item()
    train(method, step, SECOND)
    method.end_task([SECOND])
    assert (model.words.weight - W).abs().max() > 1e-3
    learned = model(SECOND).detach()
    assert loss(model, SECOND) < begun
    with method.task(0):
        assert_close(model(FIRST), before, rtol=1e-6, atol=1e-6)
    assert_close(method.export(0)(FIRST), before, rtol=1e-6, atol=1e-6)
    assert_close(method.export(1)(SECOND), learned, rtol=1e-6, atol=1e-6)
    assert model.out.weight is model.words.weight


def test_an_export_is_untied_where_its_sides_differ():
    model = tied()
    method = CodeCL(model, aperture=1e7, overlap=0.0, free_dims=4)
    for t, ids in enumerate((FIRST, SECOND)):
        method.begin_task(t, [ids])
        for M in method.parameters():
            with torch.no_grad():
                M += 0.5
        method.end_task([ids])
    first, second = method.export(0), method.export(1)
    assert first.out.weight is first.words.weight
    assert second.out.weight is not second.words.weight
    assert {name for name, _ in second.named_parameters()} == {"words.weight", "mix.weight", "mix.bias", "out.weight"}
    with method.task(1):
        assert_close(second(SECOND), model(SECOND), **CLOSE)


def test_what_both_sides_free_is_learned():
    model = tied()
    method = CodeCL(model, aperture=1e7, overlap=0.0, free_dims=4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    method.guard(optimizer)
    method.begin_task(0, [FIRST])
    method.end_task([FIRST])
    method.begin_task(1, [SECOND])
    assert {"words.weight", "out.weight"} <= set(method.effective)
    trained = {p for group in optimizer.param_groups for p in group["params"]}
    assert trained >= set(method.parameters())


def test_owm_takes_up_the_inputs_of_both_sides():
    model = tied().train()
    method = OWM(model, alpha=1e-6)
    method.loss = lambda output, ids: F.cross_entropy(output[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    method.guard(optimizer)
    one = torch.tensor([[3]])
    method.begin_task(0, [one])
    optimizer.zero_grad()
    model(one).sum().backward()
    optimizer.step()
    method.end_task([one])
    before = model(one).detach()
    method.begin_task(1, [SECOND])
    train(method, optimizer, SECOND, 3)
    assert (model(one) - before).abs().max() < 1e-4


def test_api_refuses_what_has_two_sides():
    """Its columns widen one side, and would not fit the other."""
    with pytest.raises(UncoveredWeights, match=r"tied with 'out.weight': on both sides, and columns"):
        API(tied())


def test_hat_refuses_a_table():
    with pytest.raises(Exception, match="words"):
        HAT(tied()).begin_task(0, [FIRST])


def test_a_linear_layer_and_its_transpose_are_two_sides(monkeypatch):
    monkeypatch.setattr(kinds, "_KINDS", dict(kinds._KINDS))
    monkeypatch.setattr(TransposedLinear, "transposed", property(lambda self: True))
    register(Conv1D)(TransposedLinear)

    class Autoencoder(nn.Module):
        def __init__(self):
            super().__init__()
            self.code, self.back = nn.Linear(8, 4, bias=False), Conv1D(4, 8)
            self.back.weight = self.code.weight

        def forward(self, x):
            return self.back(torch.tanh(self.code(x)))

    model = redrawn(Autoencoder())
    x, other = normal(1, 2, 8), normal(2, 6, 8)
    method = GPM(model, threshold=1.0)
    method.begin_task(0, [x])
    method.end_task([x])
    before = model(x).detach()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    method.guard(optimizer)
    method.begin_task(1, [other])
    W = model.code.weight.detach().clone()
    for _ in range(5):
        optimizer.zero_grad()
        (model(other) - other).square().sum().backward()
        optimizer.step()
    assert_close(model(x), before, **CLOSE)
    assert (model.code.weight - W).abs().max() > 1e-2

"""Recurrent layers against loops over sequences, directions and steps, written out for one sequence at a time."""

import copy

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pack_sequence
from torch.testing import assert_close

from codecl import GPM
from codecl.attach import capture_moments
from tests.attach.capture_cases import gram
from tests.layers.cases import attached, memories, mixings, normal, redrawn, seeds, weight_gradient
from tests.layers.cases import effective as effective_weight

CLOSE = {"rtol": 1e-9, "atol": 1e-9}


@st.composite
def recurrent_layers(draw):
    """A layer, the arguments of a call, and the sequences and first states in it, one by one."""
    seed, d, h = draw(seeds), draw(st.integers(1, 3)), draw(st.integers(1, 3))
    kind, layers, both = draw(st.sampled_from(["RNN", "LSTM", "GRU"])), draw(st.integers(1, 2)), draw(st.booleans())
    settings = {"num_layers": layers, "bidirectional": both, "bias": draw(st.booleans())}
    form, first = draw(st.sampled_from(["padded", "packed", "single"])), draw(st.booleans())
    if kind == "RNN":
        settings["nonlinearity"] = draw(st.sampled_from(["tanh", "relu"]))
    proj = draw(st.integers(1, h - 1)) if kind == "LSTM" and h > 1 and draw(st.booleans()) else 0
    layer = redrawn(
        getattr(nn, kind)(d, h, batch_first=first, **settings, **({"proj_size": proj} if proj else {})), seed
    )
    n = 1 if form == "single" else draw(st.integers(1, 3))
    lengths = [draw(st.integers(1, 4)) for _ in range(n)] if form == "packed" else [draw(st.integers(1, 4))] * n
    sequences = [normal(seed + 50 + i, length, d) for i, length in enumerate(lengths)]
    widths = (proj or h, *([h] if kind == "LSTM" else []))
    states = [normal(seed + 90 + i, layers * (1 + both), n, width) for i, width in enumerate(widths)]
    if form == "packed":
        x = pack_sequence(sequences, enforce_sorted=False)
    else:
        x = torch.stack(sequences, dim=0 if first else 1)
        x = x.squeeze(0 if first else 1) if form == "single" else x
    shown = [state.squeeze(1) for state in states] if form == "single" else states
    hx = (tuple(shown) if kind == "LSTM" else shown[0]) if draw(st.booleans()) else None
    zeros = [torch.zeros_like(state) for state in states]
    return layer, (x, hx), sequences, zeros if hx is None else states


def outputs_of(model, args):
    output = model(*args)[0]
    return output.data if isinstance(output, PackedSequence) else output


def by_hand(layer, sequence, states):
    """The rows of every weight, and the outputs, of one sequence; ``states`` are ``[layers · directions, …]``."""
    rows, inputs = {}, list(sequence)
    ways = 2 if layer.bidirectional else 1
    for k in range(layer.num_layers):
        outputs = []
        for way in range(ways):
            suffix = f"_l{k}" + ("_reverse" if way else "")
            W = {name[: -len(suffix)]: p.detach() for name, p in layer.named_parameters() if name.endswith(suffix)}
            h, c = (state[k * ways + way] for state in (states[0], states[-1]))
            of_way = {}
            for t in reversed(range(len(inputs))) if way else range(len(inputs)):
                rows.setdefault("weight_ih" + suffix, []).append(inputs[t])
                rows.setdefault("weight_hh" + suffix, []).append(h)
                a, b = W["weight_ih"] @ inputs[t] + W.get("bias_ih", 0), W["weight_hh"] @ h + W.get("bias_hh", 0)
                if layer.mode == "LSTM":
                    i, f, g, o = (a + b).chunk(4)
                    c = f.sigmoid() * c + i.sigmoid() * g.tanh()
                    h = o.sigmoid() * c.tanh()
                    if "weight_hr" in W:
                        rows.setdefault("weight_hr" + suffix, []).append(h)
                        h = W["weight_hr"] @ h
                elif layer.mode == "GRU":
                    r, z = (a.chunk(3)[j] + b.chunk(3)[j] for j in (0, 1))
                    n = (a.chunk(3)[2] + r.sigmoid() * b.chunk(3)[2]).tanh()
                    h = (1 - z.sigmoid()) * n + z.sigmoid() * h
                else:
                    h = (a + b).tanh() if layer.mode == "RNN_TANH" else (a + b).relu()
                of_way[t] = h
            outputs.append(of_way)
        inputs = [torch.cat([of_way[t] for of_way in outputs]) for t in range(len(inputs))]
    return {name: torch.stack(several) for name, several in rows.items()}, torch.stack(inputs)


def rows_by_hand(layer, sequences, states):
    """The rows of every weight from all sequences, and their outputs."""
    parts = [by_hand(layer, s, [state[:, i] for state in states]) for i, s in enumerate(sequences)]
    return {name: torch.cat([rows[name] for rows, _ in parts]) for name in parts[0][0]}, [out for _, out in parts]


@given(recurrent_layers())
def test_every_weight_sees_its_rows(case):
    layer, args, sequences, states = case
    rows, outputs = rows_by_hand(layer, sequences, states)
    with attached(layer) as weights:
        assert set(weights) == set(rows)
        seen = capture_moments(layer, weights, [args], lambda model, batch: model(*batch))
        kind = weights["weight_ih_l0"].kind
        x = kind.call(args, {})
        assert_close(kind.expected(x).sort(0).values, torch.cat(outputs).sort(0).values, **CLOSE)
        assert kind.describes(x, lambda: layer(*args))
    for name, X in rows.items():
        (moments,) = seen[name]
        assert moments.count == len(X)
        assert_close(gram(moments), X.mT @ X, rtol=1e-8, atol=1e-8)


@given(st.data(), recurrent_layers())
def test_gradients_are_the_formulas(data, case):
    layer, args, _, _ = case
    bare = copy.deepcopy(layer)
    before = {name: parameter.detach().clone() for name, parameter in layer.named_parameters()}

    def total(model):
        out = outputs_of(model, args)
        return (out * normal(3, *out.shape)).sum()

    with attached(layer) as weights:
        held = {}
        for name, weight in weights.items():
            memory, mixing = data.draw(memories(1, weight.shape[2])), data.draw(mixings(1, weight.shape[2]))
            weight.projection, weight.change, held[name] = memory.projection(weight.parameter), mixing, memory
            bare.get_parameter(name).data = effective_weight(weight.matrices().detach(), mixing)[0]
        ours, theirs = total(layer), total(bare)
        ours.backward()
        theirs.backward()
        assert_close(ours, theirs, **CLOSE)
        for name, weight in weights.items():
            G = bare.get_parameter(name).grad.unsqueeze(0)
            wanted = weight_gradient(G, weight.change, held[name].dense)[0]
            assert_close(weight.parameter.grad, wanted, **CLOSE)
    copy.deepcopy(layer)  # nothing of a call is left behind
    assert all(torch.equal(value, before[name]) for name, value in layer.named_parameters())
    for flat, name in zip(layer._flat_weights, layer._flat_weights_names, strict=True):
        assert flat is layer.get_parameter(name)


@given(recurrent_layers(), seeds)
def test_allowed_updates_move_no_output(case, seed):
    layer, args, _, _ = case
    with attached(layer) as weights, torch.no_grad():
        seen = capture_moments(layer, weights, [args], lambda model, batch: model(*batch))
        before = outputs_of(layer, args)
        for i, (name, weight) in enumerate(weights.items()):
            basis, _ = seen[name][0].spectrum()
            step = normal(seed + i, *weight.parameter.shape)
            weight.parameter += step - step @ basis @ basis.mT
        assert_close(outputs_of(layer, args), before, rtol=1e-7, atol=1e-7)


@given(recurrent_layers(), st.integers(1, 3))
def test_the_first_sequences_have_the_first_rows(case, n):
    layer, args, _, _ = case
    with attached(layer) as weights:
        for weight in weights.values():
            x = weight.kind.call(args, {})
            (whole,), (part,) = weight.kind.rows(x), weight.kind.rows(weight.kind.first(x, n))
            assert_close(part, whole[: len(part)], **CLOSE)
            assert len(part) == sum(min(n, len(step)) for step in x.steps)


def test_rows_in_training_are_those_of_the_same_dropout():
    layer = redrawn(nn.LSTM(3, 4, num_layers=3, dropout=0.5)).train()
    x = normal(1, 5, 2, 3)
    with attached(layer) as weights:
        torch.manual_seed(0)
        kind = weights["weight_ih_l2"].kind
        expected = kind.expected(kind.call((x,), {}))
        assert_close(expected, layer(x)[0].flatten(0, 1), **CLOSE)


CELLS = {"rnn": nn.RNNCell, "lstm": nn.LSTMCell, "gru": nn.GRUCell}


@pytest.mark.parametrize("batch", [(), (4,)])
@pytest.mark.parametrize("given_states", [True, False])
@pytest.mark.parametrize("name", CELLS)
def test_a_cell_sees_inputs_and_states(name, batch, given_states):
    cell = redrawn(CELLS[name](3, 2))
    x, h, c = normal(1, *batch, 3), normal(2, *batch, 2), normal(3, *batch, 2)
    hx = ((h, c) if name == "lstm" else h) if given_states else None
    with attached(cell) as weights, torch.no_grad():
        seen = capture_moments(cell, weights, [(x, hx)], lambda model, b: model(*b))
        for weight, X in (("weight_ih", x), ("weight_hh", h if given_states else torch.zeros_like(h))):
            X = X.reshape(-1, X.shape[-1])
            assert_close(gram(seen[weight][0]), X.mT @ X, **CLOSE)
        kind = weights["weight_ih"].kind
        assert kind.describes(kind.call((x,), {"hx": hx}), lambda: cell(x, hx))
        assert not kind.describes(kind.call((x,), {"hx": hx}), lambda: cell(x + 1, hx))
        if batch:
            part = weights["weight_hh"].kind.first((x, hx), 2)
            assert_close(weights["weight_hh"].kind.rows(part)[0], (h if given_states else torch.zeros_like(h))[:2])


def test_a_method_protects_a_text_of_packed_sequences():
    """A second task of other texts moves the weights, and nothing of the first."""

    class Reader(nn.Module):
        def __init__(self):
            super().__init__()
            self.words, self.gru, self.head = (
                nn.Embedding(40, 6),
                nn.GRU(6, 24, 2, bidirectional=True),
                nn.Linear(48, 3),
            )

        def forward(self, ids):
            lengths = (ids != 0).sum(1)
            packed = pack_padded_sequence(self.words(ids), lengths, batch_first=True, enforce_sorted=False)
            _, h = self.gru(packed)
            return self.head(torch.cat(list(h[-2:]), dim=-1))

    torch.manual_seed(0)
    model = redrawn(Reader())
    first, second = torch.tensor([[3, 4, 5], [6, 7, 0]]), torch.tensor([[21, 22, 23], [24, 0, 0]])
    method = GPM(model, threshold=1.0, heads=["head"])
    method.begin_task(0, [first])
    method.end_task([first])
    before, weight = model(first).detach(), model.gru.weight_hh_l1.detach().clone()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    method.guard(optimizer)
    method.begin_task(1, [second])
    for _ in range(10):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(second), torch.tensor([1, 2])).backward()
        optimizer.step()
    method.end_task([second])
    with method.task(0):
        assert_close(model(first), before, **CLOSE)
    assert (model.gru.weight_hh_l1 - weight).abs().max() > 0.01
    plain = method.export(0)
    assert_close(plain(first), before, **CLOSE)

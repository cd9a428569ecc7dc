"""Recurrent layers: an input weight meets the inputs of all steps, a hidden weight the states before them.

If neither product changes at any step, no state does, and so no output. States are computed here step by step: torch's
own recurrent layers return those of the last layer only.
"""

from __future__ import annotations

import re
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from codecl.layers.base import LayerKind, register
from codecl.randomness import untouched_randomness

PARTS = ("weight_ih", "weight_hh", "weight_hr", "bias_ih", "bias_hh")


@dataclass(frozen=True)
class Sequences:
    """A batch of sequences, the longest first, as ``steps`` with the inputs ``[n_t, d]`` of those that are so long.

    ``states`` are what they begin with: ``h`` and, for an LSTM, ``c``; ``[layers · directions, n, …]``.
    """

    steps: Sequence[Tensor]
    states: Sequence[Tensor]


@register(nn.RNN, nn.LSTM, nn.GRU)
class RecurrentKind(LayerKind):
    """``nn.RNN``, ``nn.LSTM`` and ``nn.GRU``: any layers, directions, projections; padded, packed or one sequence."""

    weights = ("weight_ih_l*", "weight_hh_l*", "weight_hr_l*")
    biases = ("bias_ih_l*", "bias_hh_l*")

    def matrices(self, weight: Tensor) -> Tensor:
        return weight.unsqueeze(0)

    def call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Sequences:
        rnn = self._rnn
        given = dict(zip(("input", "hx"), args, strict=False)) | kwargs
        x, states = given["input"], given.get("hx")
        states = () if states is None else (states,) if isinstance(states, Tensor) else tuple(states)
        if isinstance(x, PackedSequence):
            steps = torch.split(x.data, x.batch_sizes.tolist())
            if x.sorted_indices is not None:
                states = tuple(state.index_select(1, x.sorted_indices) for state in states)
        else:
            if x.ndim == 2:
                x, states = x.unsqueeze(0 if rnn.batch_first else 1), tuple(state.unsqueeze(1) for state in states)
            steps = x.unbind(1 if rnn.batch_first else 0)
        widths = (rnn.proj_size or rnn.hidden_size, *((rnn.hidden_size,) if rnn.mode == "LSTM" else ()))
        layers, n = rnn.num_layers * self._directions, len(steps[0])
        return Sequences(steps, states or [steps[0].new_zeros(layers, n, width) for width in widths])

    def rows(self, x: Sequences) -> list[Tensor]:
        found = re.fullmatch(r"weight_(ih|hh|hr)_l(\d+)(_reverse)?", self.name)
        assert found is not None
        part, layer, backwards = found[1], int(found[2]), found[3] is not None
        with untouched_randomness():
            steps = self._inputs_of(layer, x)
            seen = steps if part == "ih" else self._run(steps, x.states, layer, backwards)[part]
        # The rows of each sequence one after the other.
        of = torch.cat([torch.arange(len(step)) for step in seen])
        return [torch.cat(list(seen))[torch.argsort(of, stable=True).to(seen[0].device)]]

    def inputs(self, x: Sequences) -> int:
        return len(x.steps[0])

    def first(self, x: Sequences, n: int) -> Sequences:
        return Sequences([step[:n] for step in x.steps], [state[:, :n] for state in x.states])

    def expected(self, x: Sequences) -> Tensor:
        with untouched_randomness():
            return torch.cat(list(self._inputs_of(self._rnn.num_layers, x)))

    def output(self, returned: Any) -> Any:
        return returned[0].data if isinstance(returned[0], PackedSequence) else returned[0]

    def places(self, value: Tensor) -> list[tuple[Any, Any, Any]]:
        """Also in the list from which the layer takes its weights, and in the references by which it checks that."""
        flat: list[Any] = list(self._rnn._flat_weights)
        refs: list[Any] = list(self._rnn._flat_weight_refs)
        i = self._rnn._flat_weights_names.index(self.name)
        flat[i], refs[i] = value, weakref.ref(value)
        own = vars(self.module)
        return [*super().places(value), (own, "_flat_weights", flat), (own, "_flat_weight_refs", refs)]

    @property
    def _rnn(self) -> nn.RNNBase:
        return cast(nn.RNNBase, self.module)

    @property
    def _directions(self) -> int:
        return 2 if self._rnn.bidirectional else 1

    def _inputs_of(self, layer: int, x: Sequences) -> Sequence[Tensor]:
        """The inputs of each step of a layer: the outputs of the last, if it is one more than there are."""
        rnn, steps = self._rnn, x.steps
        for below in range(layer):
            outputs = [self._run(steps, x.states, below, bool(way))["out"] for way in range(self._directions)]
            joined = torch.cat([torch.cat(step, dim=-1) for step in zip(*outputs, strict=True)])
            if below < rnn.num_layers - 1:
                joined = F.dropout(joined, rnn.dropout, rnn.training)
            steps = torch.split(joined, [len(step) for step in x.steps])
        return steps

    def _run(
        self, steps: Sequence[Tensor], states: Sequence[Tensor], layer: int, backwards: bool
    ) -> dict[str, list[Tensor]]:
        """What ``hh`` and ``hr`` meet at each step of one direction of a layer, and what comes ``out``."""
        suffix = f"_l{layer}{'_reverse' if backwards else ''}"
        parameters = {part: getattr(self.module, part + suffix, None) for part in PARTS}
        starts = [state[layer * self._directions + backwards] for state in states]
        now = [start[:0] for start in starts]
        seen: dict[str, list[Tensor]] = {"hh": [], "hr": [], "out": []}
        for x in reversed(steps) if backwards else steps:
            # Sequences that have ended are left out; those that begin here (from behind) begin with their states.
            now = [torch.cat([s[: len(x)], start[len(s) : len(x)]]) for s, start in zip(now, starts, strict=True)]
            seen["hh"].append(now[0])
            now, unprojected = _step(self._rnn.mode, x, now, parameters)
            seen["hr"].append(unprojected)
            seen["out"].append(now[0])
        return {part: several[::-1] if backwards else several for part, several in seen.items()}


def _step(mode: str, x: Tensor, states: list[Tensor], of: dict[str, Any]) -> tuple[list[Tensor], Tensor]:
    """The states after one step, and ``h`` before it was projected."""
    h = states[0]
    a, b = F.linear(x, of["weight_ih"], of["bias_ih"]), F.linear(h, of["weight_hh"], of["bias_hh"])
    if mode == "GRU":
        (r, z, n), (r_h, z_h, n_h) = a.chunk(3, dim=-1), b.chunk(3, dim=-1)
        n, z = torch.tanh(n + torch.sigmoid(r + r_h) * n_h), torch.sigmoid(z + z_h)
        h = (1 - z) * n + z * h
        return [h], h
    if mode == "LSTM":
        i, f, g, o = (a + b).chunk(4, dim=-1)
        c = torch.sigmoid(f) * states[1] + torch.sigmoid(i) * torch.tanh(g)
        h = torch.sigmoid(o) * torch.tanh(c)
        return [h if of["weight_hr"] is None else F.linear(h, of["weight_hr"]), c], h
    h = torch.relu(a + b) if mode == "RNN_RELU" else torch.tanh(a + b)
    return [h], h


@register(nn.RNNCell, nn.LSTMCell, nn.GRUCell)
class CellKind(LayerKind):
    """One step: the rows of the input weight are the inputs, those of the hidden weight the states."""

    weights = ("weight_ih", "weight_hh")
    biases = ("bias_ih", "bias_hh")

    def matrices(self, weight: Tensor) -> Tensor:
        return weight.unsqueeze(0)

    def call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Tensor, Any]:
        given = dict(zip(("input", "hx"), args, strict=False)) | kwargs
        return given["input"], given.get("hx")

    def rows(self, x: tuple[Tensor, Any]) -> Tensor:
        inputs, states = x
        if self.name == "weight_hh":
            h = states[0] if isinstance(states, (tuple, list)) else states
            inputs = inputs.new_zeros(*inputs.shape[:-1], self.value.shape[1]) if h is None else h
        return inputs.reshape(1, -1, inputs.shape[-1])

    def inputs(self, x: tuple[Tensor, Any]) -> int:
        return len(x[0]) if x[0].ndim > 1 else 1

    def first(self, x: tuple[Tensor, Any], n: int) -> tuple[Tensor, Any]:
        inputs, states = x
        if inputs.ndim == 1:
            return x
        cut = tuple(state[:n] for state in states) if isinstance(states, (tuple, list)) else states
        return inputs[:n], cut[:n] if isinstance(cut, Tensor) else cut

    def expected(self, x: tuple[Tensor, Any]) -> Tensor:
        base = next(base for base in (nn.RNNCell, nn.LSTMCell, nn.GRUCell) if isinstance(self.module, base))
        return cast(Tensor, self.output(base.forward(cast(Any, self.module), *x)))

    def output(self, returned: Any) -> Any:
        return returned[0] if isinstance(self.module, nn.LSTMCell) else returned

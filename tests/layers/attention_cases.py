"""Drawn attention layers with their inputs, and attention written out head by head."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor, nn

from tests.layers.cases import normal, redrawn, seeds


@dataclass
class Case:
    layer: nn.MultiheadAttention
    inputs: tuple[Tensor, ...]
    """Query, key and value as the layer takes them; in self-attention one tensor three times."""
    masks: dict[str, Tensor]

    def __call__(self, layer: nn.Module | None = None) -> Tensor:
        output, _ = (layer or self.layer)(*self.inputs, **self.masks)
        return output


@st.composite
def attentions(draw: Any) -> Case:
    heads, width, seed = draw(st.sampled_from([1, 2])), draw(st.sampled_from([1, 2])), draw(seeds)
    E, self_attention, batched = heads * width, draw(st.booleans()), draw(st.booleans())
    kdim, vdim = (E, E) if self_attention or draw(st.booleans()) else (draw(st.integers(1, 5)), draw(st.integers(1, 5)))
    layer = nn.MultiheadAttention(
        E, heads, bias=draw(st.booleans()), add_bias_kv=draw(st.booleans()), add_zero_attn=draw(st.booleans()),
        kdim=kdim, vdim=vdim, batch_first=draw(st.booleans()),
    )  # fmt: skip
    B, L, S = draw(st.integers(1, 3)), draw(st.integers(1, 4)), draw(st.integers(1, 4))
    S = L if self_attention else S

    def shaped(n: int, d: int, offset: int) -> Tensor:
        x = normal(seed + 90 + offset, B, n, d)
        return x[0] if not batched else x if layer.batch_first else x.transpose(0, 1)

    q = shaped(L, E, 0)
    inputs = (q, q, q) if self_attention else (q, shaped(S, kdim, 1), shaped(S, vdim, 2))
    masks: dict[str, Tensor] = {}
    if draw(st.booleans()):
        masks["attn_mask"] = torch.ones(L, S, dtype=torch.bool).triu(1)  # the first key is always seen
    if draw(st.booleans()):
        hidden = torch.zeros(B, S, dtype=torch.bool)
        hidden[-1, 1:] = True
        masks["key_padding_mask"] = hidden if batched else hidden[-1]
    return Case(redrawn(layer, seed), inputs, masks)


def by_hand(case: Case) -> tuple[Tensor, dict[str, list[Tensor]]]:
    """The output, and the rows that each matrix of each weight meets, from loops over inputs, heads and queries."""
    m = case.layer
    E, H = m.embed_dim, m.num_heads
    q, k, v = ((x[None] if x.ndim == 2 else x if m.batch_first else x.transpose(0, 1)) for x in case.inputs)
    if m.in_proj_weight is not None:
        W = list(m.in_proj_weight.detach().chunk(3))
    else:
        W = [w.detach() for w in (m.q_proj_weight, m.k_proj_weight, m.v_proj_weight)]
    b = m.in_proj_bias.detach().chunk(3) if m.in_proj_bias is not None else [torch.zeros(E, dtype=torch.float64)] * 3
    mixed = []
    for i in range(len(q)):
        Q, K, V = (x[i] @ w.mT + c for x, w, c in zip((q, k, v), W, b, strict=True))
        if m.bias_k is not None:
            K, V = torch.cat([K, m.bias_k.detach()[0]]), torch.cat([V, m.bias_v.detach()[0]])
        if m.add_zero_attn:
            K, V = (torch.cat([x, torch.zeros(1, E, dtype=torch.float64)]) for x in (K, V))
        out = torch.zeros(len(Q), E, dtype=torch.float64)
        for h in range(H):
            part = slice(h * E // H, (h + 1) * E // H)
            for t in range(len(Q)):
                seen = [s for s in range(len(K)) if s >= k.shape[1] or not _hidden(case, i, t, s)]
                scores = torch.stack([Q[t, part] @ K[s, part] for s in seen]) / math.sqrt(E // H)
                out[t, part] = scores.softmax(0) @ V[seen][:, part]
        mixed.append(out)
    Z = torch.stack(mixed)
    output = Z @ m.out_proj.weight.detach().mT + (0 if m.out_proj.bias is None else m.out_proj.bias.detach())
    rows = {name: x.reshape(-1, x.shape[-1]) for name, x in (("q", q), ("k", k), ("v", v), ("out", Z))}
    output = output[0] if case.inputs[0].ndim == 2 else output if m.batch_first else output.transpose(0, 1)
    if m.in_proj_weight is not None:
        return output, {"in_proj_weight": [rows["q"], rows["k"], rows["v"]], "out_proj.weight": [rows["out"]]}
    return output, {**{f"{c}_proj_weight": [rows[c]] for c in "qkv"}, "out_proj.weight": [rows["out"]]}


def _hidden(case: Case, i: int, t: int, s: int) -> bool:
    mask, padding = case.masks.get("attn_mask"), case.masks.get("key_padding_mask")
    of_input = None if padding is None else padding if padding.ndim == 1 else padding[i]
    return bool((mask is not None and mask[t, s]) or (of_input is not None and of_input[s]))

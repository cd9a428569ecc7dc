"""Attention as torch has it: projections that no module call shows, and layers that fuse all into one call.

``nn.MultiheadAttention`` multiplies queries, keys and values with its own weights, and hands the weight of
``out_proj`` to a function without calling that module. So it is a kind of its own, with all of its weights.
``nn.TransformerEncoderLayer`` goes further in evaluation: one fused call takes the weights of everything inside it,
past all forwards of ours. While a method is attached it runs as it does in training.
"""

from __future__ import annotations

import inspect
from typing import Any, cast

import torch
from torch import Tensor, nn

from codecl.layers.base import LayerKind, register
from codecl.randomness import untouched_randomness

INPUTS = {"q_proj_weight": "query", "k_proj_weight": "key", "v_proj_weight": "value"}


@register(nn.MultiheadAttention)
class AttentionKind(LayerKind):
    """Self- and cross-attention, batched either way or not at all.

    A packed weight is three matrices, which meet the queries, the keys and the values. ``out_proj`` meets what the
    heads give. ``bias_k`` and ``bias_v`` stand beside the projected keys and values, and meet no weight. Positions
    that a mask hides count like any other.
    """

    weights = ("in_proj_weight", *INPUTS, "out_proj.weight")
    biases = ("in_proj_bias", "bias_k", "bias_v", "out_proj.bias")

    def matrices(self, module: nn.Module, name: str, weight: Tensor) -> Tensor:
        return weight.reshape(3, -1, weight.shape[1]) if name == "in_proj_weight" else weight.unsqueeze(0)

    def parameter(self, module: nn.Module, name: str, matrices: Tensor) -> Tensor:
        return matrices.flatten(0, 1)

    def rows(self, module: nn.Module, name: str, *args: Any, **kwargs: Any) -> list[Tensor]:
        call = _call(module, args, kwargs)
        if name == "out_proj.weight":
            return [_rows(module, _heads(module, call))]
        if name == "in_proj_weight":
            given = [call[key] for key in INPUTS.values()]
            once = {id(x): _rows(module, x) for x in given}
            return [once[id(x)] for x in given]
        return [_rows(module, call[INPUTS[name]])]

    def expected(self, module: nn.Module, name: str, *args: Any, **kwargs: Any) -> Tensor:
        return nn.MultiheadAttention.forward(cast(Any, module), *args, **kwargs)[0]

    def output(self, returned: Any) -> Any:
        return returned[0]

    def inputs(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
        query: Tensor = _call(module, args, kwargs)["query"]
        return query.shape[_batch(module)] if query.ndim == 3 else 1

    def first(
        self, module: nn.Module, n: int, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        call = _call(module, args, kwargs)
        if call["query"].ndim < 3:
            return args, kwargs
        once = {id(x): x.narrow(_batch(module), 0, min(n, x.shape[_batch(module)])) for x in _given(call)}
        call |= {key: once[id(call[key])] for key in INPUTS.values()}
        if (hidden := call.get("key_padding_mask")) is not None:
            call["key_padding_mask"] = hidden[:n]
        if (mask := call.get("attn_mask")) is not None and mask.ndim == 3:
            call["attn_mask"] = mask[: n * cast(nn.MultiheadAttention, module).num_heads]
        return (), call


def _call(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a call by name."""
    call = dict(inspect.signature(nn.MultiheadAttention.forward).bind(module, *args, **kwargs).arguments)
    del call["self"]
    if any(x.is_nested for x in _given(call)):
        raise ValueError("its inputs are nested tensors, whose rows cannot be seen. Pass padded ones with a mask.")
    return call


def _given(call: dict[str, Any]) -> list[Tensor]:
    return [call[key] for key in INPUTS.values()]


def _batch(module: nn.Module) -> int:
    return 0 if cast(nn.MultiheadAttention, module).batch_first else 1


def _rows(module: nn.Module, x: Tensor) -> Tensor:
    """All positions of ``x`` as rows, input by input."""
    if x.ndim == 3 and _batch(module) == 1:
        x = x.transpose(0, 1)
    return x.reshape(-1, x.shape[-1])


def _heads(module: nn.Module, call: dict[str, Any]) -> Tensor:
    """What ``out_proj`` is given: the output with the identity in its place, and the same dropout."""
    inner: nn.Module = cast(nn.MultiheadAttention, module).out_proj
    kept = dict(inner._parameters)
    weight, bias = kept["weight"], kept["bias"]
    assert weight is not None
    stand_in: dict[str, Any] = {
        "weight": torch.eye(weight.shape[1], dtype=weight.dtype, device=weight.device),
        "bias": None if bias is None else torch.zeros_like(bias),
    }
    try:
        inner._parameters.update(stand_in)
        with untouched_randomness():
            output: Tensor = nn.MultiheadAttention.forward(cast(Any, module), **call)[0]
    finally:
        inner._parameters.update(kept)
    return output

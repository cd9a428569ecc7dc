"""``nn.MultiheadAttention``, whose projections are not modules that are called.

It multiplies queries, keys and values with its own weights, and hands the weight of ``out_proj`` to a function without
calling that module. So it is a kind of its own, with all of its weights.
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
    """Self- and cross-attention, batched either way or not at all; ``x`` has the arguments of a call by name.

    A packed weight is three matrices, for the queries, the keys and the values. The rows of ``out_proj`` are the
    outputs of the heads. ``bias_k`` and ``bias_v`` stand beside the projected keys and values, and meet no weight.
    Positions that a mask hides count like any other.
    """

    weights = ("in_proj_weight", *INPUTS, "out_proj.weight")
    biases = ("in_proj_bias", "bias_k", "bias_v", "out_proj.bias")

    def matrices(self, weight: Tensor) -> Tensor:
        return weight.reshape(3, -1, weight.shape[1]) if self.name == "in_proj_weight" else weight.unsqueeze(0)

    def parameter(self, matrices: Tensor) -> Tensor:
        return matrices.flatten(0, 1)

    def call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        x = dict(inspect.signature(nn.MultiheadAttention.forward).bind(self.module, *args, **kwargs).arguments)
        del x["self"]
        return x

    def rows(self, x: dict[str, Any]) -> list[Tensor]:
        given = _given(x)
        if self.name == "out_proj.weight":
            return [self._positions(self._heads(x))]
        if self.name == "in_proj_weight":
            once = {id(tensor): self._positions(tensor) for tensor in given.values()}
            return [once[id(tensor)] for tensor in given.values()]
        return [self._positions(given[INPUTS[self.name]])]

    def inputs(self, x: dict[str, Any]) -> int:
        query = _given(x)["query"]
        return query.shape[self._batch_axis] if query.ndim == 3 else 1

    def first(self, x: dict[str, Any], n: int) -> dict[str, Any]:
        given, axis = _given(x), self._batch_axis
        if given["query"].ndim < 3:
            return x
        once = {id(tensor): tensor.narrow(axis, 0, min(n, tensor.shape[axis])) for tensor in given.values()}
        x = x | {key: once[id(tensor)] for key, tensor in given.items()}
        if (hidden := x.get("key_padding_mask")) is not None:
            x["key_padding_mask"] = hidden[:n]
        if (mask := x.get("attn_mask")) is not None and mask.ndim == 3:
            x["attn_mask"] = mask[: n * cast(nn.MultiheadAttention, self.module).num_heads]
        return x

    def expected(self, x: dict[str, Any]) -> Tensor:
        return nn.MultiheadAttention.forward(cast(Any, self.module), **x)[0]

    def output(self, returned: Any) -> Any:
        return returned[0]

    @property
    def _batch_axis(self) -> int:
        return 0 if cast(nn.MultiheadAttention, self.module).batch_first else 1

    def _positions(self, x: Tensor) -> Tensor:
        """All positions of ``x`` as rows, input by input."""
        if x.ndim == 3 and self._batch_axis == 1:
            x = x.transpose(0, 1)
        return x.reshape(-1, x.shape[-1])

    def _heads(self, x: dict[str, Any]) -> Tensor:
        """What ``out_proj`` is given: the output of the layer with the identity in its place, and the same dropout."""
        parameters: dict[str, Any] = cast(nn.MultiheadAttention, self.module).out_proj._parameters
        before, weight, bias = dict(parameters), parameters["weight"], parameters["bias"]
        try:
            parameters["weight"] = torch.eye(weight.shape[1], dtype=weight.dtype, device=weight.device)
            parameters["bias"] = None if bias is None else torch.zeros_like(bias)
            with untouched_randomness():
                return self.expected(x)
        finally:
            parameters.update(before)


def _given(x: dict[str, Any]) -> dict[str, Tensor]:
    """Queries, keys and values of a call."""
    given = {key: x[key] for key in INPUTS.values()}
    if any(tensor.is_nested for tensor in given.values()):
        raise ValueError("its inputs are nested tensors, whose rows cannot be seen. Pass padded ones with a mask.")
    return given

"""Layers of ``transformers`` and ``peft``, which need not be installed: they are known by their names.

Most of their models consist of Linear, Embedding and LayerNorm, and need nothing from here.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from codecl.layers.base import LayerKind, register, register_added
from codecl.layers.embedding import EmbeddingKind
from codecl.layers.linear import LinearKind
from codecl.layers.traced import TracedKind

VIT_LIKE = ("vit.modeling_vit.ViT", "deit.modeling_deit.DeiT", "dinov2.modeling_dinov2.Dinov2")


@register("transformers.pytorch_utils.Conv1D")
class TransposedLinearKind(LinearKind):
    """GPT-2's ``y = x W + b``, with the weight as ``[d, o]``."""

    @property
    def transposed(self) -> bool:
        return True

    def matrices(self, weight: Tensor) -> Tensor:
        return weight.mT.unsqueeze(0)

    def parameter(self, matrices: Tensor) -> Tensor:
        return matrices.squeeze(0).mT


@register("transformers.models.*Experts")
class ExpertsKind(TracedKind):
    """Mixtures of experts: a stack of matrices, one for each expert, whose rows are the inputs that it is given."""

    weights = ("gate_up_proj", "up_proj", "down_proj")
    biases = ("gate_up_proj_bias", "up_proj_bias", "down_proj_bias")

    @property
    def transposed(self) -> bool:
        return bool(getattr(self.module, "is_transposed", False))


@register("transformers.models.*Router")
class RouterKind(TracedKind):
    """What chooses the experts, ``x Wᵀ + b``."""

    biases = ("bias",)


@register("transformers.models.deberta*Encoder")
class RelativePositionsKind(EmbeddingKind):
    """DeBERTa's relative positions, a table that the encoder hands to its layers as a whole in every call."""

    weights = ("rel_embeddings.weight",)

    @classmethod
    def refusal(cls, module: nn.Module) -> str | None:
        return None

    def call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
        return torch.arange(len(self.value), device=self.value.device)


@register("peft.tuners.lora.layer.Embedding")
class AdaptedTableKind(LayerKind):
    """LoRA of a table, ``Aᵀ[i] Bᵀ``: the entries of ``A`` are looked up, and what is found there meets ``B``."""

    weights = ("lora_embedding_A.*", "lora_embedding_B.*")
    biases = ()

    def __new__(cls, module: nn.Module, name: str, module_name: str = "") -> Any:
        return (_TableFactor if "_A." in name else _OutputFactor)(module, name, module_name)


class _TableFactor(EmbeddingKind):
    """``A: [r, V]``, a table that stands on its side."""

    @property
    def transposed(self) -> bool:
        return False

    def matrices(self, weight: Tensor) -> Tensor:
        return weight.mT.unsqueeze(-1)

    def parameter(self, matrices: Tensor) -> Tensor:
        return matrices.squeeze(-1).mT

    @property
    def entries(self) -> int:
        return self.value.shape[1]


class _OutputFactor(TracedKind):
    """``B: [o, r]``."""


# Functions use these, past their modules: they are held as biases are.
register_added("transformers.models.*Mamba*Mixer", "conv1d.weight", "dt_proj.weight")

for prefix in VIT_LIKE:
    tokens = "cls_token", "position_embeddings", "mask_token", "distillation_token"
    register_added(f"transformers.models.{prefix}Embeddings", *tokens)

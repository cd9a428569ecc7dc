"""Layers of the ``transformers`` package, which need not be installed: they are known by their names.

Most of its models consist of Linear, Embedding and LayerNorm, and need nothing from here.
"""

from __future__ import annotations

from torch import Tensor

from codecl.layers.base import register, register_added
from codecl.layers.linear import LinearKind

VIT_LIKE = ("vit.modeling_vit.ViT", "deit.modeling_deit.DeiT", "dinov2.modeling_dinov2.Dinov2")


@register("transformers.pytorch_utils.Conv1D")
class TransposedLinearKind(LinearKind):
    """GPT-2's ``y = x W + b``, with the weight as ``[d, o]``."""

    def matrices(self, weight: Tensor) -> Tensor:
        return weight.mT.unsqueeze(0)

    def parameter(self, matrices: Tensor) -> Tensor:
        return matrices.squeeze(0).mT


for prefix in VIT_LIKE:
    register_added(
        f"transformers.models.{prefix}Embeddings",
        "cls_token",
        "position_embeddings",
        "mask_token",
        "distillation_token",
    )

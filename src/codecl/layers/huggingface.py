"""Layers of the ``transformers`` package, which need not be installed: they are known by their names.

Most of its models are made of Linear, Embedding and LayerNorm, and need nothing from here.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from codecl.layers.base import LinearKind, register, register_added

VIT_LIKE = ("vit.modeling_vit.ViT", "deit.modeling_deit.DeiT", "dinov2.modeling_dinov2.Dinov2")


@register("transformers.pytorch_utils.Conv1D")
class TransposedLinearKind(LinearKind):
    """GPT-2's ``y = x W + b``, with the weight as ``[d, o]``."""

    def matrices(self, module: nn.Module, name: str, weight: Tensor) -> Tensor:
        return weight.mT.unsqueeze(0)

    def parameter(self, module: nn.Module, name: str, matrices: Tensor) -> Tensor:
        return matrices.squeeze(0).mT

    def rows(self, module: nn.Module, name: str, *args: Any, **kwargs: Any) -> Tensor:
        x: Tensor = args[0] if args else kwargs["x"]
        return super().rows(module, name, x)


for prefix in VIT_LIKE:
    register_added(
        f"transformers.models.{prefix}Embeddings",
        "cls_token",
        "position_embeddings",
        "mask_token",
        "distillation_token",
    )

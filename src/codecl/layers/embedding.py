"""Embeddings: a weight whose inputs are one-hot rows, which need not be formed.

With one-hot rows ``XᵀX`` is diagonal, the number of times that each entry was looked up. Every operation on such
correlations acts on each entry by itself, so an embedding of ``V`` entries is ``V`` matrices ``[o, 1]``: nothing of
size ``V × V`` exists. A method that counts directions, or their energy, counts them for each entry, as it does for each
group of a convolution: GPM protects every entry that was looked up, and CODE-CL protects it by how often it was,
``C_v = p_v / (p_v + α⁻²)``. ``p_v`` is small where there are many entries; give embeddings an aperture of their own.
"""

from __future__ import annotations

from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from codecl.algebra import Moments
from codecl.algebra.tolerances import WORKING_DTYPE, relative_rank_floor
from codecl.layers.base import LayerKind, register


@register(nn.Embedding)
class EmbeddingKind(LayerKind):
    """``y = W[i]`` over any dimensions of ``i``."""

    biases = ()
    indexed = True

    @classmethod
    def refusal(cls, module: nn.Module) -> str | None:
        embedding = cast(nn.Embedding, module)
        if embedding.max_norm is not None:
            return "max_norm changes the weight in every call, past all protection; set it to None"
        return "its sparse gradients cannot be projected; set sparse=False" if embedding.sparse else None

    def matrices(self, weight: Tensor) -> Tensor:
        return weight.unsqueeze(-1)

    def parameter(self, matrices: Tensor) -> Tensor:
        return matrices.squeeze(-1)

    def rows(self, x: Tensor) -> Tensor:
        entries = torch.arange(len(self.value), device=x.device).unsqueeze(1)
        return (x.reshape(1, -1) == entries).to(self.value.dtype).unsqueeze(-1)

    def moments(self, x: Tensor) -> list[Moments]:
        if x.numel() == 0:
            return []
        counts = torch.bincount(x.flatten(), minlength=len(self.value)).to(WORKING_DTYPE).reshape(-1, 1, 1)
        floor = relative_rank_floor(self.value.dtype)
        return [Moments(x.numel(), floor, gram=count) for count in counts]

    def inputs(self, x: Tensor) -> int:
        return x.shape[0] if x.ndim else 1

    def first(self, x: Tensor, n: int) -> Tensor:
        return x[:n] if x.ndim else x

    def expected(self, x: Tensor) -> Tensor:
        return F.embedding(x, self.value)

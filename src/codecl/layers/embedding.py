"""Embeddings: a table whose inputs are one-hot rows, which need not be formed.

With one-hot rows ``XᵀX`` is diagonal, the number of times that each entry was looked up. Every operation on such
correlations acts on each entry by itself, so a table of ``V`` entries is ``V`` matrices ``[o, 1]``: nothing of size
``V × V`` exists. A method that counts directions, or their energy, counts them for each entry, as it does for each
group of a convolution: GPM holds every entry that was looked up, and CODE-CL holds it by how often it was,
``C_v = p_v / (p_v + α⁻²)``. ``p_v`` is small where there are many entries; give embeddings an aperture of their own.
"""

from __future__ import annotations

from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from codecl.algebra import Moments
from codecl.algebra.tolerances import WORKING_DTYPE, relative_rank_floor
from codecl.layers.base import LayerKind, held, register


@register(nn.Embedding)
class EmbeddingKind(LayerKind):
    """``y = W[i]`` over any dimensions of ``i``."""

    biases = ()

    def matrices(self, module: nn.Module, name: str, weight: Tensor) -> Tensor:
        return weight.unsqueeze(-1)

    def parameter(self, module: nn.Module, name: str, matrices: Tensor) -> Tensor:
        return matrices.squeeze(-1)

    def rows(self, module: nn.Module, name: str, *args: Any, **kwargs: Any) -> Tensor:
        ids: Tensor = args[0] if args else kwargs["input"]
        table = held(module, name)
        entries = torch.arange(len(table), device=ids.device).unsqueeze(1)
        return (ids.reshape(1, -1) == entries).to(table.dtype).unsqueeze(-1)

    def moments(self, module: nn.Module, name: str, *args: Any, **kwargs: Any) -> list[Moments]:
        ids: Tensor = args[0] if args else kwargs["input"]
        if ids.numel() == 0:
            return []
        table = held(module, name)
        counts = torch.bincount(ids.flatten(), minlength=len(table)).to(WORKING_DTYPE).reshape(-1, 1, 1)
        floor = relative_rank_floor(table.dtype)
        return [Moments(ids.numel(), floor, gram=count) for count in counts]

    def inputs(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
        ids: Tensor = args[0] if args else kwargs["input"]
        return ids.shape[0] if ids.ndim else 1

    def first(
        self, module: nn.Module, n: int, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        ids: Tensor = args[0] if args else kwargs["input"]
        return (ids[:n] if ids.ndim else ids,), {}

    def expected(self, module: nn.Module, name: str, *args: Any, **kwargs: Any) -> Tensor:
        return F.embedding(args[0] if args else kwargs["input"], held(module, name))

    def refusal(self, module: nn.Module) -> str | None:
        table = cast(nn.Embedding, module)
        if table.max_norm is not None:
            return "max_norm changes the weight in every call, past all protection; set it to None"
        return "its sparse gradients cannot be projected; set sparse=False" if table.sparse else None

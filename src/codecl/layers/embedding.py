"""Embeddings: a weight whose inputs are one-hot rows, which need not be formed.

With one-hot rows ``XᵀX`` is diagonal, the number of times that each entry was looked up. Every operation on such
correlations acts on each entry by itself, so an embedding of ``V`` entries is ``V`` matrices ``[o, 1]``: nothing of
size ``V × V`` exists. A method that counts directions, or their energy, counts them for each entry, as it does for each
group of a convolution: GPM protects every entry that was looked up, and CODE-CL protects it by how often it was,
``C_v = p_v / (p_v + α⁻²)``. ``p_v`` is small where there are many entries; give embeddings an aperture of their own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor, nn

from codecl.algebra import Moments
from codecl.algebra.tolerances import WORKING_DTYPE, relative_rank_floor
from codecl.layers.base import LayerKind, register
from codecl.layers.traced import trace

LOOKUPS = ("__getitem__", "index_select", "select", "narrow")


@register(nn.Embedding)
class EmbeddingKind(LayerKind):
    """``y = W[i]`` over any dimensions of ``i``."""

    biases = ()

    @classmethod
    def refusal(cls, module: nn.Module) -> str | None:
        embedding = cast(nn.Embedding, module)
        if embedding.max_norm is not None:
            return "max_norm changes the weight in every call, past all protection; set it to None"
        return "its sparse gradients cannot be projected; set sparse=False" if embedding.sparse else None

    @property
    def transposed(self) -> bool:
        return True

    @property
    def entries(self) -> int:
        """How many entries the table has."""
        return len(self.value)

    def matrices(self, weight: Tensor) -> Tensor:
        return weight.unsqueeze(-1)

    def parameter(self, matrices: Tensor) -> Tensor:
        return matrices.squeeze(-1)

    def call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
        """The entries that are looked up: a forward of its own may shift them, or scale what it finds there."""
        if type(self.module).forward is nn.Embedding.forward:
            return cast(Tensor, super().call(args, kwargs))
        found: list[Tensor] = []

        def met(func: Callable[..., Any], args: tuple[Any, ...], kwargs: Any, view: Tensor, tags: Tensor) -> None:
            if func.__name__ == "embedding":
                found.append(args[0] if len(view) == self.entries else tags[args[0]].flatten())
            else:  # of a part, its entries; of any other function, all that it was given
                found.append((func(tags, *args[1:], **kwargs) if func.__name__ in LOOKUPS else tags).flatten())

        trace(self, args, kwargs, met, views={"__get__"})
        return (
            found[0] if len(found) == 1 else torch.cat([torch.empty(0, dtype=torch.long), *map(torch.flatten, found)])
        )

    def rows(self, x: Tensor) -> Tensor:
        entries = torch.arange(self.entries, device=x.device).unsqueeze(1)
        return (x.reshape(1, -1) == entries).to(self.value.dtype).unsqueeze(-1)

    def moments(self, x: Tensor) -> list[Moments]:
        if x.numel() == 0:
            return []
        counts = torch.bincount(x.flatten(), minlength=self.entries).to(WORKING_DTYPE).reshape(-1, 1, 1)
        floor = relative_rank_floor(self.value.dtype)
        return [Moments(x.numel(), floor, gram=count) for count in counts]

    def inputs(self, x: Tensor) -> int:
        return len(x) if x.ndim else 1

    def first(self, x: Tensor, n: int) -> Tensor:
        return x[:n] if x.ndim else x

    def describes(self, x: Any, repeat: Callable[[], Any]) -> bool:
        """All lookups were seen."""
        return True


@register(nn.EmbeddingBag)
class EmbeddingBagKind(EmbeddingKind):
    """Sums, means or maxima of entries; ``x`` says how much of each entry is in each bag, ``[bags, V]``.

    Every entry that is in a bag is held by itself, which is more than the sums alone would ask for.
    """

    def call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
        bag = cast(nn.EmbeddingBag, self.module)
        given: dict[str, Any] = dict(zip(("input", "offsets", "per_sample_weights"), args, strict=False)) | kwargs
        ids, shares = given["input"], given.get("per_sample_weights")
        shares = torch.ones_like(ids, dtype=self.value.dtype) if shares is None else shares
        if ids.ndim == 2:
            bags = torch.arange(len(ids), device=ids.device).unsqueeze(1).expand_as(ids)
            count = len(ids)
        else:
            starts = given["offsets"][:-1] if bag.include_last_offset else given["offsets"]
            bags = torch.searchsorted(starts, torch.arange(len(ids), device=ids.device), right=True) - 1
            count = len(starts)
        if bag.padding_idx is not None:
            shares = shares * (ids != bag.padding_idx)
        x = self.value.new_zeros(count, len(self.value))
        x.index_put_((bags.flatten(), ids.flatten()), shares.flatten().to(x.dtype), accumulate=True)
        return x / _at_least_one(shares, bags, count) if bag.mode == "mean" else x

    def rows(self, x: Tensor) -> Tensor:
        return x.mT.unsqueeze(-1)

    def moments(self, x: Tensor) -> list[Moments]:
        if len(x) == 0:
            return []
        floor = relative_rank_floor(self.value.dtype)
        energies = x.to(WORKING_DTYPE).square().sum(0).reshape(-1, 1, 1)
        return [Moments(len(x), floor, gram=energy) for energy in energies]

    def expected(self, x: Tensor) -> Tensor:
        return x @ self.value

    def describes(self, x: Any, repeat: Callable[[], Any]) -> bool:
        return cast(nn.EmbeddingBag, self.module).mode == "max" or LayerKind.describes(self, x, repeat)


def _at_least_one(shares: Tensor, bags: Tensor, count: int) -> Tensor:
    """How many entries each bag has, 1 where it has none."""
    numbers = torch.zeros(count, dtype=shares.dtype, device=shares.device)
    return numbers.index_add(0, bags.flatten(), (shares != 0).to(shares.dtype).flatten()).clamp(min=1).unsqueeze(1)

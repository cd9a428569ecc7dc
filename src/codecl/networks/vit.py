"""A small vision transformer (Dosovitskiy et al., 2021), with the plain choices of Beyer, Zhai, Kolesnikov (2022).

    image → patches, each to width numbers, plus its position
          → depth blocks:  x ← x + attention(norm(x));  x ← x + mlp(norm(x))
          → norm → mean over the patches

Positions are fixed sines and cosines of row and column, and the mean over the patches stands in place of a class
token, so every parameter is a norm or a matrix that meets inputs. No biases but those of the norms.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Attention(nn.Module):
    """softmax(q kᵀ / √d) v for every head, whose d = width / heads; queries, keys and values are made by one matrix."""

    uses_everything = True

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)  # each [n, heads, patches, d]
        y: Tensor = self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return y


class Block(nn.Module):
    """Attention among the patches, then two layers on each of them; both see normalised inputs and add to them."""

    uses_everything = True

    def __init__(self, width: int, heads: int, hidden: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.norm2 = nn.LayerNorm(width)
        self.fc1 = nn.Linear(width, hidden, bias=False)
        self.fc2 = nn.Linear(hidden, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        y: Tensor = x + self.fc2(F.gelu(self.fc1(self.norm2(x))))
        return y


class VisionTransformer(nn.Module):
    """A vision transformer for square images, to ``width`` features. The defaults are for 32×32 ones in colour.

    Args:
        patch: the side of a patch; it divides that of the image.
        mlp_ratio: how many hidden units the two layers of a block have for each of ``width``.
        channels: of the image.
    """

    uses_everything = True
    positions: Tensor

    def __init__(
        self,
        *,
        image_size: int = 32,
        patch: int = 4,
        width: int = 192,
        depth: int = 6,
        heads: int = 3,
        mlp_ratio: float = 4.0,
        channels: int = 3,
    ) -> None:
        super().__init__()
        if image_size % patch:
            raise ValueError(f"patch={patch} does not divide image_size={image_size}")
        if width % heads:
            raise ValueError(f"heads={heads} does not divide width={width}")
        if width % 4:
            raise ValueError(f"width={width} must be a multiple of 4: sines and cosines of rows and columns")
        self.features = width
        self.embed = nn.Conv2d(channels, width, patch, stride=patch, bias=False)
        self.register_buffer("positions", sines(image_size // patch, width), persistent=False)
        self.blocks = nn.Sequential(*(Block(width, heads, int(width * mlp_ratio)) for _ in range(depth)))
        self.norm = nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x).flatten(2).mT + self.positions
        y: Tensor = self.norm(self.blocks(x)).mean(1)
        return y


def sines(side: int, width: int) -> Tensor:
    """``sin(ω row), cos(ω row), sin(ω column), cos(ω column)`` of every patch, row by row: ``[side², width]``.

    The frequencies ω, a quarter of ``width`` each, fall from 1 towards 1/10,000.
    """
    frequencies = 10_000.0 ** (-4 / width * torch.arange(width // 4, dtype=torch.float64))
    angles = torch.arange(side).unsqueeze(1) * frequencies
    of_one = torch.cat([angles.sin(), angles.cos()], dim=1).to(torch.get_default_dtype())
    rows, columns = of_one.repeat_interleave(side, dim=0), of_one.repeat(side, 1)
    return torch.cat([rows, columns], dim=1)

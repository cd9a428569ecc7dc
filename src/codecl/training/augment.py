"""Random crops and flips of a batch of images, drawn from a stream of their own."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True)
class Augmentation:
    """Each image is shifted by up to ``crop`` pixels and mirrored left to right in half of the cases.

    Shifting is the random crop of an image that has a border of zeros, ``crop`` pixels wide. Random numbers are drawn
    on the CPU, so that they are the same on every device.
    """

    crop: int
    flip: bool
    generator: torch.Generator

    def __call__(self, x: Tensor) -> Tensor:
        if x.ndim != 4:
            raise ValueError(f"crop and flip need images [n, channels, height, width]; got inputs {list(x.shape)}.")
        n = len(x)
        rows, columns = (torch.arange(extent).expand(n, extent) for extent in x.shape[2:])
        if self.crop:
            x = F.pad(x, (self.crop,) * 4)
            down, right = torch.randint(0, 2 * self.crop + 1, (2, n, 1), generator=self.generator)
            rows, columns = rows + down, columns + right
        if self.flip:
            mirrored = torch.rand(n, 1, generator=self.generator) < 0.5
            columns = torch.where(mirrored, columns.flip(1), columns)
        images, rows, columns = torch.arange(n)[:, None, None], rows[:, :, None], columns[:, None, :]
        images, rows, columns = (index.to(x.device) for index in (images, rows, columns))
        return x.permute(0, 2, 3, 1)[images, rows, columns].permute(0, 3, 1, 2).contiguous()

"""Decoding picture files with Pillow: only the expected formats, and none of more pixels than a photograph has."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from codecl.benchmarks.data.images import DamagedData, library

MAX_PIXELS = 50_000_000  # of one picture, before it is resized; the largest of ImageNet has 19 million


def read_picture(path: Path, formats: Sequence[str], mode: str | None = None, max_pixels: int | None = None) -> Any:
    """The picture at ``path``, decoded after the number of its pixels was checked.

    Args:
        formats: Pillow's names of the formats that are tried, whatever the file is called.
        mode: what the picture is converted to; None leaves it as it is.
        max_pixels: the bound on width × height (default ``MAX_PIXELS``).
    """
    image, limit = library("PIL.Image", "Pillow"), max_pixels or MAX_PIXELS
    try:
        if not path.is_file():
            raise ValueError("it is not a regular file")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", image.DecompressionBombWarning)  # the bound here is lower
            with image.open(path, formats=formats) as picture:
                width, height = picture.size
                if width * height > limit:
                    raise ValueError(f"it has {width:,}×{height:,} pixels, more than {limit:,}")
                picture.load()
                return picture.convert(mode) if mode else picture
    except Exception as error:  # whatever Pillow's decoders raise over a damaged file
        kinds, why = " or ".join(formats), str(error).rstrip(".") or type(error).__name__
        raise DamagedData(f"{path} cannot be read as an image ({kinds}): {why}.") from None


def read_square(path: Path, side: int, formats: Sequence[str]) -> Tensor:
    """The picture at ``path`` as uint8 ``[3, side, side]``, resized where it has another size."""
    rgb = read_picture(path, formats, "RGB")
    if rgb.size != (side, side):
        rgb = rgb.resize((side, side), library("PIL.Image", "Pillow").Resampling.BILINEAR)
    pixels = torch.frombuffer(bytearray(rgb.tobytes()), dtype=torch.uint8)
    return pixels.reshape(side, side, 3).permute(2, 0, 1)

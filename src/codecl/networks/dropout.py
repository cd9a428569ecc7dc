"""Dropout (Srivastava et al., 2014) whose masks are cheap to draw on a CPU.

    y = x · m / q,   m ~ Bernoulli(q) independently for every element,   q = 1 − p

``torch.nn.Dropout`` calls the generator for every single element, which costs a good part of an AlexNet
training step on two cores. Here one 64-bit word of torch's default generator serves eight elements, or four:
each takes its own 8 or 16 bits ``b`` as a uniform integer and is kept when ``b ≥ p · 2^bits``.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Dropout(nn.Module):
    """What ``torch.nn.Dropout`` is: zeros with probability ``p``, else rescales; the identity in eval mode.

    ``p`` is met exactly when ``256 p`` is an integer. Otherwise the probability in force is the nearest
    multiple of 2⁻¹⁶, and the kept elements are scaled by its own ``1 / q``, so that the mean stays exact.
    """

    def __init__(self, p: float = 0.5) -> None:
        super().__init__()
        if not 0.0 <= p <= 1.0:
            raise ValueError(f"dropout probability p must lie in [0, 1], got {p}")
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.p == 0.0:
            return x
        # Within 2⁻⁸ of 0 or 1 a multiple of 2⁻¹⁶ is too coarse: the rarer outcome could be off by over 0.2 %.
        coarse = min(self.p, 1.0 - self.p) < 2.0**-8
        if coarse or x.device.type != "cpu" or not x.is_floating_point():
            return F.dropout(x, self.p, training=True)
        return x * scaled_mask(x, self.p)

    def extra_repr(self) -> str:
        return f"p={self.p}"


def scaled_mask(x: Tensor, p: float) -> Tensor:
    """A tensor like ``x`` holding 0 with probability ``p`` and ``1 / q`` otherwise."""
    bits = 8 if (256 * p).is_integer() else 16
    dropped = round(p * 2**bits)  # of the 2^bits equally likely integers
    per_word = 64 // bits
    words = torch.empty(-(-x.numel() // per_word), dtype=torch.int64, device=x.device)
    words.random_(-(2**63), None)  # without a lower bound only 63 of the 64 bits are random
    integers = words.view(torch.int8 if bits == 8 else torch.int16)[: x.numel()]
    # Comparing straight into a flat tensor and keeping it in floating point was faster, forward and backward
    # together, than every bool mask tried.
    mask = torch.empty_like(x, memory_format=torch.contiguous_format).flatten()
    torch.ge(integers, dropped - 2 ** (bits - 1), out=mask)
    mask.mul_(2**bits / (2**bits - dropped))
    # Bits belong to elements in the order of their indices, whatever the memory format: one seed, one mask.
    mask = mask.view(x.shape)
    return mask if x.is_contiguous() else torch.empty_like(x).copy_(mask)

"""Second moments of a stream of rows: what a conceptor or a subspace is fitted to.

``(ΣXᵀX, n)`` adds up over batches, over tasks and over machines, so the number of rows is never limited by memory.
How the sum is kept depends on what it costs and on what it would lose:

- fewer rows than dimensions: the rows themselves, ``[n, d]``;
- float32, as which narrower ones count: the Gram matrix in float64, where products of float32 numbers are exact;
- float64: a triangular factor ``T`` with ``TᵀT = ΣXᵀX``, because squaring would lose half of the digits.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from codecl.algebra.gram import gram_of
from codecl.algebra.tolerances import WORKING_DTYPE, relative_rank_floor


@dataclass(frozen=True, eq=False)
class Moments:
    """``Σ XᵀX`` over ``count`` rows, held as ``root`` (``rootᵀ root``) or as ``gram``, never both."""

    count: int
    floor: float
    root: Tensor | None = None
    gram: Tensor | None = None

    @classmethod
    def of(cls, rows: Tensor) -> Moments:
        """The moments of ``rows``, ``[n, d]``."""
        if not isinstance(rows, Tensor) or rows.ndim != 2:
            given = tuple(rows.shape) if isinstance(rows, Tensor) else type(rows).__name__
            raise ValueError(f"rows must be a tensor [n, d]; got {given}.")
        if not rows.is_floating_point():
            raise ValueError(f"rows must be floating point; got {rows.dtype}. Convert with rows.float().")
        if rows.layout != torch.strided or rows.is_meta:
            kind = "on the meta device" if rows.is_meta else f"stored as {rows.layout}"
            raise ValueError(f"rows must be a dense tensor with values; got one {kind}. Convert with rows.to_dense().")
        n, d = rows.shape
        if n == 0 or d == 0:
            raise ValueError(
                f"there is nothing to fit: rows has shape {[n, d]}. Give at least one row and one dimension."
            )
        rows = rows.detach()
        if rows.device.type == "mps":  # no float64 there
            rows = rows.cpu()
        if rows.element_size() < torch.float32.itemsize:
            rows = rows.float()  # the numbers are exact in it, and directions below the eps of narrow ones are real
        moments = cls(n, relative_rank_floor(rows.dtype), root=rows)._compact()
        held = moments.root if moments.root is not None else moments.gram
        if held is None or not bool(torch.isfinite(held).all()):
            bad = int((~torch.isfinite(rows)).any(dim=1).sum())
            raise ValueError(
                f"rows hold NaN or infinite values ({bad} of {n} rows). "
                "Find where the network diverged (a learning rate too high, a division by zero) before fitting."
            )
        if moments.root is rows:  # a value does not change when the caller fills the same buffer again
            return replace(moments, root=rows.clone())
        return moments

    @property
    def dim(self) -> int:
        held = self.root if self.root is not None else self.gram
        assert held is not None
        return held.shape[-1]

    @property
    def total(self) -> Tensor:
        """``‖X‖²_F``, the energy of all rows."""
        if self.root is not None:
            return self.root.to(WORKING_DTYPE).square().sum()
        assert self.gram is not None
        return self.gram.diagonal().sum()

    @property
    def largest(self) -> float:
        """The largest singular value of the rows."""
        if self.root is not None:
            return float(torch.linalg.matrix_norm(self.root.to(WORKING_DTYPE), 2))
        return float(torch.linalg.eigvalsh(self._as_gram())[-1].clamp(min=0).sqrt())

    def __add__(self, other: Moments) -> Moments:
        if not isinstance(other, Moments):
            return NotImplemented
        if self.dim != other.dim:
            raise ValueError(
                f"cannot add moments of dimension {self.dim} and {other.dim}: they describe different layers."
            )
        count, floor = self.count + other.count, max(self.floor, other.floor)
        if self.root is not None and other.root is not None:
            dtype = torch.promote_types(self.root.dtype, other.root.dtype)
            root = torch.cat([self.root.to(dtype), other.root.to(dtype)])
            return Moments(count, floor, root=root)._compact()
        return Moments(count, floor, gram=self._as_gram() + other._as_gram())

    def without(self, basis: Tensor) -> Moments:
        """The moments of the residual rows ``X − X B Bᵀ``, ``B: [d, r]`` orthonormal."""
        if self.root is not None:
            root = self.root.to(WORKING_DTYPE)
            return Moments(self.count, self.floor, root=root - (root @ basis) @ basis.mT)
        gram = self._as_gram()
        half = gram - (gram @ basis) @ basis.mT
        return Moments(self.count, self.floor, gram=half - basis @ (basis.mT @ half))

    def through(self, A: Tensor) -> Moments:
        """The moments of the rows ``X A``, ``A: [d, k]``."""
        A = A.to(WORKING_DTYPE)
        if self.root is not None:
            return Moments(self.count, self.floor, root=self.root.to(WORKING_DTYPE) @ A)
        return Moments(self.count, self.floor, gram=A.mT @ self._as_gram() @ A)

    def along(self, basis: Tensor) -> Tensor:
        """The energy ``bᵀ ΣXᵀX b`` of the rows along each column ``b`` of ``basis``, ``[r]``."""
        if self.root is not None:
            return (self.root.to(WORKING_DTYPE) @ basis).square().sum(0)
        return (basis * (self._as_gram() @ basis)).sum(0)

    def spectrum(self, reference: float | None = None) -> tuple[Tensor, Tensor]:
        """``U: [d, k]`` orthonormal and ``σ: [k]`` descending with ``ΣXᵀX = U σ² Uᵀ``; noise is cut off.

        ``reference`` is the σ that counts as the largest, where the rows are a residual of larger ones.
        """
        if self.root is not None:
            V, sigma, _ = torch.linalg.svd(self.root.to(WORKING_DTYPE).mT, full_matrices=False)
        else:
            gram = self._as_gram()
            energy, V = torch.linalg.eigh(gram) if self.dim > 1 else (gram[0], torch.ones_like(gram))
            sigma, V = energy.flip(0).clamp(min=0).sqrt(), V.flip(1)
        largest = sigma[0] if reference is None else max(float(sigma[0]), reference)
        keep = sigma > self.floor * largest
        return V[:, keep], sigma[keep]

    def _as_gram(self) -> Tensor:
        if self.gram is not None:
            return self.gram
        assert self.root is not None
        return gram_of(self.root)

    def _compact(self) -> Moments:
        """Never more than ``[d, d]`` numbers."""
        assert self.root is not None
        n, d = self.root.shape
        if n <= d:
            return self
        if self.floor <= relative_rank_floor(WORKING_DTYPE):
            return Moments(self.count, self.floor, root=torch.linalg.qr(self.root, mode="r").R)
        return Moments(self.count, self.floor, gram=self._as_gram())

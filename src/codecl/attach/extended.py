"""A weight to which tasks add columns for more inputs, ``[W, V_1, …]``, as API does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from codecl.attach.effective import Expansion
from codecl.attach.weight import ProtectedWeight, add_exactly


@dataclass(eq=False)
class ExtendedWeight(ProtectedWeight):
    """A parameter and columns beside it. The projection acts on all of them as one.

    An effective weight gets the columns beside ``W``; a task without one sees ``W`` alone. The update is always
    projected: whoever clips the gradients of the model alone scales those of ``W`` and of the columns apart.
    """

    no_twins: ClassVar[str] = "and columns that this method adds to one would not fit the other"

    columns: list[nn.Parameter] = field(default_factory=list, init=False)
    """``V: [g, o, e]`` for ``e`` more inputs, one for each task that added some."""

    @property
    def width(self) -> int:
        """The inputs, with those that were added."""
        return self.shape[2] + sum(V.shape[2] for V in self.columns)

    @property
    def tensors(self) -> list[nn.Parameter]:
        """All that is projected as one: the parameter and its columns."""
        return [self.parameter, *self.columns]

    def join(self, values: Sequence[Tensor]) -> Tensor:
        """Tensors of the shapes of ``tensors`` as one stack, ``[g, o, width]``."""
        W = self.matrices(values[0])
        return torch.cat([W, *values[1:]], dim=-1) if len(values) > 1 else W

    def project_all(self, values: Sequence[Tensor]) -> list[Tensor]:
        """``[W, V_1, …] (I − C)`` for tensors of the shapes of ``tensors``."""
        if self.projection is None:
            return list(values)
        widths = [self.shape[2], *(V.shape[2] for V in self.columns)]
        W, *columns = torch.split(self.projection(self.join(values)), widths, dim=-1)
        return [self.kind.parameter(W), *columns]

    def stack(self, value: Tensor) -> Tensor:
        return self.join([value, *self.columns])

    def seen(self, W: Tensor) -> Tensor:
        return W[..., : self.shape[2]] if self.change is None else self.change.weight(W)

    def projected_rows(self, X: Tensor, i: int) -> Tensor:
        """With the mixtures of the task that is shown, and zeros for the columns that it does not know."""
        X = self.change.widen(X, i) if isinstance(self.change, Expansion) else X
        return F.pad(X, (0, self.width - X.shape[1]))

    def rows(self, X: Tensor) -> Tensor:
        """Zeros for the columns that the current task does not know."""
        X = super().rows(X)
        return F.pad(X, (0, self.width - X.shape[1])) if X.shape[1] < self.width else X

    @property
    def always_restricts(self) -> bool:
        return bool(self.columns) or super().always_restricts

    def some_rows(self, block: slice) -> Tensor:
        return torch.cat([super().some_rows(block), *(V.detach().flatten(0, 1)[block] for V in self.columns)], dim=-1)

    def difference(self, before: list[Tensor]) -> Tensor:
        return self.join([new - old.to(new) for new, old in zip(self.tensors, before, strict=True)]).detach()

    def snapshot(self) -> list[Tensor]:
        return [super().snapshot(), *(tensor.detach().clone() for tensor in self.columns)]

    @torch.no_grad()
    def restrict(self, before: list[Tensor]) -> None:
        self._exact = add_exactly(self.tensors, before, self._exact, self.project_all)
        self.follow()

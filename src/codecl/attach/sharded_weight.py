"""A protected weight in shards: every process projects the rows that it holds.

While a module runs, ``fully_shard`` gathers its weights, so that gradients are projected as ever before they are summed
and cut. Around the step of an optimizer there are shards only: ``V (I − C)`` of a shard is the shard of ``V (I − C)``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import torch
from torch import Tensor

from codecl.attach.probe import Probe
from codecl.attach.shards import here, is_sharded, part, put, sharded_as, shards_of, whole
from codecl.attach.weight import ProtectedWeight, add_exactly


@dataclass(eq=False)
class ShardedWeight(ProtectedWeight):
    """A parameter of which each process holds some rows, once the modules that use it are not running.

    A tensor in shards is seen as the rows held here, ``[1, o_r, d]``, if rows of the parameter are rows of its matrix.
    Of any other, the packed projection of an attention, say, all is gathered.
    """

    no_twins: ClassVar[str] = "whose shards would have to be projected on both sides, which is not supported"

    def __post_init__(self) -> None:
        if any(kind.scales for kind in self.uses):
            raise TypeError(
                f"'{self.name}' is normalised by its layer (weight_norm), which is not supported in shards."
            )

    @cached_property
    def shape(self) -> tuple[int, int, int]:
        g, o, d = self.kind.matrices(torch.empty(self.parameter.shape, device="meta")).shape
        return g, o, d

    @cached_property
    def by_rows(self) -> bool:
        """Whether the parameter is one matrix with the same rows, so that each process can project its own."""
        g, o, d = self.shape
        if g != 1 or o != len(self.parameter) or self.kind.transposed:
            return False
        first = torch.arange(d).reshape(1, *self.parameter.shape[1:])
        try:
            return torch.equal(self.kind.matrices(first), first.reshape(1, 1, d))
        except RuntimeError:  # these matrices cannot be made of some of the rows
            return False

    def matrices(self, value: Tensor | None = None) -> Tensor:
        return self.kind.matrices(self._part(self.parameter if value is None else value))

    def project(self, value: Tensor) -> Tensor:
        projected = self._project(self._part(value))
        if not is_sharded(value):
            return projected
        return sharded_as(value, projected if self.by_rows else part(projected, value))

    def stack(self, value: Tensor) -> Tensor:
        if (value.device, value.dtype) != (self.parameter.device, self.parameter.dtype):
            raise TypeError(
                f"'{self.name}' is {self.parameter.dtype} on {self.parameter.device}, and fully_shard computes with it "
                f"as {value.dtype} on {value.device}: what is projected would be rounded or moved. Call fully_shard "
                "without mp_policy and offload_policy; torch.autocast may be used."
            )
        return super().stack(value)

    def projected_once(self, G: Tensor) -> Tensor:
        raise TypeError(f"a term of the loss on the weights themselves, '{self.name}', is not supported in shards.")

    def difference(self, before: Any) -> Tensor:
        return self.kind.matrices(self._part(self.parameter) - before)

    def snapshot(self) -> Any:
        return self._part(self.parameter).clone()

    @torch.no_grad()
    def restrict(self, before: Any) -> None:
        value = self._part(self.parameter)
        self._exact = add_exactly([value], [before], self._exact, lambda steps: [self._project(steps[0])])
        if not self.by_rows:
            put(self.parameter, value)

    def _part(self, value: Tensor) -> Tensor:
        """What is seen of a tensor in the shape of the parameter."""
        if not is_sharded(value):
            return value
        return here(value) if self.by_rows else whole(value)

    def _project(self, value: Tensor) -> Tensor:
        if self.projection is None:
            return value
        return self.projection(self.kind.matrices(value)).reshape(value.shape)

    def _new_probe(self, like: Tensor) -> Probe:
        if not self.by_rows:
            return super()._new_probe(here(like))
        rows, own = shards_of(self.parameter)
        return ShardProbe(rows, own, self.shape[2], here(like))


class ShardProbe(Probe):
    """The probe of the rows held here. What is delivered has the rows of all, so it probes those of the others too."""

    def __init__(self, rows: Sequence[slice], own: int, d: int, like: Tensor) -> None:
        shapes = [(1, max(1, each.stop - each.start), d) for each in rows]
        super().__init__(shapes[own], like)
        self._rows, self._own = list(rows), own
        self._others = {i: Probe(shape, like) for i, shape in enumerate(shapes) if i != own}

    def deliver(self, D: Tensor) -> None:
        super().deliver(D[:, self._rows[self._own]])
        for i, probe in self._others.items():
            probe.deliver(D[:, self._rows[i]])

    def share(self) -> list[Any]:
        """For each shard, the products of its rows."""
        own = super().share()
        return [self._others[i].share() if i in self._others else own for i in range(len(self._rows))]

    def receive(self, shares: Sequence[list[Any]]) -> None:
        super().receive([of_process[self._own] for of_process in shares])

    def step(self) -> None:
        super().step()
        for probe in self._others.values():
            probe.step()

    def forget(self) -> None:
        super().forget()
        for probe in self._others.values():
            probe.forget()

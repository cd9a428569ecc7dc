"""Tensors of which every process holds some rows, as ``torch.distributed.fsdp.fully_shard`` makes them of parameters.

``W: [o, d]`` is cut by its rows, and ``W (I − C)`` acts on each row by itself: a process can project what it holds. All
of a tensor is gathered only where that does not do. For any other tensor these functions return the tensor itself.
"""

from __future__ import annotations

from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn


def is_sharded(value: Tensor) -> bool:
    """Whether ``value`` is known to several processes, a ``DTensor``."""
    return hasattr(value, "full_tensor")


def here(value: Tensor) -> Tensor:
    """What this process holds of ``value``, in the same storage and without a gradient."""
    return cast(Tensor, cast(Any, value.detach()).to_local()) if is_sharded(value) else value.data


def whole(value: Tensor) -> Tensor:
    """All of ``value``, without a gradient; every process must ask for it."""
    return cast(Tensor, cast(Any, value.detach()).full_tensor()) if is_sharded(value) else value.detach()


def shards_of(value: Tensor) -> tuple[list[slice], int]:
    """The rows of each shard, and which shard this process has."""
    place, mesh = _cut(value)
    n, count = len(value), mesh.size(place)
    size = -(-n // count)
    return [slice(min(i * size, n), min((i + 1) * size, n)) for i in range(count)], mesh.get_local_rank(place)


def part(of: Tensor, like: Tensor) -> Tensor:
    """The rows of ``of``, a whole tensor in the shape of ``like``, that this process holds of ``like``."""
    if not is_sharded(like) or not any(p.is_shard() for p in cast(Any, like).placements):
        return of
    rows, own = shards_of(like)
    return of[rows[own]]


@torch.no_grad()
def put(value: Tensor, new: Tensor) -> None:
    """Set ``value`` to ``new``, a whole tensor that all processes have."""
    here(value).copy_(part(new, value))


def sharded_as(like: Tensor, own: Tensor) -> Tensor:
    """The tensor of which this process holds ``own`` and the others what they hold of ``like``."""
    from torch.distributed.tensor import DTensor

    of = cast(Any, like)
    return DTensor.from_local(
        own, of.device_mesh, of.placements, run_check=False, shape=like.shape, stride=like.stride()
    )


def together(parameter: nn.Parameter, like: Tensor) -> nn.Parameter:
    """``parameter``, that all processes have whole, where ``like`` is; with shards, as one parameter of them all.

    ``used`` gives its value. An optimizer, or ``clip_grad_norm_``, would not take it beside sharded ones otherwise.
    """
    if is_sharded(parameter):
        return parameter
    if not is_sharded(like):
        parameter.data = parameter.data.to(like)
        return parameter
    from torch.distributed.tensor import DTensor, Replicate

    mesh = cast(Any, like).device_mesh
    value = DTensor.from_local(
        parameter.data.to(like.device, like.dtype), mesh, [Replicate()] * mesh.ndim, run_check=False
    )
    return nn.Parameter(value, parameter.requires_grad)


def used(parameter: Tensor) -> Tensor:
    """The value of ``parameter``, whose gradient is the mean over all processes."""
    return cast(Tensor, _Averaged.apply(parameter)) if is_sharded(parameter) else parameter  # type: ignore[no-untyped-call]


class _Averaged(torch.autograd.Function):
    """A parameter that all processes have whole: its gradient is the mean of theirs."""

    @staticmethod
    def forward(parameter: Tensor) -> Tensor:
        return here(parameter)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any], output: Tensor) -> None:
        (parameter,) = inputs
        ctx.mesh = parameter.device_mesh

    @staticmethod
    def backward(ctx: Any, G: Tensor) -> Tensor:
        from torch.distributed.tensor import DTensor, Replicate

        mesh, total = ctx.mesh, G.clone(memory_format=torch.contiguous_format)
        everyone = mesh.size() == dist.get_world_size()  # one sum has the same bits on all, several might not
        for group in [dist.group.WORLD] if everyone else mesh.get_all_groups():
            dist.all_reduce(total, group=group)
        return DTensor.from_local(total / mesh.size(), mesh, [Replicate()] * mesh.ndim, run_check=False)


def refused_layout(value: Tensor) -> str | None:
    """What is wrong with the way ``value`` is cut, unless it is cut into rows once; None if nothing is."""
    placements = cast(Any, value).placements
    cuts = [p for p in placements if not p.is_replicate()]
    by_rows = len(cuts) == 1 and type(cuts[0]).__name__ == "Shard" and cuts[0].dim == 0
    return None if by_rows else f"is cut as {tuple(placements)}"


def _cut(value: Tensor) -> tuple[int, Any]:
    """The dimension of the mesh over which the rows are cut, and the mesh."""
    sharded = cast(Any, value)
    return next(i for i, p in enumerate(sharded.placements) if p.is_shard()), sharded.device_mesh


def reshard(model: nn.Module) -> None:
    """Let every part of ``model`` hold its shards alone: a forward without a backward leaves the whole weights in
    place, and with them values from before whatever is set next.
    """
    for module in model.modules():
        if hasattr(module, "unshard") and hasattr(module, "reshard"):
            cast(Any, module).reshard()
